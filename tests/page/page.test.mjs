// The live page in a real Chromium, in front of a real forkpoint and the simulator.

import assert from "node:assert/strict";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { Agent } from "./agent.mjs";
import { isLive, launch, watch } from "./browser.mjs";
import { HOSTILE, hostileEvents, hostileFanOut, startHostile } from "./hostile.mjs";
import {
  FORK, ROOT, SIZES, bill, browser, ended, figure, forgetBills, forkpoint, format, frames, hasText, isAccessible, pages, savedFile, shown, sim, started,
} from "./scene.mjs";
import { startDemo, startSim } from "./stage.mjs";

test("a fan-out is drawn as it runs, and its figures are the simulator's bill", async () => {
  await forgetBills();
  const { proxy, admin } = await forkpoint();
  const page = await shown(admin);
  await isLive(page);
  await page.getByText("No fan-out has been seen yet").waitFor();
  const run = new Agent(proxy).fanOut(3, "tools turns=1");
  await page.locator(".card.running").waitFor();
  await page.locator(".card .row", { hasText: "child 3/3" }).waitFor();
  await page.locator(".card.running .leader").waitFor();
  assert.equal(await page.locator(".card.running .leader").count(), 1, "the leader is marked while it runs");
  await run;
  const { usd, tokens } = await bill();
  await ended(page, tokens.length);
  await hasText(figure(page, "all"), format.usd(usd));
  await hasText(figure(page, "billed"), format.usd(usd));
  assert.equal(await page.locator(".card.running").count(), 0);
  assert.equal(await page.locator(".leader").count(), 1);

  await page.locator(".card h2 a").click();
  const table = page.getByRole("region", { name: "Requests" });
  const row = (cells) => [cells.at(7), cells.at(10)].map((text) => Number(text.replaceAll(",", "")));
  await table.locator("tbody tr").nth(tokens.length - 1).waitFor();
  const cells = await table.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent)));
  assert.deepEqual(cells.map(row).sort(([a, b], [c, d]) => a - c || b - d), tokens);
  assert.match(await page.locator(".sentence").textContent(), /^Forked onto their parent's prompt\./);
  assert.equal(await page.title(), "Agent × 3 · forkpoint");
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
  await page.locator("tbody tr").waitFor();
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
  assert.match(await page.locator("#money .since").textContent(), /matching requests? still in memory/);

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
  assert.match(sentence, /[\d,]+ cached tokens were not read because the system or the speed changed \(system\), first at system\[0\], byte [\d,]+\. That cost about \$0\.\d+\./);
});

test("filters by tenant, client and model leave what matches, and its sums", async () => {
  const { proxy, admin } = await forkpoint();
  const agents = [
    { children: 2, key: "sk-one", client: "claude-cli/2.1.3" },
    { children: 3, key: "sk-two", client: "anthropic-python/0.60" },
    { children: 4, key: "sk-one", client: "claude-cli/2.1.3", model: "claude-sonnet-4-6" },
  ];
  for (const { children, ...options } of agents) await new Agent(proxy, options).fanOut(children);
  const page = await shown(admin);
  await page.locator(".card").nth(2).waitFor();
  // A fan-out of n children is a request that fans out, two of each child, and one that brings the results.
  const requests = (sizes) => sizes.reduce((sum, n) => sum + 2 * n + 2, 0);
  for (const [name, groups] of [["tenant", ["2 4", "3"]], ["client", ["2 4", "3"]], ["model", ["2 3", "4"]]]) {
    const select = page.getByLabel(name);
    const values = await select.locator("option").evaluateAll((options) => options.map((option) => option.value).filter(Boolean));
    const found = [];
    for (const value of values) {
      await select.selectOption(value);
      await page.waitForURL((url) => new URLSearchParams(url.hash.split("?")[1]).get(name) === value);
      await frames(page);
      assert.match(await page.locator("#money .since").textContent(), /matching requests? still in memory/);
      const sizes = (await page.locator(".card h2 .size").allTextContents()).map((text) => Number(text.replace(/\D/g, ""))).sort();
      await ended(page, requests(sizes));
      found.push(sizes.join(" "));
    }
    assert.deepEqual(found.sort(), groups, name);
    await select.selectOption("");
    await page.locator(".card").nth(2).waitFor();
  }
});

