// The lists beside fan-outs: all requests, and cache breaks.

import { arrange, h, heads, promptBars, scrolled } from "./draw.js";
import * as f from "./format.js";
import { layersInWords, senderOf, tokensInWords } from "./fanout.js";
import { isCompared } from "./model.js";
import { address } from "./place.js";
import { CAUSES, VOLATILE, causeInWords, inWords, planInWords } from "./words.js";

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
  // Links keep the filter, and a request of an earlier day has its date.
  const stamp = (x) => [address({ view: "requests", filter }), f.moment(x.time_ms, model.now())];
  arrange(table.querySelector("tbody"), shown, (x) => x.id, (x) => requestRow(x, model, filter), { stamp });
}

function requestRow(x, model, filter) {
  const fork = x.fork ?? x.fanned_out;
  const role = x.role === "child" ? `child${x.child === undefined ? "" : ` ${x.child}`}` : x.fanned_out ? "parent" : x.role;
  const what = fork ? h("a", { href: address({ view: "fan-out", id: fork, filter }) }, role) : role;
  const layers = layersInWords(x);
  const words = [x.cache_read === undefined ? null : tokensInWords(x), ...(layers?.sizes ?? []), layers?.shared];
  return h(
    "tr",
    null,
    cell(f.moment(x.time_ms, model.now()), "num"),
    h("th", { scope: "row" }, what, h("div", { class: "small muted" }, senderOf(x, model, 32))),
    cell(planInWords(x.plan, x.reason), "words"),
    cell([promptBars(x), h("span", { class: "hidden" }, words.filter(Boolean).join(", "))], "bars"),
    cell(tokens(x.cache_read), "num"),
    cell(tokens(x.cache_read === undefined ? undefined : (x.cache_write_5m ?? 0) + (x.cache_write_1h ?? 0)), "num"),
    cell(tokens(x.uncached), "num"),
    cell(f.usd(x.cost_usd), "num"),
    cell(isCompared(x) ? f.usd(x.as_sent_usd - x.cost_usd) : f.UNKNOWN, "num"),
    cell(causeInWords(x) || f.duration(x.duration_ms), x.failed ? "bad" : "num"),
  );
}

const tokens = (number) => (number === undefined ? "" : f.count(number));

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
  const stamp = (x) => [f.moment(x.time_ms, model.now())];
  arrange(list, shown, (x) => x.id, (x) => h("li", null, breakSentence(x, model)), { stamp });
}

/** `clock@system[0],date@tools[1]` in words: what changes from turn to turn, and where. */
function volatileInWords(places) {
  return places.split(",").map((place) => {
    const [kind, at] = place.split("@", 2);
    return [inWords(VOLATILE, kind), at === undefined ? "" : [" in ", h("code", null, f.name(at, 80))]];
  });
}

function breakSentence(x, model) {
  const lost = x.break;
  const where = lost.at ? [", first at ", h("code", null, f.name(lost.at, 80))] : [];
  const byte = lost.offset === undefined ? "" : `, byte ${f.count(lost.offset)}`;
  const cost = lost.cost_usd === undefined ? " What that cost is unknown." : ` That cost about ${f.usd(lost.cost_usd)}.`;
  const changes = lost.volatile ? volatileInWords(lost.volatile).flatMap((one, i) => [i > 0 ? ", " : "", ...one.flat()]) : [];
  const changing = changes.length > 0 ? [" What changes from turn to turn: ", ...changes, "."] : [];
  return [
    h("time", { class: "num" }, f.moment(x.time_ms, model.now())),
    h("p", null,
      h("b", { class: "num" }, f.plural(lost.tokens, "cached token")),
      ` ${lost.tokens === 1 ? "was" : "were"} not read because ${inWords(CAUSES, lost.cause)} (${f.name(lost.layer)})`,
      where, byte, ".", cost, changing),
    h("p", { class: "muted small" }, senderOf(x, model)),
  ];
}
