// A fan-out: what is said of it in words, its timelines, and its card in the list.

import { arrange, axis, fill, h, lengthen, promptBars, promptLayers, stepOf, timeline } from "./draw.js";
import * as f from "./format.js";
import { childKey, savings, sumOf } from "./model.js";
import { LEADS, PLANS, PLAN_OF_CHILDREN, REASONS, causeInWords, inWords, planInWords } from "./words.js";

/** The rows that a card shows before it says how many more there are. */
const ROWS_MAX = 8;
/** The causes of failures that are named. */
const CAUSES_MAX = 3;

/** The rows of a fan-out: its parent, its children in order, and the requests that brought results back. */
export function rows(fanOut) {
  const all = [];
  if (fanOut.parent) all.push({ key: "parent", label: "parent", requests: [fanOut.parent] });
  const children = new Map([...fanOut.children].map(([key, turns]) => [key, [...turns]]));
  const returns = [...fanOut.returns];
  for (const u of fanOut.underway.values()) {
    if (u.role !== "child") returns.push(u);
    else if (children.has(childKey(u))) children.get(childKey(u)).push(u);
    else children.set(childKey(u), [u]);
  }
  const size = fanOut.size();
  const ordered = [...children].sort(
    ([, [a]], [, [b]]) => (a.child ?? Infinity) - (b.child ?? Infinity) || a.time_ms - b.time_ms,
  );
  ordered.forEach(([key, requests], i) => {
    const number = requests[0].child ?? i + 1;
    all.push({ key, label: `child ${number}/${Math.max(size, number)}`, requests, leads: leads(requests[0]) });
  });
  if (returns.length > 0) all.push({ key: "results", label: "results", requests: returns });
  return all;
}

/** True for the first request of a child if its siblings wait for what that writes: of later turns they know nothing.
    The number of its turn is known when it is answered. */
const leads = (x) => (x.child_turn ?? 1) === 1 && LEADS.has(x.gate);

const isRunning = (x) => x.duration_ms === undefined;

/** The time from the arrival of the first child, or of what there is, which is `zero`, to the last end. While requests run
    it grows by steps, so that those that have ended stay where they are. */
export function span(fanOut, now) {
  const children = fanOut.all().filter((x) => x.role === "child" || x.fork === fanOut.id);
  const timed = children.length > 0 ? children : fanOut.all();
  const zero = Math.min(...timed.map((x) => x.time_ms));
  let from = zero;
  let to = Math.max(zero + 1, ...timed.map((x) => (isRunning(x) ? now : x.time_ms + x.duration_ms)));
  if (fanOut.parent) to = Math.max(to, fanOut.parent.time_ms + fanOut.parent.duration_ms);
  if (fanOut.isRunning()) {
    const step = stepOf(to - zero);
    to = zero + step * Math.ceil((to - zero) / step);
  }
  if (fanOut.parent) {
    // A long answer of the parent does not squeeze its children: no more of it is drawn than a third of what they took.
    from = Math.max(fanOut.parent.time_ms, Math.min(zero, fanOut.parent.time_ms + fanOut.parent.duration_ms) - (to - zero) / 3);
  }
  return { from, to, zero };
}

/** What was done to the children and why, in a sentence or two. */
export function sentence(fanOut) {
  const firsts = [...fanOut.children.values()].map((turns) => turns[0]);
  for (const u of fanOut.underway.values()) {
    if (u.role === "child" && u.plan && !fanOut.children.has(childKey(u))) firsts.push(u);
  }
  if (firsts.length === 0) {
    return fanOut.isRunning() ? "Its children wait: nothing is decided yet." : "None of its children was seen.";
  }
  const groups = new Map();
  for (const x of firsts) {
    const key = `${x.plan}\n${x.reason}`;
    groups.set(key, (groups.get(key) ?? 0) + 1);
  }
  const parts = [...groups].map(([key, number]) => {
    const [plan, reason] = key.split("\n");
    const why = inWords(REASONS, reason);
    const what = groups.size > 1 ? `${number} ${inWords(PLANS, plan).toLowerCase()}` : inWords(PLAN_OF_CHILDREN, plan);
    return why ? `${what}: ${why}` : what;
  });
  const text = parts.join("; ");
  return [`${text[0].toUpperCase()}${text.slice(1)}.`, wouldFork(firsts), failures(fanOut), context(fanOut), kept(fanOut)].filter(Boolean).join(" ");
}

