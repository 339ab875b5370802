// Agents whose children are worth putting on their parent's prefix: a large parent, and children that bring a long
// manual of their own and share its tools. Each says who it is in a header, so that the simulator's journal tells
// them apart.

import type Anthropic from "@anthropic-ai/sdk";

import { CHILD_TOOLS, MODEL, TOOLS } from "./agent.js";
import { Transcript } from "./transcript.js";

type Message = Anthropic.MessageParam;
type Result = Anthropic.ToolResultBlockParam;
// Works on a directive and answers the report.
type Child = (log: Transcript, url: string | undefined, name: string, directive: string) => Promise<string>;

const SYSTEM =
  "You lead a survey of a code base. " + "Rules of the house, to be followed by everybody. ".repeat(200);
const PROJECT = "Here is the whole project. " + "A line of the project, as it stands in its file. ".repeat(800);
const CHILD_SYSTEM = "You are a surveyor. " + "A page of the manual, to be known by every surveyor. ".repeat(600);

// The parent, and one child for each of its calls, all at once.
export async function survey(url: string | undefined, task: string, child: Child): Promise<Record<string, Transcript>> {
  const parent = new Transcript();
  const logs: Record<string, Transcript> = { parent };
  const client = parent.client(url);
  const messages: Message[] = [
    { role: "user", content: PROJECT },
    { role: "assistant", content: "I have read it." },
    { role: "user", content: `Survey it. ${task}` },
  ];
  for (;;) {
    const params = { model: MODEL, max_tokens: 8000, system: SYSTEM, tools: TOOLS, messages };
    const stream = client.messages.stream(params, by("parent"));
    const answer = parent.message(await stream.finalMessage());
    const calls = answer.content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) return logs;
    const reports = await Promise.all(
      calls.map(async (call, index): Promise<Result> => {
        const name = `child ${index + 1}`;
        const { prompt } = call.input as { prompt: string };
        const report = await child((logs[name] = new Transcript()), url, name, prompt);
        return { type: "tool_result", tool_use_id: call.id, content: report };
      }),
    );
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: reports });
  }
}

function by(name: string): Anthropic.RequestOptions {
  return { headers: { "x-agent": name } };
}

// The parameters of a child's call.
function request(messages: Message[]): Anthropic.MessageCreateParamsNonStreaming {
  return { model: MODEL, max_tokens: 2000, system: CHILD_SYSTEM, tools: CHILD_TOOLS, messages };
}

function textOf(answer: Anthropic.Message): string {
  return answer.content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

// Streams, runs tools as long as they are called, then keeps its last turn alone and goes on from there.
export const compacting: Child = async (log, url, name, directive) => {
  const client = log.client(url);
  const first: Message = { role: "user", content: directive };
  const turn = async (messages: Message[]) =>
    log.message(await client.messages.stream(request(messages), by(name)).finalMessage());
  const messages: Message[] = [first];
  let last: { called: Message; found: Result[] } | undefined;
  for (;;) {
    const answer = await turn(messages);
    const calls = answer.content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) break;
    const called: Message = { role: "assistant", content: answer.content };
    const found = calls.map(({ id }): Result => ({ type: "tool_result", tool_use_id: id, content: "three lines" }));
    messages.push(called, { role: "user", content: found });
    last = { called, found };
  }
  if (!last) throw new Error("no tool was called");
  const summary = { type: "text" as const, text: "So far: three files read. Sum it up. [[sim:text words=25]]" };
  return textOf(await turn([first, last.called, { role: "user", content: [...last.found, summary] }]));
};

// Streams. The first child leaves after five events, and asks once more when it has.
export const cancelled: Child = async (log, url, name, directive) => {
  const client = log.client(url);
  const asked = request([{ role: "user", content: directive }]);
  if (name === "child 1") {
    let seen = 0;
    for await (const event of client.messages.stream(asked, by(name))) {
      log.event(event);
      seen += 1;
      if (seen === 5) break;
    }
  }
  return textOf(log.message(await client.messages.stream(asked, by(name)).finalMessage()));
};

// One answer in one piece; what the upstream refuses for a while, the SDK tries again.
export const whole: Child = async (log, url, name, directive) => {
  const asked = request([{ role: "user", content: directive }]);
  return textOf(log.message(await log.client(url).messages.create(asked, by(name))));
};
