// A fan-out in full: all that is known of its requests. The same is written into a file that is saved.

import { arrange, fill, h, heads, legend, promptBars, scrolled } from "./draw.js";
import { contextOf, drawRows, drawWorlds, layersInWords, rows, savedOf, sentence, span, whose } from "./fanout.js";
import * as f from "./format.js";
import { isCompared } from "./model.js";
import { GATE, LEADS, NOTES, causeInWords, inWords, planInWords } from "./words.js";

const SUMS = "Sums of the children's requests. As sent and aligned are estimates of what the same requests would have cost; billed is what was charged.";

const COLUMNS = [
  "request", "plan", "gate", "ended", "#held", "#first byte", "#done", "#read", "#written 5m", "#written 1h", "#uncached", "#output", "#re-read",
];

const table = (label, ...columns) => scrolled(label, h("table", null, heads(...columns), h("tbody")));

const empty = (kind, tag = "p") => h(tag, { class: kind });

/** The parts of it, with nothing in them yet. */
function parts() {
  return [
    empty("meta"),
    empty("sentence large"),
    empty("saved"),
    empty("figures", "dl"),
    h("p", { class: "muted small" }, SUMS),
    h("h3", null, "Timeline"),
    h("ul", { class: "rows wide" }),
    h("div", { class: "row axis", "aria-hidden": "true" }),
    legend(),
    h("h3", null, "Requests"),
    empty("reread"),
    table("Requests", ...COLUMNS),
    h("h3", null, "Three worlds"),
    table("Three worlds", "request", "#billed", "#as sent", "#aligned", "#saved"),
    h("h3", null, "Prompts"),
    table("Prompts", "request", "prompt and cache", "breakpoints", "hashes", "changes"),
  ];
}

/** Draws it into a node. What has not changed is not touched: a selection in it stays. */
export function drawDetail(node, fanOut, model) {
  if (node.childElementCount === 0) node.append(...parts());
  const part = (selector) => node.querySelector(`:scope > ${selector}`);
  const { text, detail, kind, sums } = savedOf(fanOut);
  fill(part(".meta"), f.dateTime(fanOut.time), " · ", whose(fanOut, model), " · fan-out ", h("code", null, fanOut.id));
  fill(part(".sentence"), sentence(fanOut));
  part(".saved").className = `saved ${kind}`;
  fill(part(".saved"), h("b", null, text), " ", detail);
  drawWorlds(part(".figures"), sums, contextOf(fanOut));
  drawTimeline(node, fanOut, model);
  const again = fanOut.turns().reduce((sum, x) => sum + (x.reread_tokens ?? 0), 0);
  fill(part(".reread"), again > 0 ? `Its children read again ${f.count(again)} tokens that their parent had already read.` : null);
  const all = rows(fanOut).flatMap(({ label, leads, requests }) => requests.map((x, i) => ({ label, x, leads: leads && i === 0 })));
  const ended = all.filter(({ x }) => x.duration_ms !== undefined);
  for (const [name, shown, make] of [["Requests", all, requestRow], ["Three worlds", ended, worldRow], ["Prompts", ended, promptRow]]) {
    const stamp = ({ label, x, leads }) => [label, x, leads];
    arrange(part(`[aria-label="${name}"]`).querySelector("tbody"), shown, ({ x }) => (x.n === undefined ? `#${x.id}` : x.n), make, { stamp });
  }
}

/** Draws the rows that run longer, and the axis. */
export function drawTimeline(node, fanOut, model) {
  const now = model.now();
  drawRows(node.querySelector(":scope > .rows"), node.querySelector(":scope > .axis"), rows(fanOut), span(fanOut, now), now);
}

const cell = (content, attributes) => h("td", attributes, content);
const number = (content) => cell(content, { class: "num" });

function whoCell({ label, x, leads }) {
  const turn = x.child_turn === undefined ? "" : ` turn ${x.child_turn}`;
  return h("th", { scope: "row" }, `${label}${turn}`, leads ? h("span", { class: "leader" }, "leads") : null);
}

/** How it ended, or that it has not. */
function ended(x) {
  if (x.duration_ms === undefined) return cell("running");
  return cell(causeInWords(x) || f.name(x.stop_reason ?? "answered"), { class: x.failed ? "words bad" : "words" });
}

function requestRow(one) {
  const { x } = one;
  return h(
    "tr",
    null,
    whoCell(one),
    cell(x.plan ? planInWords(x.plan, x.reason) : "waits", { class: "words" }),
    cell(gateInWords(one), { class: "words" }),
    ended(x),
    number(x.held_ms > 0 ? f.duration(x.held_ms) : "0"),
    number(x.first_byte_ms === undefined ? "" : f.duration(x.first_byte_ms)),
    number(x.duration_ms === undefined ? "" : f.duration(x.duration_ms)),
    number(tokens(x.cache_read)),
    number(tokens(x.cache_write_5m)),
    number(tokens(x.cache_write_1h)),
    number(tokens(x.uncached)),
    number(tokens(x.output)),
    number(x.role === "child" ? f.count(x.reread_tokens ?? 0) : ""),
  );
}

/** What became of it at the gate. A later turn of a child has no siblings that wait. */
function gateInWords({ x, leads }) {
  if (x.gate === undefined) return "";
  return LEADS.has(x.gate) && !leads ? "did not wait" : inWords(GATE, x.gate);
}

const tokens = (number) => (number === undefined ? "" : f.count(number));

function worldRow(one) {
  const { x } = one;
  return h(
    "tr",
    null,
    whoCell(one),
    number(f.usd(x.cost_usd)),
    number(f.usd(x.as_sent_usd)),
    number(f.usd(x.aligned_usd)),
    number(isCompared(x) ? f.usd(x.as_sent_usd - x.cost_usd) : f.UNKNOWN),
  );
}

function promptRow(one) {
  const { x } = one;
  const layers = layersInWords(x);
  const notes = (x.fork_notes ?? "").split(",").filter(Boolean).map((note) => inWords(NOTES, note));
  return h(
    "tr",
    null,
    whoCell(one),
    cell([promptBars(x), h("div", { class: "small" }, layers?.sizes.join(" · ")), h("div", { class: "small muted" }, layers?.shared)], { class: "bars" }),
    cell((x.breakpoints ?? []).map((mark) => h("div", null, h("code", null, mark))), { class: "marks" }),
    cell(hashes(x), { class: "marks" }),
    cell(notes.join(", "), { class: "words" }),
  );
}

function hashes(x) {
  const named = [["prefix", x.prefix], ["received", x.received], ["sent", x.sent === x.received ? "the same bytes" : x.sent]];
  return named.filter(([, hash]) => hash).map(([label, hash]) => h("div", null, h("span", { class: "muted" }, `${label} `), h("code", null, hash)));
}
