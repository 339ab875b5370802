// Elements and hand-made SVG. Text only ever becomes text.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(2)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** An element: `h("p", { class: "x" }, "text", child)`. */
export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

const share = (part, of) => `${((100 * part) / of).toFixed(3)}%`;

const rect = (from, to, of, attributes) =>
  svg("rect", { x: share(from, of), width: share(Math.max(to - from, 0), of), ...attributes });

/** A drawing that says nothing that is not also said in words beside it. */
const drawing = (kind, height, ...children) =>
  svg("svg", { class: kind, width: "100%", height, "aria-hidden": "true", focusable: "false" }, ...children);

/** The requests of one row on the time from `from` to `to`: held, waiting for the first byte, answering. */
export function timeline(requests, time, now) {
  const [ended, running] = [svg("g"), svg("g", { class: "running" })];
  ended.append(...bars(requests.filter((x) => x.duration_ms !== undefined), time, now));
  const drawn = drawing("timeline", 14, ended, running);
  lengthen(drawn, requests, time, now);
  return drawn;
}

/** Draws those of a timeline that run as long as they are now, and touches no other. */
export function lengthen(drawn, requests, time, now) {
  const running = requests.filter((x) => x.duration_ms === undefined);
  if (running.length > 0) drawn.querySelector(".running").replaceChildren(...bars(running, time, now));
}

/** The parts of a drawing's width that a bar is placed by. */
const UNITS = 10_000;

/** All bars of a kind are one path: a fan-out has thousands of them. */
function bars(requests, { from, to }, now) {
  const scale = UNITS / Math.max(to - from, 1);
  // What lies outside is not drawn: of a parent only the end of its answer is of interest. A mark says so.
  const place = (at) => Math.round(Math.min(Math.max((at - from) * scale, 0), UNITS));
  const paths = { held: "", asked: "", answering: "", came: "" };
  const marks = [];
  for (const x of requests) {
    const came = x.time_ms;
    const end = x.duration_ms === undefined ? now : came + x.duration_ms;
    const sent = x.sent_ms === undefined ? end : came + x.sent_ms;
    const first = x.first_byte_ms === undefined ? end : came + x.first_byte_ms;
    for (const [kind, since, until] of [["held", came, Math.min(sent, end)], ["asked", sent, Math.min(first, end)], ["answering", first, end]]) {
      const [a, b] = [place(since), place(until)];
      if (b > a) paths[kind] += `M${a} 3H${b}V11H${a}Z`;
    }
    // A request that took no visible time is still there.
    if (came >= from) paths.came += `M${place(came)} 1V13`;
    else marks.push(svg("path", { d: "M-2 3 L-7 7 L-2 11 Z", class: "clipped" }));
    if (x.failed) marks.push(svg("circle", { cx: share(place(end), UNITS), cy: 7, r: 4, class: "failed" }));
  }
  const shapes = Object.entries(paths).filter(([, d]) => d !== "").map(([kind, d]) => svg("path", { d, class: kind }));
  return [svg("svg", { viewBox: `0 0 ${UNITS} 14`, width: "100%", height: 14, preserveAspectRatio: "none" }, shapes), ...marks];
}

/** What a prompt is made of, how much of it is shared, and what the cache did: three strips of the same width. */
export function promptBars(x) {
  const strips = [];
  const strip = (y, height, parts) => {
    const of = parts.reduce((sum, [, size]) => sum + size, 0);
    if (!(of > 0)) return;
    let from = 0;
    for (const [kind, size] of parts) {
      if (size > 0) strips.push(rect(from, from + size, of, { y, height, class: kind }));
      from += size;
    }
  };
  const layers = promptLayers(x);
  if (layers) {
    strip(0, 6, layers.parts);
    strip(7, 2, [["shared", layers.shared], ["own-part", layers.of - layers.shared]]);
  }
  strip(10, 6, cacheParts(x));
  return drawing("prompt", 16, ...strips);
}

/** The layers of a prompt in bytes: what messages share with others is history, the rest is its own. */
export function promptLayers(x) {
  if (!x.layer_bytes) return null;
  const [tools, system, messages] = x.layer_bytes;
  const of = tools + system + messages;
  const shared = Math.min(x.shared_bytes ?? 0, of);
  const history = Math.max(Math.min(shared - tools - system, messages), 0);
  const parts = [["tools", tools], ["system", system], ["history", history], ["own", messages - history]];
  return { parts, shared, of };
}

export const cacheParts = (x) => [
  ["read", x.cache_read ?? 0],
  ["written", (x.cache_write_5m ?? 0) + (x.cache_write_1h ?? 0)],
  ["uncached", x.uncached ?? 0],
];

/** A bar of a part of a whole. */
export function meter(part, of, kind) {
  const shapes = [svg("rect", { width: "100%", height: 6, class: "ground" })];
  if (of > 0) shapes.push(rect(0, Math.max(part, 0), of, { height: 6, class: kind }));
  return drawing("meter", 6, ...shapes);
}

