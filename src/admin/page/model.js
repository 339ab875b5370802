// What is known of the proxy: sums, fan-outs and their requests, other requests, cache breaks. All of it is bounded.

const FANOUTS_MAX = 1000;
/** The most requests of all fan-outs; the oldest fan-out goes first. */
const FANOUT_REQUESTS_MAX = 20_000;
/** The most children of one fan-out; later ones are left out. */
const CHILDREN_MAX = 200;
/** The most turns of one child, and the most requests that bring results back; the oldest goes first. */
const TURNS_MAX = 200;
const REQUESTS_MAX = 1000;
const BREAKS_MAX = 500;
const CHOICES_MAX = 100;
const MINUTE_MS = 60_000;
const MINUTES_MAX = 60;
/** How long sums by a filter may hold what is no longer kept: adding up thousands of requests takes milliseconds. */
const SUMS_AGE_MS = 1000;

const SUMS = [
  "requests", "failed", "uncached", "cache_read", "cache_write", "output",
  "billed_usd", "compared", "compared_usd", "as_sent_usd", "aligned_usd", "uncompared",
];

/** The filters, and what each asks of an exchange. */
export const FILTERS = {
  tenant: (x) => x.tenant,
  client: (x) => x.client,
  model: (x) => x.model,
  tool: (x) => x.tool,
  reason: (x) => x.reason,
};

export const noSums = () => Object.fromEntries(SUMS.map((key) => [key, 0]));

export const isAnswered = (x) => x.status >= 200 && x.status < 300;

/** True if its bills in all three worlds are known: only then may they be compared. */
export const isCompared = (x) =>
  x.cost_usd !== undefined && x.as_sent_usd !== undefined && x.aligned_usd !== undefined;

/** Adds an exchange to sums, by the same rule as the server. */
export function addTo(sums, x) {
  sums.requests += 1;
  if (x.failed) sums.failed += 1;
  sums.uncached += x.uncached ?? 0;
  sums.cache_read += x.cache_read ?? 0;
  sums.cache_write += (x.cache_write_5m ?? 0) + (x.cache_write_1h ?? 0);
  sums.output += x.output ?? 0;
  sums.billed_usd += x.cost_usd ?? 0;
  if (isCompared(x)) {
    sums.compared += 1;
    sums.compared_usd += x.cost_usd;
    sums.as_sent_usd += x.as_sent_usd;
    sums.aligned_usd += x.aligned_usd;
  } else if (isAnswered(x)) {
    sums.uncompared += 1;
  }
  return sums;
}

export const sumOf = (exchanges) => exchanges.reduce(addTo, noSums());

const startOfMinute = (ms) => ms - (ms % MINUTE_MS);

/** Adds an exchange to the minute in which it ended. */
function addToMinute(minutes, x) {
  const time = startOfMinute(x.time_ms + x.duration_ms);
  const last = minutes.at(-1);
  if (!last || last.time_ms < time) {
    minutes.push({ time_ms: time, ...noSums() });
    if (minutes.length > MINUTES_MAX) minutes.shift();
  }
  addTo(minutes.at(-1), x);
}

function addToHistory(history, x) {
  addTo(history.total, x);
  addToMinute(history.minutes, x);
}

/** The parts of a sum that say how much was saved. */
export function savings(sums) {
  return { saved: sums.as_sent_usd - sums.compared_usd, of: sums.as_sent_usd, known: sums.compared > 0 };
}

/** One fan-out: the request whose answer it was, its children, and the requests that brought results back. */
class FanOut {
  parent = null;
  returns = [];
  /** Children by their number, agent or, of those without either, their own request. */
  children = new Map();
  underway = new Map();
  /** How many of its requests are no longer kept. */
  leftOut = 0;

  constructor(id, time) {
    this.id = id;
    this.time = time;
  }

  add(x) {
    this.time = Math.min(this.time, x.time_ms);
    if (x.fanned_out === this.id) this.parent = x;
    if (x.fork !== this.id) return;
    const key = childKey(x);
    if (x.role === "child" && !this.children.has(key)) {
      if (this.children.size >= CHILDREN_MAX) {
        this.leftOut += 1;
        return;
      }
      this.children.set(key, []);
    }
    const requests = x.role === "child" ? this.children.get(key) : this.returns;
    requests.push(x);
    requests.sort((a, b) => a.time_ms - b.time_ms);
    if (requests.length > TURNS_MAX) {
      requests.shift();
      this.leftOut += 1;
    }
  }

