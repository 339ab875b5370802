// The frame budget: a thousand fan-outs on the page, fifty requests a second, and a reader who scrolls.
//
// The page's files are those of a running forkpoint; its stream is made up here. Fails if frames are late.

import { createServer } from "node:http";

import { isLive, launch, open } from "./browser.mjs";
import { startForkpoint } from "./stage.mjs";

const FAN_OUTS = 1000;
const CHILDREN = 5;
const PER_SECOND = 50;
const SECONDS = Number(process.argv[2] ?? 10);
/** The client of every tenth fan-out. */
const CHOSEN = "claude-cli/2.1";
/** Milliseconds of a frame that readers notice, and what 95 and 100 of 100 frames may take. */
const FRAME_P95_MS = 34;
const FRAME_MAX_MS = 250;

let id = 0;
const now = Date.now();

function exchange(time_ms, more) {
  id += 1;
  return {
    id, time_ms, status: 200, ending: "complete", stop_reason: "end_turn", model: "claude-opus-5-5", tenant: `0000000${id % 7}`,
    plan: "forked", reason: "none", gate: id % CHILDREN ? "released" : "led", held_ms: 300, sent_ms: 300, first_byte_ms: 900, duration_ms: 2500,
    prefix: "587253189abff8e7", received: "3b69bac909b9e5de", sent: "ea9bac909b9e5d41", breakpoints: ["system[0] 5m added", "messages[2].content[6] 5m added"],
    shared_bytes: 36_500, layer_bytes: [7_800, 25_200, 30_700], uncached: 3, cache_read: 15_916, cache_write_5m: 66, cache_write_1h: 0, output: 80,
    cost_usd: 0.004, as_sent_usd: 0.012, aligned_usd: 0.005, ...more,
  };
}

/** A parent and its children. */
function fanOut(number, time_ms) {
  const fork = number.toString(16).padStart(8, "0");
  const client = number % 10 === 0 ? CHOSEN : "anthropic-python/0.60";
  const parent = exchange(time_ms, { client, role: "plain", fanned_out: fork, fanned_out_children: CHILDREN });
  const child = (_, i) => exchange(time_ms + 2600, { client, role: "child", fork, child: i + 1, child_turn: 1, tool: "Agent" });
  return [parent, ...Array.from({ length: CHILDREN }, child)];
}

const sums = {
  requests: 6000, failed: 0, uncached: 1e4, cache_read: 1e8, cache_write: 1e6, output: 1e6, billed_usd: 24, compared: 6000, compared_usd: 24,
  as_sent_usd: 72, aligned_usd: 30, uncompared: 0,
};

const { admin, stop } = await startForkpoint("http://127.0.0.1:9");

const server = createServer(async (request, response) => {
  if (request.url !== "/events") {
    const file = await fetch(admin + request.url);
    response.writeHead(file.status, Object.fromEntries(["content-type", "content-security-policy"].map((name) => [name, file.headers.get(name)])));
    return response.end(await file.text());
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  let number = 0;
  const send = (event, data) => {
    number += 1;
    response.write(`id: x-${number}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  };
  const exchanges = Array.from({ length: FAN_OUTS }, (_, i) => fanOut(i, now - (FAN_OUTS - i) * 5000)).flat();
  const minutes = Array.from({ length: 60 }, (_, i) => ({ time_ms: now - (59 - i) * 60_000, ...sums, as_sent_usd: 30 + (i % 7) }));
  send("snapshot", { mode: "fork", config: 1, tenants: {}, version: "0", started_ms: now - 6e6, now_ms: now, total: sums, minutes, underway: [], exchanges });
  let waiting = [];
  let forks = FAN_OUTS;
  const timer = setInterval(() => {
    if (waiting.length === 0) waiting = fanOut(forks++, Date.now() - 2500);
    const next = waiting.shift();
    const { time_ms, role, fork, child, tool, model } = next;
    if (fork) send("underway", { n: next.id, time_ms, role, fork, child, tool, model, sent_ms: 300 });
    send("exchange", fork ? { n: next.id, ...next } : next);
  }, 1000 / PER_SECOND);
  return request.on("close", () => clearInterval(timer));
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const browser = await launch();
const url = `http://127.0.0.1:${server.address().port}`;

/** Scrolls through the fan-outs at an address; returns true if no frame was late. */
async function scrolls(what, hash, expected) {
  const page = await open(browser, url, hash);
  await isLive(page);
  await page.locator(".card .row").first().waitFor();
  const frames = await page.evaluate((seconds) => new Promise((resolve) => {
    const times = [];
    let last = performance.now();
    const end = last + 1000 * seconds;
    const step = (time) => {
      times.push(time - last);
      last = time;
      scrollBy(0, 40);
      if (time < end) requestAnimationFrame(step);
      else resolve(times);
    };
    requestAnimationFrame(step);
  }), SECONDS);
  const cards = await page.locator(".card").count();
  await page.context().close();
  const sorted = frames.toSorted((a, b) => a - b);
  const at = (share) => sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)];
  const [p50, p95, most] = [at(0.5), at(0.95), at(1)].map((ms) => Math.round(ms * 10) / 10);
  console.log(`${what}: ${cards} fan-outs, ${PER_SECOND} requests/s, ${frames.length} frames in ${SECONDS} s: p50 ${p50} ms, p95 ${p95} ms, longest ${most} ms`);
  if (page.trouble.length > 0) console.log(page.trouble.join("\n"));
  return p95 <= FRAME_P95_MS && most <= FRAME_MAX_MS && expected(cards) && page.trouble.length === 0;
}

const all = await scrolls("all", "", (cards) => cards === FAN_OUTS);
const filtered = await scrolls("one client", `#/fan-outs?client=${encodeURIComponent(CHOSEN)}`, (cards) => cards > 50 && cards <= FAN_OUTS / 5);
await browser.close();
server.close();
server.closeAllConnections();
await stop();
process.exit(all && filtered ? 0 : 1);
