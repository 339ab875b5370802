// An upstream whose answers hold names that are made to do harm.

import { createServer } from "node:http";

export const HOSTILE = [
  '<img src=x onerror="document.title=1"><script>document.title=2</script>',
  "\u202e\u2066safe\u2069gnp.exe\u200b\u0007",
  "a\u034f\u0301\u0301\u0301b\u{e0041}\u{e0042}\u{e0020}c",
  `${"W".repeat(10_000)}<b>`,
];

/** Starts it. The first request of a conversation is answered with two calls of the tool that it brings. */
export async function startHostile() {
  const server = createServer(async (request, response) => {
    const body = JSON.parse(Buffer.concat(await request.toArray()).toString());
    const fansOut = JSON.stringify(body.messages).includes("Survey") && body.messages.length === 1;
    const task = (part) => `Look into part ${part} of it with care, and say in a few words what you have found there.`;
    const call = (part) => ({ type: "tool_use", id: `toolu_${part}`, name: body.tools[0].name, input: { prompt: task(part) } });
    const content = fansOut ? [call(1), call(2)] : [{ type: "text", text: "Done." }];
    const usage = { input_tokens: 100, output_tokens: 10, cache_read_input_tokens: 0, cache_creation_input_tokens: 9000 };
    const message = {
      id: `msg_${Math.random()}`, type: "message", role: "assistant", model: body.model, content, usage,
      stop_reason: fansOut ? "tool_use" : "end_turn", stop_sequence: null,
    };
    if (!body.stream) {
      response.setHeader("content-type", "application/json");
      return response.end(JSON.stringify(message));
    }
    response.setHeader("content-type", "text/event-stream");
    const start = { type: "message_start", message: { ...message, content: [], stop_reason: null } };
    const stop = { type: "message_delta", delta: { stop_reason: message.stop_reason }, usage };
    return response.end([start, stop, { type: "message_stop" }].map((data) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`).join(""));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, stop: () => server.close() };
}

/** A fan-out by a tool of this name. */
export async function hostileFanOut(proxy, name) {
  const tools = [name, "Read"].map((name) => ({ name, input_schema: { type: "object" } }));
  const ask = async (messages) => {
    const answer = await fetch(`${proxy}/v1/messages`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-api-key": `sk-${name.length}`, "anthropic-version": "2023-06-01" },
      body: JSON.stringify({ model: "claude-opus-5-5", max_tokens: 100, system: "rules ".repeat(4000), tools, messages }),
    });
    return answer.json();
  };
  const parent = await ask([{ role: "user", content: "Survey it." }]);
  const calls = parent.content.filter((block) => block.type === "tool_use");
  await Promise.all(calls.map((call) => ask([{ role: "user", content: call.input.prompt }])));
}

/** A stream of events in which every text is this one, but for those that name the kind of a thing. */
export function hostileEvents(text) {
  const exchange = (id, more) => ({
    id, time_ms: 1000 * id, status: 200, ending: text, model: text, client: text, tenant: text, agent: text, tool: text, plan: text,
    reason: text, gate: text, stop_reason: text, prefix: text, received: text, sent: `${text}2`, breakpoints: [text], fork_notes: text,
    held_ms: 1, sent_ms: 1, first_byte_ms: 2, duration_ms: 5, shared_bytes: 10, layer_bytes: [10, 10, 10], cache_read: 1, uncached: 1,
    break: { cause: text, layer: text, at: text, offset: 1, tokens: 5, volatile: text }, ...more,
  });
  const children = [2, 3].map((id) => exchange(id, { role: "child", fork: text, child: id - 1 }));
  const exchanges = [exchange(1, { role: "plain", fanned_out: text, fanned_out_children: 2 }), ...children];
  const sums = {
    requests: 3, failed: 0, uncached: 3, cache_read: 3, cache_write: 0, output: 0, billed_usd: 0, compared: 0, compared_usd: 0,
    as_sent_usd: 0, aligned_usd: 0, uncompared: 3,
  };
  const snapshot = {
    mode: text, config: 1, tenants: { [text]: text }, version: text, started_ms: 0, now_ms: 9000, total: sums, minutes: [],
    underway: [{ n: 1, time_ms: 4000, role: "child", fork: text, tool: text, model: text }], exchanges,
  };
  return `id: ${encodeURIComponent(text)}-1\nevent: snapshot\ndata: ${JSON.stringify(snapshot)}\n\n`;
}
