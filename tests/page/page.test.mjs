// The live page in a real Chromium, in front of a real forkpoint and the simulator.

import assert from "node:assert/strict";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { pathToFileURL } from "node:url";

import { Agent } from "./agent.mjs";
import { isLive, launch, open, watch } from "./browser.mjs";
import { HOSTILE, hostileEvents, hostileFanOut, startHostile } from "./hostile.mjs";
import { startForkpoint, startSim } from "./stage.mjs";

const ROOT = process.cwd();
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const format = await import(pathToFileURL(join(ROOT, "src/admin/page/format.js")));
/** Forks at any price: these tests are about what is shown, not about what is decided. */
const FORK = { FORK__CONTEXT_PREMIUM: 100, FORK__MAX_COST_RATIO: 100 };

let browser;
let sim;
const started = [];
const pages = [];

before(async () => {
  browser = await launch();
  sim = await startSim("--latency", "150", "--pace", "3");
});

after(async () => {
  await browser.close();
  await sim.stop();
});

afterEach(async () => {
  for (const page of pages.splice(0)) {
    assert.deepEqual(page.trouble, [], "console errors, or requests to other origins");
    await page.context().close();
  }
  for (const one of started.splice(0)) await one.stop();
});

async function forkpoint(settings = FORK, upstream = sim.url, ports = {}) {
  const one = await startForkpoint(upstream, settings, ports);
  started.push(one);
  return one;
}

async function shown(admin, hash, options) {
  const page = await open(browser, admin, hash, options);
  pages.push(page);
  return page;
}

/** The bill of every request so far, by the simulator's own account. */
async function bill() {
  const requests = await sim.requests();
  const tokens = requests.map(({ usage }) => [usage.cache_read, usage.uncached]);
  return { usd: requests.reduce((sum, one) => sum + one.cost_usd, 0), tokens: tokens.sort(([a, b], [c, d]) => a - c || b - d) };
}

const forgetBills = () => fetch(`${sim.url}/sim/requests`, { method: "DELETE" });

const figure = (page, name) => page.locator(`#money [data-figure="${name}"]`);

/** Waits until an element has a text. */
const hasText = (locator, text) => locator.filter({ hasText: new RegExp(`^${text.replace(/[$.()]/g, "\\$&")}$`) }).waitFor();

/** Waits until this many requests have ended. */
const ended = (page, count) => hasText(figure(page, "requests"), String(count));

test("a fan-out is drawn as it runs, and its figures are the simulator's bill", async () => {
  await forgetBills();
  const { proxy, admin } = await forkpoint();
  const page = await shown(admin);
  await isLive(page);
  await page.getByText("No fan-out has been seen yet").waitFor();
  const run = new Agent(proxy).fanOut(3, "tools turns=1");
  await page.locator(".card.running").waitFor();
  await page.locator(".card .row", { hasText: "child 3/3" }).waitFor();
  await run;
  const { usd, tokens } = await bill();
  await ended(page, tokens.length);
  await hasText(figure(page, "all"), format.usd(usd));
  await hasText(figure(page, "billed"), format.usd(usd));
  assert.equal(await page.locator(".card.running").count(), 0);
  assert.equal(await page.locator(".leader").count(), 1);

  await page.locator(".card h2 a").click();
  const table = page.getByRole("region", { name: "Requests" });
  const row = (cells) => [cells.at(6), cells.at(9)].map((text) => Number(text.replaceAll(",", "")));
  await table.locator("tbody tr").nth(tokens.length - 1).waitFor();
  const cells = await table.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent)));
  assert.deepEqual(cells.map(row).sort(([a, b], [c, d]) => a - c || b - d), tokens);
  assert.match(await page.locator(".sentence").textContent(), /^Forked onto their parent's prompt\.$/);
});

test("what is unknown is shown as unknown, and no saving is made of it", async () => {
  const upstream = await startHostile();
  const { proxy, admin } = await forkpoint(FORK, upstream.url);
  const page = await shown(admin, "#/requests");
  await isLive(page);
  await new Agent(proxy, { model: "claude-without-a-price" }).ask("You read.", [{ role: "user", content: "Read it." }]);
  await ended(page, 1);
  upstream.stop();
  await page.locator("#money .since .unknown", { hasText: "unknown" }).waitFor();
  assert.match(await page.locator("#money .worlds").textContent(), /1 request \(\$0.0000 billed\) left out/);
  const cells = await page.locator("tbody tr td").allTextContents();
  assert.deepEqual(cells.slice(-3, -1), ["unknown", "unknown"]);
});

test("it survives a restart of the proxy", async () => {
  const first = await forkpoint();
  const page = await shown(first.admin);
  await new Agent(first.proxy).fanOut(2);
  await page.locator(".card").waitFor();
  await first.stop();
  started.length = 0;
  await page.locator('#state[data-state="lost"]').waitFor();
  assert.equal(await page.locator(".card").count(), 1, "what was seen stays until there is something new");
  const second = await forkpoint(FORK, sim.url, first.ports);
  await isLive(page);
  await ended(page, 0);
  assert.equal(await page.locator(".card").count(), 0);
  await new Agent(second.proxy).fanOut(2);
  await page.locator(".card").waitFor();
});

