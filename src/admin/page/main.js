// The live page: keeps what /events says, and draws what has changed once per frame.

import { drawDetail, drawTimeline } from "./detail.js";
import { arrange, fill, h, legend } from "./draw.js";
import { drawCardBody, savedOf, title, whose } from "./fanout.js";
import * as f from "./format.js";
import { FILTERS, Model, newestFirst } from "./model.js";
import { drawMoney } from "./money.js";
import { drawBreaks, drawRequests } from "./lists.js";
import { address, current, withFilter } from "./place.js";
import { save } from "./save.js";
import { Stream } from "./stream.js";
import { REASONS, inWords } from "./words.js";

/** How often requests that run are drawn longer. */
const TICK_MS = 250;
/** The least time between two drawings of sums, or of one fan-out in full. */
const PAUSE_MS = 200;
/** The same of the list of requests, and of cache breaks: a new row moves all others. */
const LIST_PAUSE_MS = 450;
/** How often the time since the start and the last minutes are drawn anew where nothing else happens. */
const CLOCK_MS = 5_000;
/** How far outside the window cards are drawn. */
const MARGIN = "600px";

const $ = (id) => document.getElementById(id);
const model = new Model();
/** What has to be drawn anew: everything, the head, fan-outs, and the time in those that run. */
const changed = { all: false, top: false, fanOuts: new Set(), running: false };
let place = current();
let frame = 0;
let topDrawn = 0;
let detailDrawn = 0;
/** The cards of the list by fan-out, and those in or near the window. */
const cards = new Map();
const near = new Set();

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const id = target.dataset.id;
    if (isIntersecting) {
      near.add(id);
      changed.fanOuts.add(id);
    } else if (near.delete(id)) {
      // What is far away takes its room, and nothing else.
      target.style.minHeight = `${target.offsetHeight}px`;
      target.lastElementChild.replaceChildren();
    }
  }
  schedule();
}, { rootMargin: MARGIN });

const stream = new Stream(
  (event, data) => {
    const what = model.apply(event, data);
    if (what === "all") changed.all = true;
    else for (const id of what) changed.fanOuts.add(id);
    changed.top = true;
    if (what === "all" || what.length > 0) schedule();
  },
  (state, detail) => drawState(state, detail),
);

function schedule() {
  frame ||= requestAnimationFrame(draw);
}

function draw() {
  frame = 0;
  const isTopDue = changed.all || (changed.top && performance.now() - topDrawn >= PAUSE_MS);
  if (isTopDue) drawTop();
  const isLater = place.view === "fan-outs" ? drawList() : drawOther();
  if (isTopDue) {
    drawPlace();
    topDrawn = performance.now();
    changed.top = false;
  }
  changed.all = changed.running = false;
  changed.fanOuts.clear();
  // The next tick draws it.
  if (isLater) changed.fanOuts.add(place.id);
}

// --- above the content ----------------------------------------------------------------------------

function drawTop() {
  const { mode, version, started_ms } = model.settings;
  if (!model.hasData) return;
  $("settings").replaceChildren(
    h("span", { class: "mode" }, f.name(mode)),
    ` ${f.name(version)} · up ${f.age(model.now() - started_ms)}`,
  );
  drawMoney($("money"), model, place.filter);
  drawViews();
  drawFilters();
}

/** Names the view in the title, and says what its lists lack. */
function drawPlace() {
  const names = { "fan-outs": null, requests: "Requests", breaks: "Cache breaks" };
  const fanOut = place.view === "fan-out" ? model.fanOuts.get(place.id) : null;
  const what = fanOut ? title(fanOut).map((node) => node.textContent).join("") : names[place.view];
  document.title = what ? `${what} · forkpoint` : "forkpoint";
  const isList = place.view !== "fan-out" && model.hasData && !model.isWhole;
  const older = "Older requests are no longer in memory: they count in the sums since start, but not here nor in the sums of a filter.";
  fill($("older"), isList ? older : null);
}

function drawViews() {
  const views = [
    ["fan-outs", "Fan-outs", model.fanOuts.size],
    ["requests", "Requests", null],
    ["breaks", "Cache breaks", model.breaks.length],
  ];
  const list = $("views");
  if (list.children.length === 0) {
    list.append(...views.map(([view, label]) => h("li", null, h("a", { "data-view": view }, label, h("span", { class: "count num" })))));
  }
  for (const [i, [view, , count]] of views.entries()) {
    const link = list.children[i].firstElementChild;
    const isHere = place.view === view || (view === "fan-outs" && place.view === "fan-out");
    link.href = address({ view, filter: place.filter });
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    setText(link.lastElementChild, count ? ` ${f.count(count)}` : "");
  }
}