/** How many children would have been forked, where the mode does not let them. */
function wouldFork(firsts) {
  const words = firsts.map((x) => x.would_fork).filter((word) => word !== undefined);
  if (words.length === 0) return "";
  const forked = words.filter((word) => word === "none").length;
  if (forked === words.length) return "In mode fork they would be forked.";
  if (forked > 0) return `In mode fork ${forked} of ${words.length} would be forked.`;
  const why = new Set(words).size === 1 ? `they would not be forked either: ${inWords(REASONS, words[0])}` : `none of ${words.length} would be forked`;
  return `In mode fork ${why}.`;
}

/** Which of its requests failed, by cause. */
function failures(fanOut) {
  const causes = fanOut.all().filter((x) => x.failed).map(causeInWords);
  if (causes.length === 0) return "";
  return `${f.plural(causes.length, "request")} failed: ${[...new Set(causes)].slice(0, CAUSES_MAX).join("; ")}.`;
}

/** The dollars that forked children were billed more than they would have been, aligned. */
export const contextOf = (fanOut) => fanOut.turns().reduce((sum, x) => sum + (x.context_usd ?? 0), 0);

/** What less than this many dollars is, is shown as nothing. */
const USD_MIN = 0.000_05;

/** Says why the bill is above that of aligning, where it is. */
function context(fanOut) {
  const usd = contextOf(fanOut);
  return usd < USD_MIN ? "" : `The parent's context cost ${f.usd(usd)} more than aligning.`;
}

/** Says so if requests of it were forgotten: sums are of what is kept. */
function kept(fanOut) {
  if (fanOut.leftOut > 0) return `${f.plural(fanOut.leftOut, "request")} of it ${fanOut.leftOut === 1 ? "is" : "are"} no longer kept; figures are of the others.`;
  const isWhole = [...fanOut.children.values()].every((turns) => (turns[0].child_turn ?? 1) === 1);
  return isWhole ? "" : "Its first requests are no longer kept; figures are of the others.";
}

/** The savings of the children, never more than their bills show. */
export function savedOf(fanOut) {
  const sums = sumOf(fanOut.turns());
  const { saved, of, known } = savings(sums);
  if (!known) return { text: "saving unknown", detail: "", kind: "unknown", sums };
  const unknown = sums.uncompared > 0 ? ` of ${f.plural(sums.compared, "request")}; ${f.count(sums.uncompared)} unknown` : "";
  const kind = saved < 0 ? "loss" : "gain";
  return { text: `${saved < 0 ? "lost" : "saved"} ${f.percent(Math.abs(saved), of)}`, detail: `${f.usd(Math.abs(saved))}${unknown}`, kind, sums };
}

/** A request in words, for those who do not see the bars. */
export function requestInWords(x) {
  const words = [];
  if (x.plan) words.push(planInWords(x.plan, x.reason));
  if (x.held_ms > 0) words.push(`held ${f.duration(x.held_ms)}`);
  if (x.first_byte_ms !== undefined) words.push(`first byte after ${f.duration(x.first_byte_ms)}`);
  if (isRunning(x)) words.push("still running");
  else if (x.failed) words.push(`failed after ${f.duration(x.duration_ms)}: ${causeInWords(x)}`);
  else words.push([causeInWords(x), `done after ${f.duration(x.duration_ms)}`].filter(Boolean).join(", "));
  if (x.cache_read !== undefined) words.push(tokensInWords(x));
  const layers = layersInWords(x);
  if (layers) words.push(`the prompt: ${layers.sizes.join(", ")}, ${layers.shared}`);
  return words.join(", ");
}

export function tokensInWords(x) {
  const written = (x.cache_write_5m ?? 0) + (x.cache_write_1h ?? 0);
  return `read ${f.count(x.cache_read)}, written ${f.count(written)}, uncached ${f.count(x.uncached)} tokens`;
}

/** The layers of a prompt, and the part of it that others have too. */
export function layersInWords(x) {
  const layers = promptLayers(x);
  if (!layers) return null;
  const sizes = layers.parts.map(([name, size]) => `${name} ${f.bytes(size)}`);
  return { sizes, shared: `shared ${f.bytes(layers.shared)} of ${f.bytes(layers.of)}` };
}

