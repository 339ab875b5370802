// The programs of the TypeScript SDK: one function each, and the loop that runs those the driver asks for.
//
// Standard input has one line of JSON per run, `{"program": …, "url": …}`; standard output answers each with the
// transcripts of its agents. Without a URL the SDK finds one by itself.

import { createInterface } from "node:readline";

import type Anthropic from "@anthropic-ai/sdk";

import * as agent from "./agent.js";
import * as forks from "./forks.js";
import * as frameworks from "./frameworks.js";
import { Transcript } from "./transcript.js";

type Params = Anthropic.MessageCreateParamsNonStreaming;
type Program = (url: string | undefined, log: Transcript) => Promise<void | Record<string, Transcript>>;

const MODEL = "claude-opus-5-5";
const SEARCH: Anthropic.Tool = {
  name: "search",
  description: "Searches the archive.",
  input_schema: {
    type: "object",
    required: ["query", "limit", "deep"],
    properties: {
      query: { type: "string" },
      limit: { type: "integer" },
      deep: { type: "object", required: ["x"], properties: { x: { type: "null" } } },
    },
  },
};

// Long enough for the cache, and with a tool that may be called: align marks such a request.
const LONG = { system: "The handbook. ".repeat(300), tools: [SEARCH] };

function user(content: string): Anthropic.MessageParam {
  return { role: "user", content };
}

// The parameters of a call with one user message.
function ask(text: string, options: Partial<Params> = {}): Params {
  return { model: MODEL, max_tokens: 1000, messages: [user(text)], ...options };
}

function streamed(text: string, options: Partial<Params> = {}): Anthropic.MessageCreateParamsStreaming {
  return { ...ask(text, options), stream: true };
}

// The assistant's message, and a user message that answers every call of it.
function turn(message: Anthropic.Message): Anthropic.MessageParam[] {
  const calls = message.content.filter((block) => block.type === "tool_use");
  const results = calls.map((call): Anthropic.ToolResultBlockParam => {
    return { type: "tool_result", tool_use_id: call.id, content: `found ${JSON.stringify(call.input)}` };
  });
  return [
    { role: "assistant", content: message.content },
    { role: "user", content: results },
  ];
}