  /** How many of its requests have ended and are kept. */
  kept() {
    let kept = this.returns.length;
    for (const turns of this.children.values()) kept += turns.length;
    return kept;
  }

  /** Every request of a child, in order of arrival. */
  turns() {
    return [...this.children.values()].flat().sort((a, b) => a.time_ms - b.time_ms);
  }

  /** Everything that belongs to it, ended or not. */
  all() {
    const all = [...this.turns(), ...this.returns, ...this.underway.values()];
    if (this.parent) all.unshift(this.parent);
    return all;
  }

  isRunning() {
    return this.underway.size > 0;
  }

  /** True if a filter lets any of its requests through. */
  matches(filter) {
    const isOne = (x) => matches(x, filter);
    if (isEmpty(filter) || (this.parent && isOne(this.parent)) || this.returns.some(isOne)) return true;
    for (const turns of this.children.values()) if (turns.some(isOne)) return true;
    for (const u of this.underway.values()) if (isOne(u)) return true;
    return false;
  }

  /** How many children it called, or how many were seen. */
  size() {
    const running = [...this.underway.values()].filter((u) => u.role === "child" && !this.children.has(childKey(u)));
    return Math.max(this.parent?.fanned_out_children ?? 0, this.children.size + running.length);
  }

  tool() {
    const named = this.all().find((x) => x.role === "child" && x.tool);
    return named?.tool;
  }
}

export function childKey(x) {
  if (x.child !== undefined) return `#${x.child}`;
  if (x.agent !== undefined) return `@${x.agent}`;
  return x.prefix ? `~${x.prefix}` : `?${x.id ?? x.n}`;
}

export class Model {
  settings = { mode: "", config: 0, tenants: {}, version: "", started_ms: 0 };
  total = noSums();
  minutes = [];
  fanOuts = new Map();
  requests = [];
  breaks = [];
  /** Fan-outs whose requests go on, by the number of the request. */
  #running = new Map();
  /** How often each value of a filter was seen. */
  #seen = {};
  /** Fan-outs that had to make room since the last event. */
  #gone = [];
  /** The sums by the filter that was asked for last. */
  #filtered = null;
  /** Server time less local time. */
  skew = 0;
  /** True once a snapshot has come. */
  hasData = false;
  /** True while every request since the start is kept here. */
  isWhole = true;
  /** How many requests of fan-outs are kept. */
  #kept = 0;

  now() {
    return Date.now() + this.skew;
  }

  /** Takes an event, and returns what has to be drawn anew: "all", or the ids of fan-outs, also of those that are gone. */
  apply(event, data) {
    const changed = this.#take(event, data);
    const gone = this.#gone.splice(0);
    return changed === "all" ? changed : [...changed, ...gone];
  }

  #take(event, data) {
    switch (event) {
      case "snapshot":
        this.#reset(data);
        return "all";
      case "configured":
        Object.assign(this.settings, data);
        return "all";
      case "underway":
        return [this.#underway(data)];
      case "exchange":
        addTo(this.total, data);
        addToMinute(this.minutes, data);
        return this.#exchange(data);
      default:
        return [];
    }
  }