function row({ label, requests, leads }, time, now) {
  const last = requests.findLast((x) => x.cache_read !== undefined) ?? requests.at(-1);
  const words = requests.map(requestInWords).join("; then ");
  return h(
    "li",
    { class: "row", title: words },
    h("span", { class: "who" }, label, leads ? h("span", { class: "leader" }, "leads") : null),
    timeline(requests, time, now),
    promptBars(last),
    h("span", { class: "hidden" }, `: ${words}`),
  );
}

/** Draws timelines into a list, and an axis below it. Rows that have changed are drawn anew, and what runs longer. */
export function drawRows(list, below, shown, time, now) {
  const stamp = ({ label, leads, requests }) => [label, leads, time.from, time.to, ...requests];
  arrange(list, shown, (one) => one.key, (one) => row(one, time, now), { stamp });
  shown.forEach(({ requests }, i) => lengthen(list.children[i].querySelector(".timeline"), requests, time, now));
  fill(below, h("span"), axis(time), h("span"));
}

export function title(fanOut) {
  const tool = fanOut.tool();
  return [
    h("bdi", { class: "tool" }, tool === undefined ? "Fan-out" : f.name(tool)),
    h("span", { class: "size" }, ` × ${f.count(fanOut.size())}`),
  ];
}

/** Whose it is: model, client and tenant. */
export function whose(fanOut, model) {
  const x = fanOut.turns()[0] ?? fanOut.all()[0];
  if (!x) return [];
  return senderOf(x, model);
}

/** The model, client and tenant of a request, as far as they are known. */
export function senderOf(x, model, most = 40) {
  const parts = [x.model, x.client === "none" ? undefined : x.client, x.tenant === undefined ? undefined : model.tenant(x.tenant)];
  return parts.filter(Boolean).flatMap((part, i) => [i > 0 ? " · " : "", h("bdi", null, f.name(part, most))]);
}

/** What the children cost: the same requests in three worlds. */
function bills(sums, context) {
  const bill = (label, dollars) => h("span", null, `${label} `, h("b", { class: "num" }, sums.compared > 0 ? f.usd(dollars) : f.UNKNOWN));
  return [
    h("span", null, "children:"),
    bill("billed", sums.compared_usd),
    bill("as sent", sums.as_sent_usd),
    bill("aligned", sums.aligned_usd),
    context < USD_MIN ? null : bill("of which context", context),
    h("span", null, "hit share ", h("b", { class: "num" }, hitShare(sums))),
    sums.uncompared > 0 && sums.compared > 0 ? h("span", { class: "muted" }, `${f.plural(sums.uncompared, "request")} not compared (${f.usd(sums.billed_usd - sums.compared_usd)} billed)`) : null,
  ];
}

/** Draws the three worlds of the children. */
export function drawWorlds(node, sums, context) {
  const worlds = [["as sent", sums.as_sent_usd, "sent"], ["aligned", sums.aligned_usd, "aligned"], ["billed", sums.compared_usd, "billed"]];
  if (context >= USD_MIN) worlds.push(["of which context", context, "context"]);
  fill(node, worlds.map(([label, dollars, kind]) =>
    h("div", { class: kind }, h("dt", null, label), h("dd", { class: "num" }, sums.compared > 0 ? f.usd(dollars) : f.UNKNOWN))));
}

export const hitShare = (sums) => f.percent(sums.cache_read, sums.cache_read + sums.cache_write + sums.uncached);

/** Draws the body of a card: sentence, rows, bills. */
export function drawCardBody(node, fanOut, model) {
  if (node.childElementCount === 0) {
    node.append(
      h("p", { class: "sentence" }), h("ul", { class: "rows" }), h("div", { class: "row axis", "aria-hidden": "true" }),
      h("p", { class: "more muted" }), h("p", { class: "bills" }),
    );
  }
  const [said, list, below, more, money] = node.children;
  const now = model.now();
  const all = rows(fanOut);
  const shown = all.length > ROWS_MAX + 1 ? all.slice(0, ROWS_MAX) : all;
  fill(said, sentence(fanOut));
  drawRows(list, below, shown, span(fanOut, now), now);
  fill(more, shown.length < all.length ? `and ${f.plural(all.length - shown.length, "more row")}` : null);
  fill(money, bills(savedOf(fanOut).sums, contextOf(fanOut)));
}
