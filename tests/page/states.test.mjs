// The states that a page can be in: empty, running, losing money, without a token or a connection; and what keys do in them.

import assert from "node:assert/strict";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { Agent } from "./agent.mjs";
import { isLive, watch } from "./browser.mjs";
import { HOSTILE, hostileFanOut, startHostile } from "./hostile.mjs";
import { child, exchange, snapshot, startRelay, sums, underway } from "./relay.mjs";
import { FORK, SIZES, browser, ended, figure, forkpoint, hasText, isAccessible, pages, savedFile, shown, started } from "./scene.mjs";

const ID = "f00dcafe";

/** A page in front of a stream that is made up. */
async function madeUp(stream, hash = "", options = {}) {
  const { admin } = await forkpoint();
  const relay = await startRelay(admin, stream);
  started.push(relay);
  return { relay, page: await shown(relay.url, hash, options) };
}

/** A fan-out of which one child runs. */
function running(now) {
  const parent = exchange(now - 9000, { fanned_out: ID, fanned_out_children: 2, duration_ms: 2000 });
  return snapshot(now, [parent, child(now - 7000, ID, 1)], { underway: [underway(now - 6900, ID, 2, { n: 7 })] });
}

async function withToken() {
  const file = join(await mkdtemp(join(tmpdir(), "forkpoint-")), "token");
  await writeFile(file, "0123456789abcdef-token\n");
  return forkpoint({ ADMIN__TOKEN_FILE: file });
}

test("axe finds nothing in any state, light or dark, nor on a phone", async () => {
  const now = Date.now();
  const loss = [exchange(now - 9000, { fanned_out: ID, fanned_out_children: 2 }), ...[1, 2].map((number) => child(now - 7000, ID, number, { cost_usd: 0.05 }))];
  const failed = child(now - 7000, ID, 1, { failed: true, status: 529, error: "overloaded_error" });
  const states = [
    ["empty", (send) => void send("snapshot", snapshot(now, [])), "#empty"],
    ["loss", (send) => void send("snapshot", snapshot(now, loss, { total: sums(3, { compared_usd: 1 }) })), ".card .saved.loss"],
    ["failed", (send) => void send("snapshot", snapshot(now, [failed])), ".card .timeline .failed"],
    ["running", (send) => void send("snapshot", running(now)), ".card.running .leader"],
    ["older requests are gone", (send) => void send("snapshot", snapshot(now, loss, { total: sums(900) })), "#older"],
  ];
  const { admin } = await withToken();
  for (const colorScheme of ["light", "dark"]) {
    for (const viewport of SIZES) {
      const options = { colorScheme, viewport, bypassCSP: true };
      for (const [state, stream, there] of states) {
        const { page } = await madeUp(stream, "", options);
        await page.locator(there).first().waitFor({ state: "attached" });
        await isAccessible(page, `${state} ${colorScheme}`);
      }
      const page = await shown(admin, "", options);
      await page.locator("#token").waitFor();
      await isAccessible(page, `token ${colorScheme}`);
    }
  }
});

test("what is selected stays selected while a fan-out runs, and only what runs is drawn anew", async () => {
  const now = Date.now();
  let send;
  const { page } = await madeUp((to) => {
    send = to;
    to("snapshot", running(now));
  }, `#/fan-out/${ID}`);
  const rows = page.getByRole("region", { name: "Requests" }).locator("tbody tr");
  await rows.nth(2).waitFor();
  const selected = () => page.evaluate(() => getSelection().toString());
  await page.evaluate(() => {
    globalThis.first = document.querySelector('[aria-label="Requests"] tbody tr');
    getSelection().selectAllChildren(globalThis.first);
  });
  const before = await selected();
  assert.match(before, /parent/);
  const bar = page.locator(".detail .rows .running .answering, .detail .rows .running .asked").last();
  const length = () => bar.getAttribute("d");
  const [from, end] = [await length(), Date.now() + 10_000];
  while ((await length()) === from) assert.ok(Date.now() < end, "the bar of what runs grows");
  send("exchange", child(now - 6900, ID, 2, { n: 7, failed: true, error: "overloaded_error" }));
  await rows.nth(2).getByText("overloaded_error").waitFor();
  await page.locator(".detail .sentence", { hasText: "1 request failed: overloaded_error." }).waitFor();
  assert.equal(await selected(), before);
  assert.ok(await page.evaluate(() => globalThis.first === document.querySelector('[aria-label="Requests"] tbody tr')), "a row that has not changed is the same");
});

test("a reader whose connection breaks goes on where it was", async () => {
  const { proxy, admin } = await forkpoint();
  const relay = await startRelay(admin);
  started.push(relay);
  const page = await shown(relay.url);
  await new Agent(proxy).fanOut(2);
  await ended(page, 6);
  relay.cut();
  await new Agent(proxy, { tool: "task" }).fanOut(2);
  await ended(page, 12);
  assert.deepEqual(await page.locator(".card h2").allTextContents(), ["task × 2", "Agent × 2"]);
  const [first, second] = relay.streams;
  assert.deepEqual([first.lastId, first.first], [null, "snapshot"]);
  assert.ok(second.lastId !== null && second.first !== "snapshot", `${second.lastId} is followed by ${second.first}`);
});