const programs: Record<string, Program> = {
  async create(url, log) {
    const client = log.client(url);
    const options = { system: "Be brief.", metadata: { user_id: "u-1" } };
    const first = log.message(await client.messages.create(ask("Hello.", options)));
    const answered: Anthropic.MessageParam = { role: "assistant", content: first.content };
    const messages = [user("Hello."), answered, user("And now? [[sim:text words=9]]")];
    log.message(await client.messages.create({ model: MODEL, max_tokens: 1000, messages }));
    log.message(await client.messages.create(ask("[[sim:text words=400]]", { max_tokens: 20 })));
    log.message(await client.messages.create(ask("[[sim:text words=60]]", { stop_sequences: [". "] })));
    log.message(await client.messages.create(ask("[[sim:empty]]")));
  },

  async stream_helper(url, log) {
    const client = log.client(url);
    const tools = client.messages.stream(ask("[[sim:tools calls=2]]", { tools: [SEARCH] }));
    for await (const event of tools) log.event(event);
    log.message(await tools.finalMessage());
    log.value("request_id", tools.request_id);
    const pieces: string[] = [];
    const text = client.messages.stream(ask("[[sim:text words=80]]")).on("text", (piece) => pieces.push(piece));
    const message = await text.finalMessage();
    log.value("text", pieces);
    log.message(message);
  },

  async stream_events(url, log) {
    const client = log.client(url);
    for await (const event of await client.messages.create(streamed("[[sim:text words=120]]"))) log.event(event);
    const calls = await client.messages.create(streamed("[[sim:tools calls=3]]", { tools: [SEARCH] }));
    for await (const event of calls) log.event(event);
  },

  // The bodies as they came, below everything that the SDK makes of them.
  async raw_bytes(url, log) {
    const client = log.client(url);
    log.value("json", await (await client.messages.create(ask("Hello.")).asResponse()).text());
    const stream = await client.messages.create(streamed("[[sim:text words=50]]")).asResponse();
    log.value("stream", await stream.text());
  },

  // Betas travel in a header and in the query, and both must arrive as they were sent.
  async beta(url, log) {
    const client = log.client(url, { defaultQuery: { beta: "true" } });
    const betas = ["context-management-2025-06-27", "an-unknown-beta-2099-01-01"];
    const params = { model: MODEL, max_tokens: 1000, betas, ...LONG };
    const hello = { ...params, messages: [{ role: "user" as const, content: "Hello." }] };
    log.message(await client.beta.messages.create(hello));
    const stream = client.beta.messages.stream({ ...hello, max_tokens: 999 });
    log.message(await stream.finalMessage());
  },

  async tools(url, log) {
    const client = log.client(url);
    const messages = [user("Look it up. [[sim:tools turns=3 calls=2]]")];
    for (;;) {
      const params = { model: MODEL, max_tokens: 1000, tools: [SEARCH], messages };
      const answer = log.message(await client.messages.create(params));
      if (answer.stop_reason !== "tool_use") return;
      messages.push(...turn(answer));
    }
  },

  // Nothing is marked: caching is left to the proxy.
  async long_conversation(url, log) {
    const client = log.client(url);
    const messages = [user("Look it up. [[sim:tools turns=7 calls=2]]")];
    for (;;) {
      const params = { model: MODEL, max_tokens: 1000, messages, ...LONG };
      const answer = log.message(await client.messages.stream(params).finalMessage());
      if (answer.stop_reason !== "tool_use") return;
      messages.push(...turn(answer));
    }
  },

  // Thinking comes back with its signature; on this model it is bound to the exact prompt before it.
  async thinking(url, log) {
    const client = log.client(url);
    const messages = [user("[[sim:tools turns=2 thinking=40]]")];
    const params: Params = {
      model: MODEL,
      max_tokens: 1000,
      thinking: { type: "adaptive" },
      messages,
      ...LONG,
    };
    messages.push(...turn(log.message(await client.messages.create(params))));
    const stream = client.messages.stream(params);
    for await (const event of stream) log.event(event);
    const second = log.message(await stream.finalMessage());
    messages.push(...turn(second));
    log.message(await client.messages.create(params));
    await log.errors(() => client.messages.create({ ...params, system: "Another prompt." }));
    const edited = second.content.map((block) => (block.type === "thinking" ? { ...block, thinking: "no" } : block));
    messages[3] = { role: "assistant", content: edited };
    await log.errors(() => client.messages.create(params));
  },

  async caching(url, log) {
    const client = log.client(url);
    const handbook: Anthropic.TextBlockParam = {
      type: "text",
      text: "The handbook. ".repeat(300),
      cache_control: { type: "ephemeral", ttl: "1h" },
    };
    const appendix: Anthropic.TextBlockParam = {
      type: "text",
      text: "The appendix. ".repeat(300),
      cache_control: { type: "ephemeral" },
    };
    const system = [handbook, appendix];
    log.message(await client.messages.create(ask("One.", { system })));
    log.message(await client.messages.create(ask("Two.", { system })));
    log.message(await client.messages.stream(ask("Three.", { system })).finalMessage());
    const automatic = ask("Four. ".repeat(600), { system: [handbook], cache_control: { type: "ephemeral" } });
    log.message(await client.messages.create(automatic));
    log.message(await client.messages.create(automatic));
  },

  async retries(url, log) {
    log.message(await log.client(url).messages.create(ask("Hello.", LONG)));
  },

  async retried_stream(url, log) {
    log.message(await log.client(url).messages.stream(ask("Hello.", LONG)).finalMessage());
  },

  async retry_after(url, log) {
    log.message(await log.client(url).messages.create(ask("Hello.")));
  },

  async gives_up(url, log) {
    await log.errors(() => log.client(url, { maxRetries: 1 }).messages.create(ask("Hello.")));
  },

  async errors(url, log) {
    const client = log.client(url, { maxRetries: 0 });
    const faulty = (status: string) => ({ headers: { "x-sim-status": status } });
    await log.errors(() => client.messages.create(ask("")));
    await log.errors(() => client.messages.create(ask("Hello."), { headers: { authorization: "Basic none" } }));
    await log.errors(() => client.messages.create(ask("Hello.", { model: "claude-none-1" })));
    await log.errors(() => client.messages.create(ask("x".repeat(33 << 20))));
    for (const status of ["403", "409", "429", "500", "504", "529"]) {
      await log.errors(() => client.messages.create(ask("Hello."), faulty(status)));
    }
    await log.errors(() => client.messages.create(streamed("Hello."), faulty("529")));
    await log.errors(() => client.messages.countTokens({ model: MODEL, messages: [] }));
    await log.errors(() => client.models.retrieve("claude-none-1"));
    await log.errors(() => client.post("/v1/nowhere", { body: {} }));
  },

  async error_event(url, log) {
    const client = log.client(url);
    const headers = { "x-sim-error-after": "6" };
    await log.errors(async () => {
      const stream = await client.messages.create(streamed("[[sim:text words=60]]", LONG), { headers });
      for await (const event of stream) log.event(event);
    });
    await log.errors(async () => {
      log.message(await client.messages.stream(ask("[[sim:text words=70]]", LONG), { headers }).finalMessage());
    });
  },

  // Leaves a stream that would take a minute, twice: by ending the loop, and by aborting the helper.
  async cancelled(url, log) {
    const client = log.client(url);
    let seen = 0;
    const long = streamed("[[sim:text words=9000 pace_ms=40]]", { max_tokens: 20_000, ...LONG });
    for await (const event of await client.messages.create(long)) {
      log.event(event);
      seen += 1;
      if (seen === 5) break;
    }
    const helper = client.messages.stream(ask("[[sim:text words=9001 pace_ms=40]]", { max_tokens: 20_000 }));
    seen = 0;
    helper.on("streamEvent", (event) => {
      seen += 1;
      if (seen <= 5) log.event(event);
      if (seen === 5) helper.abort();
    });
    const outcome = await helper.finalMessage().catch((error: Error) => error);
    log.value("ended by", outcome.constructor.name);
  },

  async timed_out(url, log) {
    const client = log.client(url, { maxRetries: 0, timeout: 500 });
    const headers = { "x-sim-latency-ms": "60000" };
    await log.errors(() => client.messages.create(ask("Hello."), { headers }));
  },

  async count_tokens(url, log) {
    const client = log.client(url);
    const same = { model: MODEL, system: "Count.", tools: [SEARCH], messages: [user("How many?")] };
    log.value("tokens", await client.messages.countTokens(same));
    log.message(await client.messages.create({ max_tokens: 100, ...same }));
  },

  async models(url, log) {
    const client = log.client(url);
    const page = await client.models.list({ limit: 4 });
    log.value("page", { data: page.data, has_more: page.has_more, first_id: page.first_id, last_id: page.last_id });
    const all: unknown[] = [];
    for await (const model of page) all.push(model);
    log.value("all", all);
    log.value("one", await client.models.retrieve(MODEL));
  },

  async compressed(url, log) {
    const client = log.client(url);
    for (const coding of ["gzip", "deflate", "br"]) {
      const headers = { "x-sim-compress": coding, "accept-encoding": coding };
      log.message(await client.messages.create(ask("[[sim:text words=200]]", LONG), { headers }));
      const stream = await client.messages.create(streamed("[[sim:text words=300]]", LONG), { headers });
      for await (const event of stream) log.event(event);
    }
  },

  async cut(url, log) {
    const client = log.client(url);
    const headers = { "x-sim-cut-at": "900" };
    await log.errors(async () => {
      const stream = await client.messages.create(streamed("[[sim:text words=200]]", LONG), { headers });
      for await (const event of stream) log.event(event);
    });
    await log.errors(async () => {
      log.message(await client.messages.stream(ask("[[sim:text words=201]]"), { headers }).finalMessage());
    });
  },

  async cut_json(url, log) {
    await log.errors(async () => {
      log.message(await log.client(url).messages.create(ask("[[sim:text words=200]]", LONG)));
    });
  },

  async large(url, log) {
    log.message(await log.client(url).messages.create(ask("lorem ipsum dolor sit amet ".repeat(39_000))));
  },

  async unicode(url, log) {
    const client = log.client(url);
    const odd =
      "Zürich, 東京, שלום, 👩‍🚀 e\u0301 \u2028\u2029 \u0000\u0001\u007f\ufeff \\u0041 \"\\/' \u{10ffff}";
    const place: Anthropic.Tool = {
      name: "place",
      input_schema: { type: "object", required: [odd], properties: { [odd]: { const: odd } } },
    };
    const question = ask(`${odd} [[sim:tools turns=1]]`, { system: odd, tools: [place] });
    const answer = log.message(await client.messages.create(question));
    log.message(await client.messages.create({ ...question, messages: [...question.messages, ...turn(answer)] }));
    const stream = client.messages.stream(question);
    for await (const event of stream) log.event(event);
    log.message(await stream.finalMessage());
  },

  async fan_out(url) {
    return agent.run(url);
  },

  async forked(url) {
    const task = "[[sim:fan_out n=4 tool=Agent words=60 | tools turns=3 calls=2 first_ms=40]]";
    return forks.survey(url, task, forks.compacting);
  },

  async forked_cancelled(url) {
    const task = "[[sim:fan_out n=3 tool=Agent words=60 | text words=80 pace_ms=10 first_ms=40]]";
    return forks.survey(url, task, forks.cancelled);
  },

  async forked_retried(url) {
    const task = "[[sim:fan_out n=3 tool=Agent words=60 | text words=20 first_ms=40]]";
    return forks.survey(url, task, forks.whole);
  },

  ...frameworks.programs,
};

async function run({ program, url }: { program: string; url?: string }): Promise<unknown> {
  try {
    const log = new Transcript();
    return { agents: (await programs[program]?.(url, log)) ?? { main: log } };
  } catch (error) {
    return { crash: error instanceof Error ? error.stack : String(error) };
  }
}

console.log(JSON.stringify(Object.keys(programs)));
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await run(JSON.parse(line))));
}
