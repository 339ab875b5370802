// A fan-out: as a card in the list, and in full.

import { h, heads, promptBars, promptLayers, scrolled, timeline } from "./draw.js";
import * as f from "./format.js";
import { childKey, isCompared, savings, sumOf } from "./model.js";
import { ENDINGS, GATE, LEADS, NOTES, PLANS, PLAN_OF_CHILDREN, REASONS, inWords, planInWords } from "./words.js";

/** The rows that a card shows before it says how many more there are. */
const ROWS_MAX = 8;

/** The rows of a fan-out: its parent, its children in order, and the requests that brought results back. */
function rows(fanOut) {
  const all = [];
  if (fanOut.parent) all.push({ label: "parent", kind: "parent", requests: [fanOut.parent] });
  const children = new Map([...fanOut.children].map(([key, turns]) => [key, [...turns]]));
  const returns = [...fanOut.returns];
  for (const u of fanOut.underway.values()) {
    if (u.role !== "child") returns.push(u);
    else if (children.has(childKey(u))) children.get(childKey(u)).push(u);
    else children.set(childKey(u), [u]);
  }
  const size = fanOut.size();
  const ordered = [...children.values()].sort(
    (a, b) => (a[0].child ?? Infinity) - (b[0].child ?? Infinity) || a[0].time_ms - b[0].time_ms,
  );
  ordered.forEach((requests, i) => {
    const number = requests[0].child ?? i + 1;
    all.push({ label: `child ${number}/${Math.max(size, number)}`, kind: "child", requests, leads: requests.some(leads) });
  });
  if (returns.length > 0) all.push({ label: "results", kind: "parent", requests: returns });
  return all;
}

const leads = (x) => LEADS.has(x.gate);

/** The time from the arrival of the first child, or of what there is, to the last end. */
function span(fanOut, now) {
  const children = fanOut.all().filter((x) => x.role === "child" || x.fork === fanOut.id);
  const timed = children.length > 0 ? children : fanOut.all();
  let from = Math.min(...timed.map((x) => x.time_ms));
  let to = Math.max(...timed.map((x) => (x.duration_ms === undefined ? now : x.time_ms + x.duration_ms)));
  if (fanOut.parent) {
    // A long answer of the parent does not squeeze its children: no more of it is drawn than they took.
    const took = Math.max(to - from, 1);
    from = Math.max(fanOut.parent.time_ms, Math.min(from, fanOut.parent.time_ms + fanOut.parent.duration_ms) - took / 3);
    to = Math.max(to, fanOut.parent.time_ms + fanOut.parent.duration_ms);
  }
  return { from, to: Math.max(to, from + 1) };
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
  return `${text[0].toUpperCase()}${text.slice(1)}.${kept(fanOut)}`;
}

/** Says so if older requests of it were forgotten: sums are of what is kept. */
function kept(fanOut) {
  const isWhole = [...fanOut.children.values()].every((turns) => (turns[0].child_turn ?? 1) === 1);
  return isWhole ? "" : " Its first requests are no longer kept; figures are of the others.";
}

/** The savings of the children, never more than their bills show. */
export function savedOf(fanOut) {
  const sums = sumOf(fanOut.turns());
  const { saved, of, known } = savings(sums);
  if (!known) return { text: "saving unknown", detail: "", kind: "unknown", sums };
  const unknown = sums.uncompared > 0 ? ` of ${f.plural(sums.compared, "request")}; ${f.count(sums.uncompared)} unknown` : "";
  const kind = saved < 0 ? "loss" : "gain";
  return { text: `${saved < 0 ? "lost" : "saved"} ${f.percent(Math.abs(saved), of)}`, detail: `${f.usd(saved)}${unknown}`, kind, sums };
}

/** A request in words, for those who do not see the bars. */
function requestInWords(x) {
  const words = [];
  if (x.plan) words.push(planInWords(x.plan, x.reason));
  if (x.held_ms > 0) words.push(`held ${f.duration(x.held_ms)}`);
  if (x.first_byte_ms !== undefined) words.push(`first byte after ${f.duration(x.first_byte_ms)}`);
  words.push(x.duration_ms === undefined ? "still running" : `done after ${f.duration(x.duration_ms)}`);
  if (x.cache_read !== undefined) words.push(tokensInWords(x));
  if (x.ending && inWords(ENDINGS, x.ending)) words.push(inWords(ENDINGS, x.ending));
  return words.join(", ");
}