function drawFilters() {
  const form = $("filters");
  // One fan-out is shown whole, whatever the filters are.
  form.hidden = place.view === "fan-out";
  if (form.children.length === 0) {
    for (const name of Object.keys(FILTERS)) {
      const go = (event) => go_to(withFilter(place, name, event.target.value));
      form.append(h("label", null, h("span", null, name), h("select", { name, onchange: go })));
    }
    form.append(h("a", { class: "clear", hidden: true }, "clear"));
    form.addEventListener("submit", (event) => event.preventDefault());
  }
  for (const select of form.querySelectorAll("select")) drawChoices(select);
  const clear = form.lastElementChild;
  clear.hidden = Object.keys(place.filter).length === 0;
  clear.href = address({ ...place, filter: {} });
}

/** Redraws the choices of a filter when they have changed, and never while it is open. */
function drawChoices(select) {
  const chosen = place.filter[select.name] ?? "";
  const values = model.choices(select.name);
  if (chosen && !values.includes(chosen)) values.unshift(chosen);
  const key = values.join("\n");
  if (select.dataset.key !== key && document.activeElement !== select) {
    const labels = { tenant: (value) => model.tenant(value), reason: (value) => (value === "none" ? "forked" : inWords(REASONS, value)) };
    const label = labels[select.name] ?? ((value) => value);
    select.replaceChildren(
      h("option", { value: "" }, "any"),
      ...values.map((value) => h("option", { value }, f.name(label(value), 40))),
    );
    select.dataset.key = key;
  }
  if (select.value !== chosen) select.value = chosen;
}

function drawState(state, detail) {
  const words = {
    live: "live",
    lost: "connection lost, trying again",
    unreadable: "an event could not be shown, starting anew",
    full: "too many pages are open (admin.subscribers), trying again",
    token: "a token is needed",
  };
  const node = $("state");
  node.dataset.state = state;
  setText(node, words[state]);
  if (state === "token") askForToken(detail);
  else document.querySelector("#token")?.remove();
}

function askForToken(wasWrong) {
  document.querySelector("#token")?.remove();
  const input = h("input", { type: "password", name: "token", autocomplete: "off", required: true, id: "token-text" });
  const use = (event) => {
    event.preventDefault();
    stream.useToken(input.value);
  };
  $("money").before(h(
    "form",
    { id: "token", "aria-label": "Token", onsubmit: use },
    h("label", { for: "token-text" }, wasWrong ? "That is not the token of admin.token_file. Token: " : "The token of admin.token_file: "),
    input,
    h("button", null, "Use"),
  ));
  input.focus();
}

// --- the list of fan-outs -------------------------------------------------------------------------

function drawList() {
  const content = $("content");
  if (content.dataset.view !== "fan-outs") {
    clear("fan-outs");
    content.append(legend(), h("div", { id: "list" }), h("p", { id: "empty", class: "empty", hidden: true }));
  }
  for (const id of changed.fanOuts) {
    if (!cards.has(id) || model.fanOuts.has(id)) continue;
    const card = cards.get(id);
    card.remove();
    forgetCard(card);
  }
  const isNew = (fanOut) => fanOut && !cards.has(fanOut.id) && fanOut.matches(place.filter);
  const added = changed.all ? [] : [...changed.fanOuts].map((id) => model.fanOuts.get(id)).filter(isNew);
  if (changed.all || [...changed.fanOuts].some(isMoved)) arrangeCards();
  else added.forEach(addCard);
  for (const id of changed.all ? [...cards.keys()] : changed.fanOuts) drawCard(id);
}

/** Brings the cards into the order of their fan-outs, newest first. */
function arrangeCards() {
  const shown = model.shownFanOuts(place.filter);
  arrange($("list"), shown, (fanOut) => fanOut.id, newCard, { gone: forgetCard });
  for (const { id, time } of shown) cards.get(id).dataset.time = time;
  drawEmpty();
}

/** Adds the card of a fan-out that is new, and touches no other: most events are about one that has its card, or gets none. */
function addCard(fanOut) {
  const card = newCard(fanOut);
  const isBefore = (other) => newestFirst(model.fanOuts.get(other.dataset.id), fanOut) < 0;
  const list = $("list");
  let next = list.firstElementChild;
  while (next && isBefore(next)) next = next.nextElementSibling;
  list.insertBefore(card, next);
  drawEmpty();
}

/** True if a fan-out that has a card is older than was known when that was put into its place. */
const isMoved = (id) => cards.has(id) && model.fanOuts.get(id).time !== Number(cards.get(id).dataset.time);

function drawEmpty() {
  const empty = $("empty");
  empty.hidden = cards.size > 0;
  const why = Object.keys(place.filter).length > 0
    ? "No fan-out matches these filters."
    : "No fan-out has been seen yet. Send requests through the proxy port; sub-agents appear here as they start.";
  setText(empty, model.hasData ? why : "");
}

function forgetCard(card) {
  watcher.unobserve(card);
  cards.delete(card.dataset.id);
  near.delete(card.dataset.id);
}