  #reset({ mode, config, tenants, version, started_ms, now_ms, total, minutes, underway, exchanges }) {
    this.settings = { mode, config, tenants, version, started_ms };
    this.skew = now_ms - Date.now();
    this.total = total;
    this.minutes = minutes;
    this.fanOuts.clear();
    this.#running.clear();
    this.requests = [];
    this.breaks = [];
    this.#kept = 0;
    this.isWhole = exchanges.length >= total.requests;
    this.#filtered = null;
    this.#seen = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, new Map()]));
    exchanges.sort((a, b) => a.time_ms - b.time_ms || a.id - b.id);
    for (const x of exchanges) this.#exchange(x);
    for (const u of underway) this.#underway(u);
    this.hasData = true;
  }

  #underway(u) {
    const fanOut = this.#fanOut(u.fork, u.time_ms);
    fanOut.underway.set(u.n, u);
    this.#running.set(u.n, fanOut);
    return fanOut.id;
  }

  #exchange(x) {
    this.requests.push(x);
    if (this.requests.length > 2 * REQUESTS_MAX) {
      this.requests.splice(0, REQUESTS_MAX);
      this.#hasForgotten();
    }
    if (x.break) {
      this.breaks.push(x);
      if (this.breaks.length > 2 * BREAKS_MAX) this.breaks.splice(0, BREAKS_MAX);
    }
    this.#see(x);
    this.#running.get(x.n)?.underway.delete(x.n);
    this.#running.delete(x.n);
    if (this.#filtered && matches(x, this.#filtered.filter)) addToHistory(this.#filtered, x);
    // A request may bring the results of one fan-out back and begin another.
    const ids = [...new Set([x.fork, x.fanned_out])].filter(Boolean);
    for (const id of ids) {
      const fanOut = this.#fanOut(id, x.time_ms);
      const [before, leftOut] = [fanOut.kept(), fanOut.leftOut];
      fanOut.add(x);
      this.#kept += fanOut.kept() - before;
      if (fanOut.leftOut > leftOut) this.#hasForgotten();
    }
    while (this.#kept > FANOUT_REQUESTS_MAX && this.fanOuts.size > 1) this.#forgetOldest();
    return ids;
  }

  #forgetOldest() {
    // A map keeps the order of insertion.
    const [id, fanOut] = this.fanOuts.entries().next().value;
    this.fanOuts.delete(id);
    this.#kept -= fanOut.kept();
    this.#gone.push(id);
    this.#hasForgotten();
  }

  #fanOut(id, time) {
    let fanOut = this.fanOuts.get(id);
    if (!fanOut) {
      fanOut = new FanOut(id, time);
      this.fanOuts.set(id, fanOut);
      if (this.fanOuts.size > FANOUTS_MAX) this.#forgetOldest();
    }
    return fanOut;
  }

  /** The sums of the last of these minutes, of which the last is the one that runs. */
  recent(minutes, most) {
    const since = startOfMinute(this.now()) - (most - 1) * MINUTE_MS;
    const sums = noSums();
    for (const minute of minutes) {
      if (minute.time_ms >= since) for (const key of SUMS) sums[key] += minute[key];
    }
    return sums;
  }

  /** Fan-outs that a filter lets through, newest first. */
  shownFanOuts(filter) {
    const shown = [];
    for (const fanOut of this.fanOuts.values()) {
      if (fanOut.matches(filter)) shown.push(fanOut);
    }
    return shown.sort(newestFirst);
  }

  shownRequests(filter, most) {
    return newest(this.requests, filter, most);
  }

  shownBreaks(filter, most) {
    return newest(this.breaks, filter, most);
  }

  #see(x) {
    for (const [name, value] of Object.entries(FILTERS)) {
      const seen = this.#seen[name];
      const one = value(x);
      if (one === undefined || (!seen.has(one) && seen.size >= CHOICES_MAX)) continue;
      seen.set(one, (seen.get(one) ?? 0) + 1);
    }
  }

  /** The values that a filter can have, most frequent first. */
  choices(name) {
    const seen = [...(this.#seen[name] ?? [])];
    return seen.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([value]) => value);
  }

  /** The sums of what a filter lets through, in all and by minutes. With a filter they are about what is kept here:
      added up once, and then kept up to date. */
  historyOf(filter) {
    if (isEmpty(filter)) return this;
    const key = JSON.stringify(filter);
    const known = this.#filtered;
    const isOld = known?.hasForgotten && performance.now() - known.at > SUMS_AGE_MS;
    if (known?.key !== key || isOld) {
      this.#filtered = { key, filter, total: noSums(), minutes: [], at: performance.now() };
      const ended = (x) => x.time_ms + x.duration_ms;
      const found = this.#all().filter((x) => matches(x, filter)).sort((a, b) => ended(a) - ended(b));
      for (const x of found) addToHistory(this.#filtered, x);
    }
    return this.#filtered;
  }

  #all() {
    const kept = new Set(this.requests);
    for (const fanOut of this.fanOuts.values()) {
      for (const x of fanOut.all()) if (x.id !== undefined) kept.add(x);
    }
    return [...kept];
  }

  #hasForgotten() {
    this.isWhole = false;
    if (this.#filtered) this.#filtered.hasForgotten = true;
  }

  tenant(digest) {
    return this.settings.tenants[digest] ?? digest;
  }
}

/** The order of fan-outs, also of those that begin in the same millisecond. */
export const newestFirst = (a, b) => b.time - a.time || (a.id < b.id ? 1 : -1);

export const isEmpty = (filter) => Object.keys(filter).length === 0;

export const matches = (x, filter) => Object.entries(filter).every(([name, value]) => FILTERS[name](x) === value);

function newest(list, filter, most) {
  const found = [];
  for (let i = list.length - 1; i >= 0 && found.length < most; i -= 1) {
    if (matches(list[i], filter)) found.push(list[i]);
  }
  return found;
}