function tokensInWords(x) {
  const written = (x.cache_write_5m ?? 0) + (x.cache_write_1h ?? 0);
  return `read ${f.count(x.cache_read)}, written ${f.count(written)}, uncached ${f.count(x.uncached)} tokens`;
}

function row({ label, requests, leads }, { from, to }, now) {
  const last = requests.findLast((x) => x.cache_read !== undefined) ?? requests.at(-1);
  const words = requests.map(requestInWords).join("; then ");
  return h(
    "li",
    { class: "row", title: words },
    h("span", { class: "who" }, label, leads ? h("span", { class: "leader" }, "leads") : null),
    timeline(requests, from, to, now),
    promptBars(last),
    h("span", { class: "hidden" }, `: ${words}`),
  );
}

function axis({ from, to }) {
  const ticks = [0, 0.5, 1].map((part) => h("span", null, part === 0 ? "0" : f.duration(part * (to - from))));
  return h("div", { class: "row axis", "aria-hidden": "true" }, h("span"), h("div", { class: "ticks" }, ticks), h("span"));
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
  const parts = [x.model, x.client, x.tenant === undefined ? undefined : model.tenant(x.tenant)];
  return parts.filter(Boolean).flatMap((part, i) => [i > 0 ? " · " : "", h("bdi", null, f.name(part, 40))]);
}

function moneyLine(sums, saved) {
  const bill = (label, dollars, known) =>
    h("span", null, `${label} `, h("b", { class: "num" }, known ? f.usd(dollars) : f.UNKNOWN));
  return h(
    "p",
    { class: "bills" },
    // All three are sums over the same requests.
    bill("billed", sums.compared > 0 ? sums.compared_usd : sums.billed_usd, sums.billed_usd > 0 || sums.compared > 0),
    bill("as sent", sums.as_sent_usd, sums.compared > 0),
    bill("aligned", sums.aligned_usd, sums.compared > 0),
    h("span", null, "hit share ", h("b", { class: "num" }, hitShare(sums))),
    saved.sums.uncompared > 0 && sums.compared > 0
      ? h("span", { class: "muted" }, `${f.plural(sums.uncompared, "request")} not compared (${f.usd(sums.billed_usd - sums.compared_usd)} billed)`)
      : null,
  );
}

export const hitShare = (sums) => f.percent(sums.cache_read, sums.cache_read + sums.cache_write + sums.uncached);

/** The body of a card: sentence, rows, bills. */
export function cardBody(fanOut, model) {
  const now = model.now();
  const time = span(fanOut, now);
  const all = rows(fanOut);
  const shown = all.length > ROWS_MAX + 1 ? all.slice(0, ROWS_MAX) : all;
  const saved = savedOf(fanOut);
  return [
    h("p", { class: "sentence" }, sentence(fanOut)),
    h("ul", { class: "rows" }, shown.map((one) => row(one, time, now))),
    axis(time),
    shown.length < all.length ? h("p", { class: "more muted" }, `and ${f.plural(all.length - shown.length, "more row")}`) : null,
    moneyLine(saved.sums, saved),
  ];
}

const cell = (content, attributes) => h("td", attributes, content);
const number = (content) => cell(content, { class: "num" });

function whoCell(label, x) {
  const turn = x.child_turn === undefined ? "" : ` turn ${x.child_turn}`;
  return h("th", { scope: "row" }, `${label}${turn}`, leads(x) ? h("span", { class: "leader" }, "leads") : null);
}

function requestsTable(all) {
  const body = all.flatMap(({ label, requests }) =>
    requests.map((x) =>
      h(
        "tr",
        null,
        whoCell(label, x),
        cell(x.plan ? planInWords(x.plan, x.reason) : "waits", { class: "words" }),
        cell(x.gate ? inWords(GATE, x.gate) : "", { class: "words" }),
        number(x.held_ms > 0 ? f.duration(x.held_ms) : "0"),
        number(x.first_byte_ms === undefined ? "" : f.duration(x.first_byte_ms)),
        number(x.duration_ms === undefined ? "running" : f.duration(x.duration_ms)),
        number(tokens(x.cache_read)),
        number(tokens(x.cache_write_5m)),
        number(tokens(x.cache_write_1h)),
        number(tokens(x.uncached)),
        number(tokens(x.output)),
        number(x.role === "child" ? f.count(x.reread_tokens ?? 0) : ""),
      ),
    ),
  );
  return scrolled("Requests", h(
    "table",
    null,
    heads("request", "plan", "gate", "#held", "#first byte", "#done", "#read", "#written 5m", "#written 1h", "#uncached", "#output", "#re-read"),
    h("tbody", null, body),
  ));
}

