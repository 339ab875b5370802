// A hand-written agent: the parent calls the Agent tool five times, and five sub-agents work at once.
//
// A sub-agent has a short system prompt of its own, a part of the parent's tools, and its directive as the
// user's message.

import type Anthropic from "@anthropic-ai/sdk";

import { Transcript } from "./transcript.js";

type Message = Anthropic.MessageParam;
type Result = Anthropic.ToolResultBlockParam;

export const MODEL = "claude-opus-5-5";
const SYSTEM =
  "You lead a survey of a code base. " + "Rules of the house, to be followed by everybody. ".repeat(200);
const CHILD_SYSTEM = "You are a surveyor. Report what you find in one paragraph.";

function tool(name: string, ...fields: string[]): Anthropic.Tool {
  const properties = Object.fromEntries(fields.map((field) => [field, { type: "string" }]));
  return { name, description: `${name} something.`, input_schema: { type: "object", required: fields, properties } };
}

export const TOOLS = [tool("Agent", "description", "prompt"), tool("Read", "path"), tool("Grep", "pattern", "path")];
export const CHILD_TOOLS = TOOLS.slice(1);

export async function run(url: string | undefined): Promise<Record<string, Transcript>> {
  const parent = new Transcript();
  const logs: Record<string, Transcript> = { parent };
  const client = parent.client(url);
  const task = "Survey it. [[sim:fan_out n=5 tool=Agent words=60 | tools turns=2 first_ms=60]]";
  const messages: Message[] = [{ role: "user", content: task }];
  for (;;) {
    const stream = client.messages.stream({
      model: MODEL,
      max_tokens: 4000,
      system: [{ type: "text", text: SYSTEM, cache_control: { type: "ephemeral" } }],
      tools: TOOLS,
      messages,
    });
    const answer = parent.message(await stream.finalMessage());
    const calls = answer.content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) return logs;
    const children = calls.map((call, index) => child(url, (logs[`child ${index + 1}`] = new Transcript()), call));
    const reports = await Promise.all(children);
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: reports });
  }
}

// Works on one directive until the model has nothing more to call, and returns the tool_result.
async function child(url: string | undefined, log: Transcript, call: Anthropic.ToolUseBlock): Promise<Result> {
  const { prompt } = call.input as { prompt: string };
  const messages: Message[] = [{ role: "user", content: prompt }];
  const client = log.client(url);
  for (;;) {
    const answer = log.message(
      await client.messages.create({
        model: MODEL,
        max_tokens: 2000,
        system: CHILD_SYSTEM,
        tools: CHILD_TOOLS,
        messages,
      }),
    );
    const calls = answer.content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) {
      const report = answer.content.map((block) => (block.type === "text" ? block.text : "")).join("");
      return { type: "tool_result", tool_use_id: call.id, content: report };
    }
    const found = calls.map(({ id }): Result => ({ type: "tool_result", tool_use_id: id, content: "three lines" }));
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: found });
  }
}
