// The money line: what was billed, what the same would have cost, and what was saved.

import { h, meter, sparkline } from "./draw.js";
import * as f from "./format.js";
import { hitShare } from "./fanout.js";
import { isEmpty, savings } from "./model.js";

const MINUTES = 10;
const SPARK_MINUTES = 60;

/** Draws the money line. With a filter it is about the requests that match and are still in memory. */
export function drawMoney(node, model, filter) {
  const isFiltered = !isEmpty(filter);
  const { total, minutes } = model.historyOf(filter);
  const period = isFiltered ? `by ${f.plural(total.requests, "matching request")} still in memory` : "since start";
  node.replaceChildren(h("div", { class: "block since" }, saved(total, period)), worlds(total), recent(model, minutes), rest(total));
}

function saved(sums, period) {
  const { saved, of, known } = savings(sums);
  const isLoss = known && saved < 0;
  const words = known ? `${isLoss ? "lost" : "saved"} ${period}` : `saving ${period}`;
  const quiet = sums.requests === 0 ? "nothing yet" : f.UNKNOWN;
  return h(
    "div",
    { class: `saved ${known ? (isLoss ? "loss" : "gain") : "unknown"}` },
    h("p", { class: "label" }, words),
    h("p", { class: "big num" }, known ? f.percent(Math.abs(saved), of) : quiet),
    h("p", { class: "num sub" }, known ? f.usd(Math.abs(saved)) : ""),
  );
}

/** The last minutes, and what was saved in each of the last hour. */
function recent(model, minutes) {
  const sums = model.recent(minutes, MINUTES);
  const known = sums.compared > 0;
  const bills = known ? `billed ${f.usd(sums.compared_usd)} · as sent ${f.usd(sums.as_sent_usd)} · aligned ${f.usd(sums.aligned_usd)}` : "";
  return h(
    "div",
    { class: "block recent" },
    saved(sums, `in the last ${MINUTES} minutes`),
    h("div", { class: "hour" }, sparkline(minutes, minuteSaved, model.now(), SPARK_MINUTES), h("p", { class: "label" }, "per minute, last hour")),
    h("p", { class: "label num" }, bills),
  );
}

const minuteSaved = (minute) => minute.as_sent_usd - minute.compared_usd;

/** The three worlds as bars of one scale. */
function worlds(sums) {
  const known = sums.compared > 0;
  const most = Math.max(sums.as_sent_usd, sums.aligned_usd, sums.compared_usd);
  const row = (label, dollars, kind) => [
    h("dt", null, label),
    h("dd", null, meter(dollars, most, kind), h("span", { class: "num", "data-figure": kind }, known ? f.usd(dollars) : f.UNKNOWN)),
  ];
  const left = sums.billed_usd - sums.compared_usd;
  const note = sums.uncompared > 0
    ? `${f.plural(sums.uncompared, "request")} (${f.usd(left)} billed) left out: what they would have cost is unknown.`
    : "";
  return h(
    "div",
    { class: "block worlds" },
    h("dl", null, row("as sent", sums.as_sent_usd, "sent"), row("aligned", sums.aligned_usd, "aligned"), row("billed", sums.compared_usd, "billed")),
    note ? h("p", { class: "label" }, note) : null,
  );
}

function rest(sums) {
  const figure = (label, value, kind) => h("div", null, h("dt", null, label), h("dd", { class: "num", "data-figure": kind }, value));
  return h(
    "dl",
    { class: "block figures" },
    figure("total billed", sums.requests > 0 ? f.usd(sums.billed_usd) : "$0", "all"),
    figure("hit share", sums.cache_read + sums.cache_write + sums.uncached > 0 ? hitShare(sums) : f.UNKNOWN, "hits"),
    figure("requests", f.count(sums.requests), "requests"),
    figure("failed", f.count(sums.failed), "failed"),
  );
}