test("views and filters have links", async () => {
  const { proxy, admin } = await forkpoint();
  await new Agent(proxy, { tool: "Agent" }).fanOut(2);
  await new Agent(proxy, { tool: "task", key: "sk-other", mode: "align" }).fanOut(3);
  await new Agent(proxy).breakCache();
  const page = await shown(admin);
  await page.locator(".card").nth(1).waitFor();
  await page.getByLabel("tool").selectOption("task");
  await page.locator(".card").nth(1).waitFor({ state: "detached" });
  assert.match(page.url(), /#\/fan-outs\?tool=task$/);
  assert.match(await page.locator("#money .since").textContent(), /kept here that match/);

  const same = await shown(admin, new URL(page.url()).hash);
  await same.locator(".card", { hasText: "task × 3" }).waitFor();
  assert.equal(await same.locator(".card").count(), 1);
  await same.getByRole("link", { name: "clear" }).click();
  await same.locator(".card").nth(1).waitFor();
  await same.getByLabel("reason").selectOption("align");
  await same.locator(".card").nth(1).waitFor({ state: "detached" });

  await page.locator(".card h2 a").click();
  const alone = await shown(admin, new URL(page.url()).hash);
  await alone.getByRole("heading", { name: "task × 3" }).waitFor();

  const breaks = await shown(admin, "#/breaks");
  const sentence = await breaks.locator(".breaks li").textContent();
  assert.match(sentence, /[\d,]+ cached tokens were not read because the system prompt or the speed changed \(system\), first at system\[0\], byte [\d,]+\. That cost about \$0\.\d+\./);
});

test("axe finds nothing in any view, light or dark, nor on a phone", async () => {
  const { proxy, admin } = await forkpoint();
  await new Agent(proxy).fanOut(3);
  await new Agent(proxy).breakCache();
  for (const colorScheme of ["light", "dark"]) {
    for (const viewport of SIZES) {
      const page = await shown(admin, "", { colorScheme, viewport, bypassCSP: true });
      await page.locator(".card .row").first().waitFor();
      const fork = new URL(await page.locator(".card h2 a").evaluate((link) => link.href)).hash;
      for (const [hash, there] of [["#/fan-outs", ".card .row"], [fork, ".detail table"], ["#/requests", "tbody tr"], ["#/breaks", ".breaks li"]]) {
        await page.evaluate((hash) => { location.hash = hash; }, hash);
        await page.locator(there).first().waitFor();
        await page.addScriptTag({ path: AXE });
        const { violations } = await page.evaluate(() => globalThis.axe.run());
        const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`);
        assert.deepEqual(found, [], `${hash} ${colorScheme} ${viewport.width}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= viewport.width, `${hash} is ${wide} wide`);
      }
    }
  }
});

test("everything is reached by the keyboard, and a fan-out is saved as one file that needs nothing", async () => {
  const { proxy, admin } = await forkpoint();
  await new Agent(proxy, { tool: "Agent" }).fanOut(2);
  await new Agent(proxy, { tool: "task" }).fanOut(2);
  const page = await shown(admin);
  await page.locator(".card").nth(1).waitFor();
  const focused = () => page.evaluate(() => document.activeElement.textContent.trim());
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Skip to content");
  for (const [key, name] of [["j", "task × 2"], ["j", "Agent × 2"], ["k", "task × 2"], ["j", "Agent × 2"]]) {
    await page.keyboard.press(key);
    assert.equal(await focused(), name);
  }
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Agent × 2" }).waitFor();
  for (let i = 0; (await focused()) !== "Save this fan-out"; i += 1) {
    assert.ok(i < 20, "the button is reached");
    await page.keyboard.press("Tab");
  }
  const [download] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
  const folder = await mkdtemp(join(tmpdir(), "forkpoint-"));
  const file = join(folder, download.suggestedFilename());
  await download.saveAs(file);
  const text = await readFile(file, "utf8");
  assert.ok(!/<script|src=|href=|@import|url\(/.test(text), "it loads nothing");
  await page.keyboard.press("Escape");
  await page.locator(".card").nth(1).waitFor();

  const context = await browser.newContext({ offline: true });
  const saved = await context.newPage();
  saved.trouble = [];
  watch(saved, pathToFileURL(file).href);
  pages.push(saved);
  await saved.goto(pathToFileURL(file).href);
  assert.match(await saved.title(), /^forkpoint fan-out [0-9a-f]+$/);
  assert.equal(await saved.getByRole("region", { name: "Prompts" }).locator("tbody tr").count(), 6);
});

/** Waits until the list is drawn, and checks that hostile names in it are text and nothing else. */
async function isHarmless(page) {
  const width = page.viewportSize().width;
  const fits = async () => assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, "nothing is pushed aside");
  assert.equal(await page.locator("#content :is(img, script, iframe)").count(), 0);
  assert.equal(await page.title(), "forkpoint");
  await fits();
  await page.locator(".card h2 a").first().click();
  await page.locator(".detail h2").waitFor();
  await fits();
  for (const view of ["Requests", "Cache breaks"]) {
    await page.getByRole("link", { name: view }).click();
    await page.getByRole("heading", { name: view }).waitFor();
    await fits();
  }
  assert.equal(await page.title(), "forkpoint");
}