test("sums by a filter follow what comes", async () => {
  const { proxy, admin } = await forkpoint();
  await new Agent(proxy, { tool: "task" }).fanOut(2);
  const page = await shown(admin, "#/fan-outs?client=claude-cli%2F2.1");
  await ended(page, 6);
  await new Agent(proxy, { client: "anthropic-python/0.60" }).fanOut(2);
  await new Agent(proxy).fanOut(3);
  await ended(page, 6 + 8);
  assert.deepEqual(await page.locator(".card h2").allTextContents(), ["Agent × 3", "task × 2"]);
});

test("the cells of a fan-out add up to the money line, and its bars are its figures", async () => {
  // A simulator of its own: of what other tests have written, nobody here knows what it would have cost.
  const fresh = await startSim("--latency", "100", "--pace", "1");
  started.push(fresh);
  const { proxy, admin } = await forkpoint(FORK, fresh.url);
  await new Agent(proxy).fanOut(3);
  const page = await shown(admin);
  await ended(page, 8);
  await page.locator(".card h2 a").click();
  const rows = (name) => page.getByRole("region", { name }).locator("tbody tr");
  await rows("Three worlds").nth(7).waitFor();
  const dollars = (text) => Number(text.replace(/[$,]/g, "").replace("−", "-"));
  const cells = (await rows("Three worlds").evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent)))).map((row) => row.slice(1).map(dollars));
  for (const [column, kind] of [[0, "billed"], [1, "sent"], [2, "aligned"]]) {
    const sum = cells.reduce((all, row) => all + row[column], 0);
    const line = dollars(await figure(page, kind).textContent());
    assert.ok(Math.abs(sum - line) < 0.00006 * (cells.length + 1), `${kind}: ${sum} is not ${line}`);
  }
  for (const [billed, sent, , saved] of cells) assert.ok(Math.abs(sent - billed - saved) < 0.0002, `${sent} − ${billed} is not ${saved}`);

  const requests = await rows("Requests").evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent)));
  const bars = await rows("Prompts").evaluateAll((all) => all.map((row) => {
    const width = (kind) => [...row.querySelectorAll(`svg.prompt rect.${kind}`)].reduce((sum, rect) => sum + parseFloat(rect.getAttribute("width")), 0);
    const kinds = ["read", "written", "uncached", "tools", "system", "history", "own", "shared", "own-part"];
    return { ...Object.fromEntries(kinds.map((kind) => [kind, width(kind)])), words: row.querySelector(".bars .small").textContent };
  }));
  assert.equal(bars.length, requests.length);
  const number = (text) => Number(text.replaceAll(",", ""));
  for (const [i, bar] of bars.entries()) {
    const [read, five, hour, uncached] = requests[i].slice(7, 11).map(number);
    const of = (tokens) => (100 * tokens) / (read + five + hour + uncached);
    for (const [kind, tokens] of [["read", read], ["written", five + hour], ["uncached", uncached]]) {
      assert.ok(Math.abs(bar[kind] - of(tokens)) < 0.01, `${requests[i][0]}: ${kind} is ${bar[kind]} and not ${of(tokens)}`);
    }
    assert.ok(Math.abs(bar.tools + bar.system + bar.history + bar.own - 100) < 0.1, JSON.stringify(bar));
    assert.ok(Math.abs(bar.shared + bar["own-part"] - 100) < 0.1, JSON.stringify(bar));
    for (const kind of ["tools", "system", "history", "own"]) {
      assert.equal(bar[kind] > 0, !new RegExp(`${kind} 0 B`).test(bar.words), `${kind} in ${bar.words}`);
    }
  }
  assert.ok(bars.some((bar) => bar.shared > 50 && bar.read > 50), "a forked child shares and reads most of its prompt");
});

