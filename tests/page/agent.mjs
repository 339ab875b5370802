// An agent that fans out, as clients do it by hand: a parent, its children at once, and their results brought back.

const MODEL = "claude-opus-5-5";
const RULES = "Rules of the house, to be followed by everybody, written down once and read by all. ".repeat(300);

const FILES = ["parser", "planner", "writer"].map((name) => Array.from({ length: 400 }, (_, i) => `${name}, line ${i}: what this part does, and why.`).join("\n"));

const tool = (name, ...fields) => ({
  name,
  description: `${name} something, carefully, and say what was found and where. `.repeat(40),
  input_schema: { type: "object", required: fields, properties: Object.fromEntries(fields.map((field) => [field, { type: "string" }])) },
});

export class Agent {
  /** `base` is the proxy's URL; `options` are model, key, mode, tool (the name of the tool that starts agents) and client. */
  constructor(base, options = {}) {
    Object.assign(this, { base, model: MODEL, key: "sk-page", tool: "Agent", client: "claude-cli/2.1.3", ...options });
    const tools = [tool("Read", "path"), tool("Grep", "pattern", "path")];
    this.tools = [tool(this.tool, "description", "prompt"), ...tools];
  }

  /** One call of the Messages API; returns the message. */
  async ask(system, messages, tools = this.tools) {
    const answer = await fetch(`${this.base}/v1/messages`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": this.key,
        "user-agent": this.client,
        ...(this.mode ? { "x-forkpoint-mode": this.mode } : {}),
      },
      body: JSON.stringify({ model: this.model, max_tokens: 2000, stream: true, system: marked(system), tools, messages }),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${answer.status}: ${text}`);
    return { ...message(text), isForked: answer.headers.get("x-forkpoint-plan") === "forked" };
  }

  /** A fan-out with all that follows: `script` is what the simulator's model does in each child. */
  async fanOut(children, script = "tools turns=1", topic = "the code base") {
    const orders = `[[sim:fan_out n=${children} tool=${this.tool} words=60 | ${script}]]`;
    const messages = [{ role: "user", content: `Survey ${topic}. ${orders}` }];
    const answer = await this.ask(`You lead a survey. ${RULES}`, messages);
    const calls = answer.content.filter((block) => block.type === "tool_use");
    const reports = await Promise.all(calls.map((call) => this.child(call)));
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: reports });
    await this.ask(`You lead a survey. ${RULES}`, messages);
  }

  /** A fan-out whose results come with a new order, so that the request that brings them fans out again; its children do not come. */
  async fanOutAgain(children) {
    const order = (topic) => ({ type: "text", text: `Survey ${topic}. [[sim:fan_out n=${children} tool=${this.tool} words=60 | tools turns=1]]` });
    const messages = [{ role: "user", content: [order("the code base")] }];
    const answer = await this.ask(`You lead a survey. ${RULES}`, messages);
    const calls = answer.content.filter((block) => block.type === "tool_use");
    const reports = await Promise.all(calls.map((call) => this.child(call)));
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: [...reports, order("the tests of it")] });
    await this.ask(`You lead a survey. ${RULES}`, messages);
  }

  /** A parent that has read files and fans out again and again. Its children first read them again, unless they are
      forked and have them before them. */
  async session(fanOuts, children, turns = 2) {
    const [calls, results] = [[], []];
    for (const [i, text] of FILES.entries()) {
      calls.push({ type: "tool_use", id: `toolu_file_${i}`, name: "Read", input: { path: `part-${i}` } });
      results.push(result(`toolu_file_${i}`, text));
    }
    const messages = [
      { role: "user", content: "Read the three files." }, { role: "assistant", content: calls }, { role: "user", content: results },
      { role: "assistant", content: [{ type: "text", text: "I have read them." }] },
    ];
    for (let number = 1; number <= fanOuts; number += 1) {
      const orders = `[[sim:fan_out n=${children} tool=${this.tool} words=60 | tools turns=${turns + 1} calls=${FILES.length} tool=Read]]`;
      messages.push({ role: "user", content: `Survey part ${number}. ${orders}` });
      const answer = await this.ask(`You lead a survey. ${RULES}`, messages);
      const spawned = answer.content.filter((block) => block.type === "tool_use");
      const reports = await Promise.all(spawned.map((call) => this.childThatReads(call, turns)));
      messages.push({ role: "assistant", content: answer.content }, { role: "user", content: reports });
      const report = await this.ask(`You lead a survey. ${RULES}`, messages);
      messages.push({ role: "assistant", content: report.content });
    }
  }

  /** A child of a session. */
  async childThatReads(call, turns) {
    const messages = [{ role: "user", content: call.input.prompt }];
    for (let [isFirst, left, scripted] = [true, turns, turns + 1]; ; isFirst = false) {
      const answer = await this.ask(`You survey one part. ${RULES}`, messages);
      const calls = answer.content.filter((block) => block.type === "tool_use");
      if (calls.length === 0) return result(call.id, answer.content.map((block) => block.text ?? "").join(""));
      const readsAgain = isFirst && !answer.isForked;
      const content = calls.map((one, i) => result(one.id, readsAgain ? FILES[i] : "three lines"));
      if (!readsAgain) left -= 1;
      scripted -= 1;
      if (left === 0 && scripted > 0) content.push({ type: "text", text: "That was all there is to read. [[sim:text words=30]]" });
      messages.push({ role: "assistant", content: answer.content }, { role: "user", content });
    }
  }

  /** A conversation of two turns whose system prompt changes in between: what was cached is not read. */
  async breakCache() {
    const messages = [{ role: "user", content: "Read it. [[sim:tools turns=1]]" }];
    const first = await this.ask(`You read. It is one o'clock. ${RULES}`, messages);
    const results = first.content.filter((block) => block.type === "tool_use").map((call) => result(call.id, "three lines"));
    messages.push({ role: "assistant", content: first.content }, { role: "user", content: results });
    await this.ask(`You read. It is two o'clock. ${RULES}`, messages);
  }

  async child(call) {
    const messages = [{ role: "user", content: call.input.prompt }];
    for (;;) {
      const answer = await this.ask(`You survey one part. ${RULES}`, messages);
      const calls = answer.content.filter((block) => block.type === "tool_use");
      if (calls.length === 0) return result(call.id, answer.content.map((block) => block.text ?? "").join(""));
      messages.push({ role: "assistant", content: answer.content }, { role: "user", content: calls.map((one) => result(one.id, "three lines")) });
    }
  }
}

const result = (id, content) => ({ type: "tool_result", tool_use_id: id, content });

const marked = (text) => [{ type: "text", text, cache_control: { type: "ephemeral" } }];

/** Puts a message together from the events of its stream. */
function message(stream) {
  const content = [];
  for (const event of stream.split("\n\n")) {
    const line = event.split("\n").find((line) => line.startsWith("data: "));
    const data = line ? JSON.parse(line.slice(6)) : {};
    if (data.type === "content_block_start") content[data.index] = { ...data.content_block, json: "" };
    if (data.delta?.type === "text_delta") content[data.index].text += data.delta.text;
    if (data.delta?.type === "input_json_delta") content[data.index].json += data.delta.partial_json;
  }
  for (const block of content) {
    if (block.type === "tool_use") block.input = JSON.parse(block.json || "{}");
    delete block.json;
  }
  return { content };
}
