// Programs in which a framework does the talking: the Vercel AI SDK, and the SDK's own loops, which hold their
// conversations on the server. What is compared is the last text (see ../frameworks.py).

import { createAnthropic } from "@ai-sdk/anthropic";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { isStepCount, streamText, tool } from "ai";
import { z } from "zod";

import { KEY, Transcript } from "./transcript.js";

type Program = (url: string | undefined, log: Transcript) => Promise<void>;

const MODEL = "claude-sonnet-4-6";
const BOUND = "claude-opus-5-5";
const HANDBOOK = "The handbook, to be followed by everybody. ".repeat(300);
const MANUAL = "A page of the surveyor's manual. ".repeat(300);
const STEPS = 12;

// Sub-agents as a tool of their parent, which is how the AI SDK documents them. Its base URL ends with the version of the
// API; without one it finds that in the environment.
async function ai_sdk(url: string | undefined, log: Transcript): Promise<void> {
  const base = url === undefined ? {} : { baseURL: `${url}/v1` };
  const model = createAnthropic({ apiKey: KEY, fetch: log.fetch, ...base })(MODEL);
  const read = tool({
    description: "Reads a file.",
    inputSchema: z.object({ path: z.string() }),
    execute: async ({ path }) => `three lines of ${path}`,
  });
  const agent = tool({
    description: "Starts a surveyor.",
    inputSchema: z.object({ prompt: z.string() }),
    execute: async ({ prompt }) => {
      const survey = { model, system: MANUAL, prompt, tools: { read }, stopWhen: isStepCount(STEPS) };
      const text = await streamText(survey).text;
      log.value("report", text);
      return text;
    },
  });
  const lead = streamText({
    model,
    system: HANDBOOK,
    prompt: "Survey it. [[sim:fan_out n=3 tool=agent field=prompt words=60 | tools turns=2 calls=1 tool=read]]",
    tools: { agent, read },
    stopWhen: isStepCount(STEPS),
    onError: ({ error }) => log.value("error", String(error)),
  });
  log.value("text", await lead.text);
}

type Own = { thread?: false; model?: string; thinking?: { type: "adaptive" } };

// Every agent has a runner of its own: the parent, and each of its children. They hold their conversations on the server,
// unless `thread` says that each turn brings the whole.
async function run_agents(url: string | undefined, log: Transcript, own: Own, first?: string): Promise<void> {
  const client = log.client(url);
  const params = { model: MODEL, max_tokens: 1000, ...own };
  const agent = betaTool({
    name: "agent",
    description: "Starts a surveyor.",
    inputSchema: { type: "object", required: ["prompt"], properties: { prompt: { type: "string" } } },
    run: async ({ prompt }) => {
      const system = [{ type: "text" as const, text: MANUAL }];
      const survey = { ...params, system, tools: [search], messages: [said(prompt)] };
      const report = text(await client.beta.messages.toolRunner(survey).runUntilDone());
      log.value("report", report);
      return report;
    },
  });
  const task = "[[sim:fan_out n=3 tool=agent field=prompt words=60 | tools turns=3 calls=1 tool=search]]";
  const fields = { ...params, system: [{ type: "text" as const, text: HANDBOOK }], tools: [agent, search] };
  if (first === undefined) {
    const lead = client.beta.messages.toolRunner({ ...fields, messages: [said(`Survey it. ${task}`)] });
    log.value("text", text(await lead.runUntilDone()));
    return;
  }
  const { thread: _, ...held } = fields;
  const thread = client.beta.messages.thread(held);
  thread.append(said(first));
  await thread.toolRunner().runUntilDone();
  thread.append(said(`Survey it. ${task}`));
  log.value("text", text(await thread.toolRunner().runUntilDone()));
}

function said(text: string): { role: "user"; content: { type: "text"; text: string }[] } {
  return { role: "user", content: [{ type: "text", text }] };
}

async function runner_agents(url: string | undefined, log: Transcript): Promise<void> {
  await run_agents(url, log, {});
}

/** As `runner_agents`, before an upstream that finds the fields of a continue changed. */
async function refused_agents(url: string | undefined, log: Transcript): Promise<void> {
  await run_agents(url, log, {});
}

// The parent looks something up before it starts its agents, so that they are the answer to a continue. Its model binds what
// it thinks to what came before.
async function late_agents(url: string | undefined, log: Transcript): Promise<void> {
  const first = "Look it up. [[sim:tools turns=1 calls=1 tool=search thinking=20]]";
  await run_agents(url, log, { model: BOUND, thinking: { type: "adaptive" } }, first);
}

async function whole_agents(url: string | undefined, log: Transcript): Promise<void> {
  await run_agents(url, log, { thread: false });
}

function text(message: { content: { type: string; text?: string }[] }): string {
  return message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

const search = betaTool({
  name: "search",
  description: "Searches the archive.",
  inputSchema: { type: "object", required: ["query"], properties: { query: { type: "string" } } },
  run: ({ query }) => `found ${query.length} letters`,
});

async function tool_runner(url: string | undefined, log: Transcript): Promise<void> {
  const runner = log.client(url).beta.messages.toolRunner({
    model: MODEL,
    max_tokens: 1000,
    system: HANDBOOK,
    tools: [search],
    messages: [{ role: "user", content: "Look it up. [[sim:tools turns=6 calls=2 tool=search]]" }],
  });
  log.value("text", text(await runner.runUntilDone()));
}

// One conversation, every second turn of which is streamed.
async function held_thread(url: string | undefined, log: Transcript): Promise<void> {
  const system = [{ type: "text" as const, text: HANDBOOK }];
  const thread = log.client(url).beta.messages.thread({ model: MODEL, max_tokens: 1000, system });
  const texts: string[] = [];
  for (const number of [1, 2, 3, 4, 5, 6]) {
    const question = said(`Question ${number}. [[sim:text words=20]]`);
    const answer = number % 2 === 0 ? await thread.stream(question).finalMessage() : await thread.send(question);
    texts.push(text(answer));
  }
  log.value("text", texts.join("\n"));
}

/** As `held_thread`, before an upstream that finds the fields of a continue changed. */
async function refused_thread(url: string | undefined, log: Transcript): Promise<void> {
  await held_thread(url, log);
}

export const programs: Record<string, Program> = {
  ai_sdk,
  tool_runner,
  held_thread,
  refused_thread,
  runner_agents,
  whole_agents,
  late_agents,
  refused_agents,
};
