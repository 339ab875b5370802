// What the tests of the page share: a browser, a simulator, and what is started for one test and stopped after it.

import assert from "node:assert/strict";
import { mkdtemp, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before } from "node:test";
import { pathToFileURL } from "node:url";

import { launch, open } from "./browser.mjs";
import { startForkpoint, startSim } from "./stage.mjs";

export const ROOT = process.cwd();
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
export const format = await import(pathToFileURL(join(ROOT, "src/admin/page/format.js")));
/** Forks at any price: these tests are about what is shown, not about what is decided. */
export const FORK = { FORK__CONTEXT_PREMIUM: 100, FORK__MAX_COST_RATIO: 100 };
export const SIZES = [{ width: 1280, height: 900 }, { width: 390, height: 844 }];

export let browser;
export let sim;
/** What is stopped after the test, and the pages that have to be without trouble by then. */
export const started = [];
export const pages = [];

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

export async function forkpoint(settings = FORK, upstream = sim.url, ports = {}) {
  const one = await startForkpoint(upstream, settings, ports);
  started.push(one);
  return one;
}

export async function shown(admin, hash, options) {
  const page = await open(browser, admin, hash, options);
  pages.push(page);
  return page;
}

/** The bill of every request so far, by the simulator's own account. */
export async function bill() {
  const requests = await sim.requests();
  const tokens = requests.map(({ usage }) => [usage.cache_read, usage.uncached]);
  return { usd: requests.reduce((sum, one) => sum + one.cost_usd, 0), tokens: tokens.sort(([a, b], [c, d]) => a - c || b - d) };
}

export const forgetBills = () => fetch(`${sim.url}/sim/requests`, { method: "DELETE" });

export const figure = (page, name) => page.locator(`#money [data-figure="${name}"]`);

/** Waits until an element has a text. */
export const hasText = (locator, text) => locator.filter({ hasText: new RegExp(`^${text.replace(/[$.()]/g, "\\$&")}$`) }).waitFor();

/** Waits until what has changed is drawn. */
export const frames = (page) => page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));

/** Waits until this many requests have ended. */
export const ended = (page, count) => hasText(figure(page, "requests"), String(count));

/** Fails if axe finds anything, or if the page is wider than its window. The page has to be opened with `bypassCSP`. */
export async function isAccessible(page, what) {
  await page.addScriptTag({ path: AXE });
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`);
  const { width } = page.viewportSize();
  assert.deepEqual(found, [], `${what}, ${width} wide`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= width, `${what} is ${wide} wide`);
}

/** The file that is saved by what `press` does. */
export async function savedFile(page, press) {
  const [download] = await Promise.all([page.waitForEvent("download"), press()]);
  const file = join(await mkdtemp(join(tmpdir(), "forkpoint-")), download.suggestedFilename());
  await download.saveAs(file);
  return { file, text: await readFile(file, "utf8") };
}