/** The milliseconds between two marks of an axis. */
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400]
  .map((seconds) => 1000 * seconds);

/** The least step by which an axis of this length has at most so many marks. */
export const stepOf = (length, most = 5) => STEPS.find((step) => length / step <= most) ?? Math.ceil(length / most / 86_400_000) * 86_400_000;

function mark(ms) {
  if (ms === 0) return "0";
  if (ms < 1000) return `${ms} ms`;
  return ms < 60_000 ? `${ms / 1000} s` : ms < 3_600_000 ? `${ms / 60_000} min` : `${ms / 3_600_000} h`;
}

/** The axis below timelines. It counts from `zero`. */
export function axis({ from, to, zero }) {
  const step = stepOf(to - zero);
  const shapes = [svg("line", { x1: "0", x2: "100%", y1: 0.5, y2: 0.5, class: "axis" })];
  for (let ms = 0; ms <= to - zero; ms += step) {
    const place = (zero + ms - from) / (to - from);
    const anchor = place > 0.97 ? "end" : place < 0.03 ? "start" : "middle";
    shapes.push(
      svg("line", { x1: share(place, 1), x2: share(place, 1), y1: 0, y2: 4, class: "axis" }),
      svg("text", { x: share(place, 1), y: 15, "text-anchor": anchor }, mark(ms)),
    );
  }
  return drawing("ticks", 18, ...shapes);
}

/** What the colours mean. */
export function legend() {
  const key = (kind, label) => h("span", null, h("i", { class: `key ${kind}` }), label);
  const group = (...keys) => h("span", { class: "group" }, keys);
  return h(
    "p",
    { class: "legend muted small", "aria-hidden": "true" },
    group(key("held", "held"), key("asked", "waiting for the first byte"), key("answering", "answering"), key("failed", "failed")),
    group(key("tools", "tools"), key("system", "system"), key("history", "history"), key("own", "own part"), key("shared", "shared")),
    group(key("read", "read"), key("written", "written"), key("uncached", "uncached")),
  );
}

/** What was saved in each minute, losses below the line. */
export function sparkline(minutes, value, now, most) {
  const first = now - (now % 60_000) - (most - 1) * 60_000;
  const shown = minutes.filter((minute) => minute.time_ms >= first);
  const values = shown.map((minute) => value(minute));
  const largest = Math.max(...values.map(Math.abs), 0);
  const shapes = [svg("line", { x1: "0", x2: "100%", y1: 24.5, y2: 24.5, class: "axis" })];
  shown.forEach((minute, i) => {
    if (values[i] === 0) return;
    const height = Math.max((22 * Math.abs(values[i])) / largest, 1);
    shapes.push(svg("rect", {
      x: share((minute.time_ms - first) / 60_000, most),
      width: share(0.7, most),
      y: values[i] > 0 ? 24 - height : 25,
      height: values[i] > 0 ? height : Math.min(height, 8),
      class: values[i] > 0 ? "gain" : "loss",
    }));
  });
  return drawing("spark", 34, ...shapes);
}

/** What children were made of. */
const stamps = new WeakMap();

const isSame = (a, b) => a.length === b.length && a.every((one, i) => one === b[i]);

/** Brings the children of a node into the order of items, by key. Those that are in place are not touched, unless what
    they are made of, the values of their stamp, has changed: then they are made anew. */
export function arrange(parent, items, key, make, { gone = () => {}, stamp = () => [] } = {}) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = new Set(items.map((item) => String(key(item))));
  for (const [name, child] of known) {
    if (wanted.has(name)) continue;
    child.remove();
    gone(child);
  }
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    const wants = stamp(item);
    const old = known.get(name);
    let child = old;
    if (!child || !isSame(stamps.get(child) ?? [], wants)) {
      child = make(item);
      child.dataset.key = name;
      stamps.set(child, wants);
    }
    if (old && old === next) {
      next = next.nextElementSibling;
      if (child !== old) old.replaceWith(child);
      continue;
    }
    if (child !== old) old?.remove();
    parent.insertBefore(child, next);
  }
}

/** Gives a node new content, and does not touch it if that is what it has: a selection in it stays. */
export function fill(node, ...content) {
  const next = build(node.cloneNode(false), null, content);
  if (!next.isEqualNode(node)) node.replaceChildren(...next.childNodes);
  node.hidden = node.childNodes.length === 0;
}

/** A head of a table; names that begin with # are of columns of numbers. */
export const heads = (...names) =>
  h("thead", null, h("tr", null, names.map((name) =>
    h("th", { scope: "col", class: name.startsWith("#") ? "num" : null }, name.replace("#", "")))));

/** A table that scrolls by itself where it is wider than the page. */
export const scrolled = (label, table) => h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, table);
