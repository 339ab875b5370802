// The lists beside fan-outs: all requests, and cache breaks.

import { arrange, h, heads, promptBars, scrolled } from "./draw.js";
import * as f from "./format.js";
import { isAnswered, isCompared } from "./model.js";
import { address } from "./place.js";
import { CAUSES, ENDINGS, inWords, planInWords } from "./words.js";

const REQUESTS_SHOWN = 100;
const BREAKS_SHOWN = 200;

const cell = (content, kind) => h("td", { class: kind }, content);

/** Draws the latest requests, newest first. */
export function drawRequests(node, model, filter) {
  const shown = model.shownRequests(filter, REQUESTS_SHOWN);
  if (node.childElementCount === 0) {
    const columns = heads("time", "request", "plan", "prompt and cache", "#read", "#written", "#uncached", "#billed", "#saved", "#done");
    const none = "No request has ended yet, or none matches.";
    node.append(h("h2", null, "Requests"), scrolled("Requests", h("table", null, columns, h("tbody"))), h("p", { class: "empty" }, none));
  }
  const [, table, empty] = node.children;
  table.hidden = shown.length === 0;
  empty.hidden = !table.hidden || !model.hasData;
  arrange(table.querySelector("tbody"), shown, (x) => x.id, (x) => requestRow(x, model));
}

function requestRow(x, model) {
  const fork = x.fork ?? x.fanned_out;
  const role = x.role === "child" ? `child${x.child === undefined ? "" : ` ${x.child}`}` : x.fanned_out ? "parent" : x.role;
  const what = fork ? h("a", { href: address({ view: "fan-out", id: fork, filter: {} }) }, role) : role;
  const whose = [x.model, x.client, x.tenant === undefined ? undefined : model.tenant(x.tenant)].filter(Boolean);
  const end = isAnswered(x) && x.ending === "complete" ? f.duration(x.duration_ms) : failure(x);
  return h(
    "tr",
    null,
    cell(f.time(x.time_ms), "num"),
    h("th", { scope: "row" }, what, h("div", { class: "small muted" }, whose.flatMap((part, i) => [i > 0 ? " · " : "", h("bdi", null, f.name(part, 32))]))),
    cell(planInWords(x.plan, x.reason), "words"),
    cell(promptBars(x), "bars"),
    cell(tokens(x.cache_read), "num"),
    cell(tokens(x.cache_read === undefined ? undefined : (x.cache_write_5m ?? 0) + (x.cache_write_1h ?? 0)), "num"),
    cell(tokens(x.uncached), "num"),
    cell(f.usd(x.cost_usd), "num"),
    cell(isCompared(x) ? f.usd(x.as_sent_usd - x.cost_usd) : f.UNKNOWN, "num"),
    cell(end, isAnswered(x) ? "num" : "num bad"),
  );
}

const tokens = (number) => (number === undefined ? "" : f.count(number));

function failure(x) {
  const how = inWords(ENDINGS, x.ending);
  return [x.status === undefined ? "" : String(x.status), how].filter(Boolean).join(", ");
}

/** Draws cache breaks, a sentence each, newest first. */
export function drawBreaks(node, model, filter) {
  const shown = model.shownBreaks(filter, BREAKS_SHOWN);
  if (node.childElementCount === 0) {
    const none = "No cache break was seen, or none matches.";
    node.append(h("h2", null, "Cache breaks"), h("ol", { class: "breaks" }), h("p", { class: "empty" }, none));
  }
  const [, list, empty] = node.children;
  list.hidden = shown.length === 0;
  empty.hidden = !list.hidden || !model.hasData;
  arrange(list, shown, (x) => x.id, (x) => h("li", null, breakSentence(x, model)));
}

function breakSentence(x, model) {
  const lost = x.break;
  const where = lost.at ? [", first at ", h("code", null, f.name(lost.at, 80))] : [];
  const byte = lost.offset === undefined ? "" : `, byte ${f.count(lost.offset)}`;
  const cost = lost.cost_usd === undefined ? " What that cost is unknown." : ` That cost about ${f.usd(lost.cost_usd)}.`;
  const changing = lost.volatile ? [" Text that changes: ", h("code", null, f.name(lost.volatile, 160)), "."] : [];
  const whose = [x.model, x.client, x.tenant === undefined ? undefined : model.tenant(x.tenant)].filter(Boolean);
  return [
    h("time", { class: "num" }, f.time(x.time_ms)),
    h("p", null,
      h("b", { class: "num" }, f.plural(lost.tokens, "cached token")),
      ` ${lost.tokens === 1 ? "was" : "were"} not read because ${inWords(CAUSES, lost.cause)} (${f.name(lost.layer)})`,
      where, byte, ".", cost, changing),
    h("p", { class: "muted small" }, whose.flatMap((part, i) => [i > 0 ? " · " : "", h("bdi", null, f.name(part, 40))])),
  ];
}