test("an event that cannot be shown is reported, and everything is asked for anew", async () => {
  const now = Date.now();
  let number = 0;
  const { page, relay } = await madeUp((send) => {
    send("snapshot", snapshot(now, [exchange(now)]));
    number += 1;
    if (number === 1) send("exchange", null);
  });
  await page.waitForFunction(() => document.querySelector("#state").dataset.state === "live");
  while (relay.streams.length < 2) await page.waitForTimeout(20);
  await isLive(page);
  assert.equal(relay.streams[1].lastId, null, "not from behind the event that it could not show");
  assert.equal(page.trouble.splice(0).length, 1, "the browser's console has it");
});

test("a token that no header takes is a wrong one", async () => {
  const { admin } = await withToken();
  const page = await shown(admin);
  for (const wrong of ["0123456789€", "tab\u0001", "é"]) {
    await page.locator("#token-text").fill(wrong);
    await page.keyboard.press("Enter");
    await page.getByLabel("That is not the token").waitFor();
    await page.waitForFunction(() => document.querySelector("#token-text").value === "");
  }
  await page.getByLabel("That is not the token").fill("0123456789abcdef-token");
  await page.keyboard.press("Enter");
  await isLive(page);
});

test("filters, views and the token are reached by the keyboard", async () => {
  const { proxy, admin } = await forkpoint();
  await new Agent(proxy, { tool: "Agent" }).fanOut(2);
  await new Agent(proxy, { tool: "task", mode: "align" }).fanOut(2);
  const page = await shown(admin);
  await page.locator(".card").nth(1).waitFor();
  const tabTo = async (selector) => {
    for (let i = 0; !(await page.evaluate((selector) => document.activeElement.matches(selector), selector)); i += 1) {
      assert.ok(i < 30, `${selector} is reached`);
      await page.keyboard.press("Tab");
    }
  };
  await tabTo('select[name="tool"]');
  await page.keyboard.type("task");
  await page.locator(".card").nth(1).waitFor({ state: "detached" });
  await tabTo("a.clear");
  await page.keyboard.press("Enter");
  await page.locator(".card").nth(1).waitFor();
  const reasons = await page.locator('select[name="reason"] option').allTextContents();
  assert.ok(reasons.includes("forked") && reasons.includes("the mode is align") && !reasons.includes("none"), `${reasons}`);
  await page.evaluate(() => document.activeElement.blur());
  await tabTo('a[data-view="requests"]');
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Requests" }).waitFor();
  assert.equal(await page.title(), "Requests · forkpoint");
  await page.evaluate(() => { location.hash = "#/requests?tool=task"; });
  await page.locator('tbody a[href*="tool=task"]').first().waitFor();
  await page.locator('tbody a:not([href*="tool=task"])').first().waitFor({ state: "detached" });
  await page.keyboard.press("Escape");
  await page.locator(".card").waitFor();
  assert.match(page.url(), /#\/fan-outs\?tool=task$/, "a link keeps the filter");

  const { admin: closed } = await withToken();
  const asked = await shown(closed);
  await asked.locator("#token").waitFor();
  await asked.keyboard.type("0123456789abcdef-token");
  await asked.keyboard.press("Tab");
  await asked.keyboard.press("Space");
  await isLive(asked);
});

test("a hostile name that is saved does nothing in the file", async () => {
  const upstream = await startHostile();
  const { proxy, admin } = await forkpoint({ ...FORK, FORK__TOOLS: "*" }, upstream.url);
  await hostileFanOut(proxy, HOSTILE[0]);
  const page = await shown(admin);
  await page.locator(".card h2 a").click();
  const { file, text } = await savedFile(page, () => page.getByRole("button", { name: "Save this fan-out" }).click());
  upstream.stop();
  assert.ok(!/<script|<img/.test(text), "names are text");
  const saved = await (await browser.newContext({ offline: true })).newPage();
  saved.trouble = [];
  watch(saved, pathToFileURL(file).href);
  pages.push(saved);
  await saved.goto(pathToFileURL(file).href);
  assert.match(await saved.title(), /^forkpoint fan-out/);
  assert.ok((await saved.locator("h1").textContent()).startsWith('<img src=x onerror="document.title=1">'));
  assert.equal(await saved.locator(".legend").count(), 1);
  assert.match(await saved.locator(".meta").textContent(), /\d\d:\d\d:\d\d (UTC|GMT|[A-Z]{3,4})/);
});

test("an observed fan-out says what mode fork would have done, and a failed one why", async () => {
  const { proxy, admin } = await forkpoint({ ...FORK, MODE: "observe" });
  await new Agent(proxy).fanOut(2);
  const page = await shown(admin);
  await page.locator(".card .sentence", { hasText: "the mode is observe. In mode fork they would be forked." }).waitFor();
  const broken = await forkpoint(FORK, "http://127.0.0.1:9");
  await new Agent(broken.proxy).ask("You read.", [{ role: "user", content: "Read it." }]).catch(() => {});
  const failed = await shown(broken.admin, "#/requests");
  await failed.locator("td.bad", { hasText: "the upstream could not be reached" }).waitFor();
  await hasText(figure(failed, "failed"), "1");
});