const tokens = (number) => (number === undefined ? "" : f.count(number));

function worldsTable(all) {
  const body = all.flatMap(({ label, requests }) =>
    requests.filter((x) => x.duration_ms !== undefined).map((x) =>
      h(
        "tr",
        null,
        whoCell(label, x),
        number(f.usd(x.cost_usd)),
        number(f.usd(x.as_sent_usd)),
        number(f.usd(x.aligned_usd)),
        number(isCompared(x) ? f.usd(x.as_sent_usd - x.cost_usd) : f.UNKNOWN),
      ),
    ),
  );
  return scrolled("Three worlds", h("table", null, heads("request", "#billed", "#as sent", "#aligned", "#saved"), h("tbody", null, body)));
}

function promptsTable(all) {
  const body = all.flatMap(({ label, requests }) =>
    requests.filter((x) => x.duration_ms !== undefined).map((x) => {
      const layers = promptLayers(x);
      const sizes = layers ? layers.parts.map(([name, size]) => `${name} ${f.bytes(size)}`).join(" · ") : "";
      const shared = layers ? `shared ${f.bytes(layers.shared)} of ${f.bytes(layers.of)}` : "";
      const notes = (x.fork_notes ?? "").split(",").filter(Boolean).map((note) => inWords(NOTES, note));
      return h(
        "tr",
        null,
        whoCell(label, x),
        cell([promptBars(x), h("div", { class: "small" }, sizes), h("div", { class: "small muted" }, shared)], { class: "bars" }),
        cell((x.breakpoints ?? []).map((mark) => h("div", null, h("code", null, mark))), { class: "marks" }),
        cell(hashes(x), { class: "marks" }),
        cell(notes.join(", "), { class: "words" }),
      );
    }),
  );
  return scrolled("Prompts", h(
    "table",
    null,
    heads("request", "prompt and cache", "breakpoints", "hashes", "changes"),
    h("tbody", null, body),
  ));
}

function hashes(x) {
  const named = [["prefix", x.prefix], ["received", x.received], ["sent", x.sent === x.received ? "the same bytes" : x.sent]];
  return named.filter(([, hash]) => hash).map(([label, hash]) => h("div", null, h("span", { class: "muted" }, `${label} `), h("code", null, hash)));
}

function worldBars(sums) {
  const worlds = [["as sent", sums.as_sent_usd, "sent"], ["aligned", sums.aligned_usd, "aligned"], ["billed", sums.compared_usd, "billed"]];
  return h("dl", { class: "figures" }, worlds.map(([label, dollars, kind]) =>
    h("div", { class: kind }, h("dt", null, label), h("dd", { class: "num" }, sums.compared > 0 ? f.usd(dollars) : f.UNKNOWN))));
}

/** A fan-out in full. The same is written into a file that is saved. */
export function detail(fanOut, model) {
  const now = model.now();
  const time = span(fanOut, now);
  const all = rows(fanOut);
  const saved = savedOf(fanOut);
  const reread = fanOut.turns().reduce((sum, x) => sum + (x.reread_tokens ?? 0), 0);
  return [
    h("p", { class: "meta" }, f.dateTime(fanOut.time), " · ", whose(fanOut, model), " · fan-out ", h("code", null, fanOut.id)),
    h("p", { class: "sentence large" }, sentence(fanOut)),
    h("p", { class: `saved ${saved.kind}` }, h("b", null, saved.text), " ", saved.detail),
    worldBars(saved.sums),
    h("p", { class: "muted small" }, "Sums of the children's requests. As sent and aligned are estimates of what the same requests would have cost; billed is what was charged."),
    h("h3", null, "Timeline"),
    h("ul", { class: "rows wide" }, all.map((one) => row(one, time, now))),
    axis(time),
    h("h3", null, "Requests"),
    reread > 0 ? h("p", null, `Its children read again ${f.count(reread)} tokens that their parent had already read.`) : null,
    requestsTable(all),
    h("h3", null, "Three worlds"),
    worldsTable(all),
    h("h3", null, "Prompts"),
    promptsTable(all),
  ];
}