function newCard(fanOut) {
  const link = h("a", { href: address({ view: "fan-out", id: fanOut.id, filter: place.filter }) });
  const card = h(
    "article",
    { class: "card", "data-id": fanOut.id, "data-key": fanOut.id, "data-time": fanOut.time },
    h("header", null, h("time", { class: "num" }), h("h2", null, link), h("p", { class: "whose muted" }), h("p", { class: "saved" })),
    h("div", { class: "body" }),
  );
  cards.set(fanOut.id, card);
  changed.fanOuts.add(fanOut.id);
  watcher.observe(card);
  return card;
}

function drawCard(id) {
  const [card, fanOut] = [cards.get(id), model.fanOuts.get(id)];
  if (!card || !fanOut) return;
  const [time, heading, whoseIs, saved] = card.firstElementChild.children;
  setText(time, f.moment(fanOut.time, model.now()));
  heading.firstElementChild.replaceChildren(...title(fanOut));
  const { text, detail: figure, kind } = savedOf(fanOut);
  const isRunning = fanOut.isRunning();
  card.classList.toggle("running", isRunning);
  saved.className = `saved ${isRunning ? "unknown" : kind}`;
  saved.replaceChildren(...(isRunning ? ["running"] : [h("b", null, text), ` ${figure}`]));
  whoseIs.replaceChildren(...whose(fanOut, model));
  if (near.has(id)) {
    card.style.minHeight = "";
    drawCardBody(card.lastElementChild, fanOut, model);
  }
}

// --- the other views ------------------------------------------------------------------------------

function clear(view) {
  for (const card of [...cards.values()]) forgetCard(card);
  $("content").replaceChildren();
  $("content").dataset.view = view;
}

/** Returns true if what is shown has to be drawn, and was drawn just now. */
function drawOther() {
  const content = $("content");
  const view = place.view === "fan-out" ? `fan-out ${place.id}` : place.view;
  const isNew = content.dataset.view !== view;
  if (isNew) clear(view);
  if (place.view !== "fan-out") {
    if (!isNew && !changed.all && performance.now() - detailDrawn < LIST_PAUSE_MS) return true;
    detailDrawn = performance.now();
    (place.view === "requests" ? drawRequests : drawBreaks)(content, model, place.filter);
  } else if (isNew || changed.all) drawFanOut(content);
  else if (changed.fanOuts.has(place.id)) {
    if (performance.now() - detailDrawn < PAUSE_MS) return true;
    drawFanOut(content);
  } else if (changed.running && model.fanOuts.get(place.id)?.isRunning()) drawTimeline(content.querySelector(".detail"), model.fanOuts.get(place.id), model);
  return false;
}

function drawFanOut(content) {
  detailDrawn = performance.now();
  const fanOut = model.fanOuts.get(place.id);
  if (content.childElementCount === 0) {
    const said = h("span", { role: "status", class: "bad" });
    const toSave = async () => {
      setText(said, "");
      try {
        await save(model.fanOuts.get(place.id), model);
      } catch {
        setText(said, "It was not saved: forkpoint does not answer.");
      }
    };
    content.append(
      h("p", { class: "tools-line" },
        h("a", { href: address({ view: "fan-outs", filter: place.filter }) }, "All fan-outs"),
        said,
        h("button", { type: "button", onclick: toSave }, "Save this fan-out")),
      h("h2"),
      h("section", { class: "detail" }),
      h("p", { class: "empty" }),
    );
  }
  const [line, heading, section, empty] = content.children;
  line.querySelector("button").hidden = section.hidden = !fanOut;
  fill(heading, fanOut ? title(fanOut) : null);
  fill(empty, !fanOut && model.hasData ? "This fan-out is not known here any more." : null);
  if (fanOut) drawDetail(section, fanOut, model);
}

// --- moving about ---------------------------------------------------------------------------------

function go_to(next) {
  location.hash = address(next);
}

// The address names the view: a link within the page must not replace it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("content").focus();
});

addEventListener("hashchange", () => {
  const before = place.view;
  place = current();
  changed.all = changed.top = true;
  if (before !== place.view) {
    scrollTo(0, 0);
    $("content").focus({ preventScroll: true });
  }
  schedule();
});

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && place.view !== "fan-outs") go_to({ view: "fan-outs", filter: place.filter });
  if ((event.key === "j" || event.key === "k") && place.view === "fan-outs") moveBy(event.key === "j" ? 1 : -1);
});

function moveBy(step) {
  const all = [...$("list").children];
  const here = all.indexOf(document.activeElement?.closest("article"));
  const next = all[Math.min(Math.max(here < 0 ? 0 : here + step, 0), all.length - 1)];
  next?.querySelector("h2 a").focus();
}

setInterval(() => {
  changed.running = place.view === "fan-out" && Boolean(model.fanOuts.get(place.id)?.isRunning());
  for (const id of near) {
    if (model.fanOuts.get(id)?.isRunning()) changed.fanOuts.add(id);
  }
  if (changed.running || changed.top || changed.fanOuts.size > 0) schedule();
}, TICK_MS);

setInterval(() => {
  changed.top = true;
  schedule();
}, CLOCK_MS);

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

addEventListener("online", () => stream.retry());
changed.all = true;
schedule();
stream.run();