test("what children read again is said, and shown beside each", async () => {
  const { proxy, admin } = await forkpoint({ MODE: "align" });
  await new Agent(proxy).session(1, 2);
  const page = await shown(admin);
  await page.locator(".card h2 a").click();
  const said = page.getByText("tokens that their parent had already read");
  await said.waitFor();
  const total = Number((await said.textContent()).replace(/[^\d]/g, ""));
  const rows = page.getByRole("region", { name: "Requests" }).locator("tbody tr");
  const cells = await rows.evaluateAll((all) => all.map((row) => [row.firstElementChild.textContent, Number(row.lastElementChild.textContent.replaceAll(",", ""))]));
  const leaders = cells.map(([who]) => who).filter((who) => who.endsWith("leads"));
  assert.match(leaders.join(), /^child [12]\/2 turn 1leads$/, "one of them, by its first turn and no later one");
  const again = cells.filter(([, tokens]) => tokens > 0);
  assert.deepEqual(again.map(([who]) => who.replace("leads", "")).sort(), ["child 1/2 turn 2", "child 2/2 turn 2"]);
  assert.equal(again.reduce((sum, [, tokens]) => sum + tokens, 0), total);
  assert.ok(total > 1000, `${total}`);
});

test("a page that is opened late has every fan-out that is kept", async () => {
  const { proxy, admin } = await forkpoint({ MODE: "align" });
  const early = await shown(admin);
  await isLive(early);
  const agents = Array.from({ length: 10 }, (_, i) => new Agent(proxy, { key: `sk-${i}`, tool: ["Agent", "task"][i % 2] }));
  for (let round = 0; round < 4; round += 1) await Promise.all(agents.map((agent, i) => agent.fanOut(2 + (i % 3), "text words=5")));
  const sizes = 4 * (2 * 10 + 4 * 2 + 3 * 3 + 3 * 4);
  await ended(early, sizes);
  const titles = async (page) => {
    await page.locator(".card").nth(39).waitFor();
    return page.locator(".card h2").allTextContents();
  };
  const before = await titles(early);
  await early.reload();
  await ended(early, sizes);
  assert.deepEqual(await titles(early), before);
  const late = await shown(admin);
  await ended(late, sizes);
  for (const kind of ["all", "billed", "sent", "aligned", "hits"]) {
    assert.equal(await figure(late, kind).textContent(), await figure(early, kind).textContent());
  }
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
        await isAccessible(page, `${hash} ${colorScheme}`);
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
  const here = page.url();
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "content");
  assert.equal(page.url(), here, "the address still names the view");
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
  const { file, text } = await savedFile(page, () => page.keyboard.press("Enter"));
  assert.ok(!/<script|src=|href=|@import|url\(/.test(text), "it loads nothing");
  await page.route("**/page/page.css", (route) => route.fulfill({ status: 503 }));
  await page.getByRole("button", { name: "Save this fan-out" }).click();
  await page.getByText("It was not saved").waitFor();
  await page.unroute("**/page/page.css");
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

test("time passes on the page when nothing else happens", async () => {
  const { proxy, admin } = await forkpoint();
  const page = await shown(admin);
  await isLive(page);
  await page.clock.install();
  await page.reload();
  await isLive(page);
  await forgetBills();
  await new Agent(proxy).fanOut(2);
  await ended(page, (await bill()).tokens.length);
  await page.locator("#money .recent .label", { hasText: /^saved in the last 10 minutes/ }).waitFor();
  await page.clock.fastForward("15:00");
  await page.clock.runFor(6_000);
  await page.locator("#money .recent .big", { hasText: /^nothing yet$/ }).waitFor();
  assert.match(await page.locator("#settings").textContent(), /up 15 min/);
});

test("a request that brings results and fans out again is drawn on both fan-outs", async () => {
  const { proxy, admin } = await forkpoint();
  const page = await shown(admin);
  await isLive(page);
  await new Agent(proxy).fanOutAgain(2);
  const cards = page.locator(".card");
  await cards.nth(1).waitFor();
  await cards.nth(0).locator(".row", { hasText: "parent" }).waitFor();
  await cards.nth(1).locator(".row", { hasText: "results" }).waitFor();
});

/** Waits until the list is drawn, and checks that hostile names in it are text and nothing else. */
async function isHarmless(page) {
  const width = page.viewportSize().width;
  const fits = async () => assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, "nothing is pushed aside");
  assert.equal(await page.locator("#content :is(img, script, iframe)").count(), 0);
  const isTitle = async () => assert.match(await page.title(), /^(.+ · )?forkpoint$/, "no script has changed it");
  await isTitle();
  await fits();
  await page.locator(".card h2 a").first().click();
  await page.locator("main > h2").waitFor();
  await fits();
  for (const view of ["Requests", "Cache breaks"]) {
    await page.getByRole("link", { name: view }).click();
    await page.getByRole("heading", { name: view }).waitFor();
    await fits();
  }
  await isTitle();
}

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
    assert.ok(names.includes("a\\u034f\\u0301\\u0301\\u0301b\\u{e0041}\\u{e0042}\\u{e0020}c"), `${names}`);
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

test("the page escapes what the terminal does, character by character", async () => {
  const source = await readFile(join(ROOT, "src/report/figures.rs"), "utf8");
  const ranges = [...source.matchAll(/'\\u\{([0-9a-f]+)\}'(?:\.\.='\\u\{([0-9a-f]+)\}')?/g)].map(([, from, to]) => [parseInt(from, 16), parseInt(to ?? from, 16)]);
  assert.ok(ranges.length > 20, `${ranges.length} ranges`);
  const isControl = (code) => code < 0x20 || (code >= 0x7f && code < 0xa0);
  for (let code = 0; code <= 0x10ffff; code += 1) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const isUnseen = isControl(code) || ranges.some(([from, to]) => code >= from && code <= to);
    const text = String.fromCodePoint(code);
    if ((format.name(text) !== text) !== isUnseen) assert.fail(`U+${code.toString(16)} is ${isUnseen ? "not " : ""}escaped`);
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
  // By the default settings: children that, unless forked, first read again what their parent has read.
  const demo = await startDemo("--scenario", "reread", "--children", "4");
  started.push(demo);
  const page = await shown(demo.admin, "", { viewport: { width: 1280, height: 1040 } });
  // Those of the README are of traffic that has lasted for a while.
  const minutes = process.env.PICTURES ? 12 : 1;
  await page.locator(".spark rect").nth(minutes - 1).waitFor({ state: "attached", timeout: 15 * 60_000 });
  const forked = page.locator(".card.running", { hasText: "Forked onto" });
  // The leader answers, and the others still wait or have just begun.
  await forked.locator(".row", { hasText: "child 4/4" }).waitFor({ timeout: 120_000 });
  await forked.locator(".row .answering").nth(2).waitFor({ state: "attached" });
  // Down to the end of a card, and of a row: nothing is cut.
  const endOf = (element) => element.evaluate((one) => Math.ceil(one.getBoundingClientRect().bottom) + 10);
  const cut = async (name, width, from, to) => page.screenshot({ path: join(folder, name), clip: { x: 0, y: from, width, height: to - from } });
  await cut("page.png", 1280, 0, await endOf(page.locator(".card").nth(1)));

  const done = page.locator(".card:not(.running)", { hasText: "Forked onto" }).first();
  await done.waitFor({ timeout: 120_000 });
  await page.emulateMedia({ colorScheme: "dark" });
  await done.locator("h2 a").click();
  await page.locator(".detail table").first().waitFor();
  // What is outside of the window is not drawn.
  await page.setViewportSize({ width: 1400, height: 4000 });
  const row = page.getByRole("region", { name: "Prompts" }).locator("tbody tr").nth(3);
  await row.getByText("sent").first().waitFor();
  const [requests, prompts] = [await endOf(page.getByRole("region", { name: "Requests" })), await endOf(row)];
  await cut("page-fan-out.png", 1400, 0, requests);
  await cut("page-prompts.png", 1400, requests, prompts - 10);
});
