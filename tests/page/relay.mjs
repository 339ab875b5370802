// Stands between a page and forkpoint: the files are forkpoint's, and so is the stream unless it is made up here.

import { createServer } from "node:http";

/** Starts it. `madeUp(send)` is called for each reader of a stream that is made up, with what sends it an event.
    `streams` has, of every stream, the id that its reader came with and the name of the first event; `cut()` ends them all. */
export async function startRelay(admin, madeUp = null) {
  const streams = [];
  const open = new Set();
  const server = createServer(async (request, response) => {
    if (request.url !== "/events") {
      const file = await fetch(admin + request.url);
      const headers = ["content-type", "content-security-policy"].map((name) => [name, file.headers.get(name)]);
      response.writeHead(file.status, Object.fromEntries(headers));
      return response.end(await file.text());
    }
    const stream = { lastId: request.headers["last-event-id"] ?? null, first: null };
    streams.push(stream);
    open.add(response);
    response.on("close", () => open.delete(response));
    response.writeHead(200, { "content-type": "text/event-stream" });
    if (madeUp) {
      let number = 0;
      const send = (event, data) => {
        number += 1;
        stream.first ??= event;
        response.write(`id: x-${number}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
      };
      const stop = madeUp(send);
      return response.on("close", () => stop?.());
    }
    const reader = new AbortController();
    response.on("close", () => reader.abort());
    try {
      const headers = stream.lastId ? { "last-event-id": stream.lastId } : {};
      const events = await fetch(`${admin}/events`, { headers, signal: reader.signal });
      for await (const piece of events.body) {
        stream.first ??= Buffer.from(piece).toString().match(/^event: (.*)$/m)?.[1] ?? null;
        response.write(piece);
      }
    } catch {
      // The reader has left, or forkpoint has ended.
    }
    return response.destroy();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const cut = () => {
    for (const response of open) response.destroy();
  };
  const stop = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, streams, cut, stop };
}

let id = 0;

/** An exchange that has ended, of a forked child unless more is said. */
export function exchange(time_ms, more) {
  id += 1;
  return {
    id, time_ms, role: "plain", status: 200, ending: "complete", stop_reason: "end_turn", model: "claude-opus-5-5", tenant: `0000000${id % 7}`,
    client: "anthropic-python/0.60", plan: "aligned", reason: "not_a_child", held_ms: 0, sent_ms: 3, first_byte_ms: 900, duration_ms: 2500,
    prefix: "587253189abff8e7", received: "3b69bac909b9e5de", sent: "ea9bac909b9e5d41", breakpoints: ["system[0] 5m added", "messages[2].content[6] 5m added"],
    shared_bytes: 36_500, layer_bytes: [7_800, 25_200, 30_700], uncached: 3, cache_read: 15_916, cache_write_5m: 66, cache_write_1h: 0, output: 80,
    cost_usd: 0.004, as_sent_usd: 0.012, aligned_usd: 0.003, ...more,
  };
}

/** A request of a child. The first child leads. */
export const child = (time_ms, fork, number, more = {}) =>
  exchange(time_ms, { role: "child", fork, child: number, child_turn: 1, tool: "Agent", plan: "forked", reason: "none", gate: number === 1 ? "led" : "released", context_usd: 0.001, ...more });

/** A request that goes on: `more` has its number `n`. */
export const underway = (time_ms, fork, number, more) => ({
  time_ms, role: "child", fork, child: number, tool: "Agent", model: "claude-opus-5-5", plan: "forked", reason: "none",
  gate: number === 1 ? "led" : "released", sent_ms: 300, ...more,
});

/** The sums of as many compared requests. */
export const sums = (requests, more = {}) => ({
  requests, failed: 0, uncached: 3 * requests, cache_read: 15_916 * requests, cache_write: 66 * requests, output: 80 * requests,
  billed_usd: 0.004 * requests, compared: requests, compared_usd: 0.004 * requests, as_sent_usd: 0.012 * requests, aligned_usd: 0.003 * requests,
  uncompared: 0, ...more,
});

export const snapshot = (now_ms, exchanges, more = {}) => ({
  mode: "fork", config: 1, tenants: {}, version: "0", started_ms: now_ms - 6e6, now_ms, total: sums(exchanges.length), minutes: [], underway: [], exchanges, ...more,
});