const SIZES = [{ width: 1280, height: 900 }, { width: 390, height: 844 }];

test("hostile names that come through the proxy are shown, and do nothing", async () => {
  const upstream = await startHostile();
  const { proxy, admin } = await forkpoint({ ...FORK, FORK__TOOLS: "*" }, upstream.url);
  for (const name of HOSTILE) await hostileFanOut(proxy, name);
  for (const viewport of SIZES) {
    const page = await shown(admin, "", { viewport });
    // The longest name is none that a call may have: its fan-out is not recognised.
    await page.locator(".card").nth(HOSTILE.length - 2).waitFor();
    const names = await page.locator(".card h2 .tool").allTextContents();
    assert.ok(names.some((name) => name.startsWith('<img src=x onerror="document.title=1">')), `${names}`);
    assert.ok(names.some((name) => name.startsWith("\\u202e\\u2066safe\\u2069")), `${names}`);
    await isHarmless(page);
  }
  upstream.stop();
});

test("hostile text in any field does nothing", async () => {
  const { admin } = await forkpoint();
  for (const [text, viewport] of HOSTILE.flatMap((text) => SIZES.map((size) => [text, size]))) {
    const page = await shown(admin, "", { viewport });
    await page.route("**/events", (route) => route.fulfill({ contentType: "text/event-stream", body: hostileEvents(text) }));
    await page.reload();
    await page.locator(".card .row").first().waitFor();
    await isHarmless(page);
  }
});

test("a name that somebody else pointed here is refused", async () => {
  const { admin, ports } = await forkpoint();
  const deceived = await launch("--host-resolver-rules=MAP evil.example 127.0.0.1");
  const page = await deceived.newPage();
  for (const path of ["", "events", "page/main.js"]) {
    const answer = await page.goto(`http://evil.example:${ports.admin}/${path}`);
    assert.equal(answer.status(), 421);
  }
  assert.equal((await page.goto(admin)).status(), 200);
  await deceived.close();
});

test("with a token the page asks for it, and keeps it for the tab", async () => {
  const folder = await mkdtemp(join(tmpdir(), "forkpoint-"));
  const file = join(folder, "token");
  await writeFile(file, "0123456789abcdef-token\n");
  const { admin } = await forkpoint({ ADMIN__TOKEN_FILE: file });
  const page = await shown(admin);
  await page.getByLabel("The token of admin.token_file").fill("not the right one");
  await page.keyboard.press("Enter");
  await page.getByLabel("That is not the token").fill("0123456789abcdef-token");
  await page.keyboard.press("Enter");
  await isLive(page);
  assert.equal(await page.locator("#token").count(), 0);
  await page.reload();
  await isLive(page);
});

test("one page too many says so", async () => {
  const { admin } = await forkpoint({ ADMIN__SUBSCRIBERS: 1 });
  await isLive(await shown(admin));
  const page = await shown(admin);
  await page.getByText("too many pages are open (admin.subscribers)").waitFor();
});

test("pictures are made", async () => {
  const folder = process.env.PICTURES ?? "target/page";
  const story = await startSim("--latency", "500", "--latency-per-token", "25", "--pace", "12");
  started.push(story);
  const { proxy, admin } = await forkpoint({ ...FORK }, story.url);
  const page = await shown(admin);
  await new Agent(proxy, { key: "sk-checkout" }).fanOut(4, "tools turns=2");
  await new Agent(proxy, { key: "sk-search", tool: "task", client: "anthropic-python/0.60", mode: "align" }).fanOut(3, "tools turns=1");
  const run = new Agent(proxy, { key: "sk-docs", model: "claude-sonnet-4-6" }).fanOut(5, "tools turns=2");
  // The leader answers, and the others still wait or have just begun.
  await page.locator(".card.running .row", { hasText: "child 5/5" }).waitFor();
  await page.locator(".card.running .row .answering").nth(2).waitFor({ state: "attached" });
  await page.screenshot({ path: join(folder, "page.png") });
  await run;
  await page.emulateMedia({ colorScheme: "dark" });
  await page.locator(".card", { hasText: "Forked" }).last().locator("h2 a").click();
  await page.locator(".detail table").first().waitFor();
  await page.screenshot({ path: join(folder, "page-fan-out.png") });
});
