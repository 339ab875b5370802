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
export function timeline(requests, from, to, now) {
  const span = Math.max(to - from, 1);
  const shapes = [];
  for (const x of requests) {
    const came = x.time_ms - from;
    const end = x.duration_ms === undefined ? now - from : came + x.duration_ms;
    const sent = x.sent_ms === undefined ? end : came + x.sent_ms;
    const first = x.first_byte_ms === undefined ? end : came + x.first_byte_ms;
    // What lies outside is not drawn: of a parent only the end of its answer is of interest.
    const within = (at) => Math.min(Math.max(at, 0), span);
    const bar = (a, b, kind) => {
      if (within(b) > within(a)) shapes.push(rect(within(a), within(b), span, { y: 3, height: 8, class: kind }));
    };
    bar(came, Math.min(sent, end), "held");
    bar(sent, Math.min(first, end), "asked");
    bar(first, end, "answering");
    // A request that took no visible time is still there.
    if (came >= 0) shapes.push(svg("line", { x1: share(came, span), x2: share(came, span), y1: 1, y2: 13, class: "came" }));
    if (x.duration_ms !== undefined && (x.status === undefined || x.status >= 400)) {
      shapes.push(svg("circle", { cx: share(Math.min(end, span), span), cy: 7, r: 4, class: "failed" }));
    }
  }
  return drawing("timeline", 14, ...shapes);
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

/** What was saved in each minute, losses below the line. */
export function sparkline(minutes, value, now, most) {
  const values = minutes.map((minute) => value(minute));
  const largest = Math.max(...values.map(Math.abs), 0);
  const first = now - most * 60_000;
  const shapes = [svg("line", { x1: "0", x2: "100%", y1: 24.5, y2: 24.5, class: "axis" })];
  minutes.forEach((minute, i) => {
    if (!largest || minute.time_ms < first - 60_000 || values[i] === 0) return;
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

/** Brings the children of a node into the order of items, by key. Those that are in place are not touched. */
export function arrange(parent, items, key, make, gone = () => {}) {
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
    let child = known.get(name);
    if (child && child === next) {
      next = next.nextElementSibling;
      continue;
    }
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    parent.insertBefore(child, next);
  }
}

/** A head of a table; names that begin with # are of columns of numbers. */
export const heads = (...names) =>
  h("thead", null, h("tr", null, names.map((name) =>
    h("th", { scope: "col", class: name.startsWith("#") ? "num" : null }, name.replace("#", "")))));

/** A table that scrolls by itself where it is wider than the page. */
export const scrolled = (label, table) => h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, table);
