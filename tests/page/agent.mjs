// An agent that fans out, as clients do it by hand: a parent, its children at once, and their results brought back.

const MODEL = "claude-opus-5-5";
const RULES = "Rules of the house, to be followed by everybody, written down once and read by all. ".repeat(300);

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
    return message(text);
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
