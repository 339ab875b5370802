// What the page knows and says, without a browser.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { child, exchange, snapshot, sums, underway } from "./relay.mjs";

const of = (name) => import(pathToFileURL(join(process.cwd(), "src/admin/page", name)));
const [format, { Model }, fanout, { stepOf }] = await Promise.all(["format.js", "model.js", "fanout.js", "draw.js"].map(of));

const FORK = "f00dcafe";
const NOW = Date.now();

function model(exchanges = [], more = {}) {
  const one = new Model();
  one.apply("snapshot", snapshot(NOW, exchanges, more));
  return one;
}

test("what is kept is bounded, and what was left out is said", () => {
  const one = model();
  const say = (data) => one.apply("exchange", data);
  for (let turn = 1; turn <= 250; turn += 1) say(child(NOW + turn, FORK, 1, { child_turn: turn }));
  for (let number = 2; number <= 260; number += 1) say(child(NOW + number, FORK, number));
  for (let i = 0; i < 210; i += 1) say(exchange(NOW + i, { role: "parent", fork: FORK }));
  const fanOut = one.fanOuts.get(FORK);
  assert.deepEqual([fanOut.children.size, fanOut.children.get("#1").length, fanOut.returns.length], [200, 200, 200]);
  assert.equal(fanOut.leftOut, 50 + 60 + 10);
  assert.match(fanout.sentence(fanOut), / 120 requests of it are no longer kept; figures are of the others\.$/);
  assert.ok(!one.isWhole);
  const gone = [];
  for (let i = 0; i < 1500; i += 1) gone.push(...say(exchange(NOW + i, { fanned_out: `a${i}`, fanned_out_children: 2 })).slice(1));
  assert.equal(one.fanOuts.size, 1000);
  assert.deepEqual(gone.slice(0, 2), [FORK, "a0"], "whoever draws them hears of it");
  for (let i = 0; i < 150; i += 1) for (let turn = 1; turn <= 200; turn += 1) say(child(NOW, `b${i}`, 1, { child_turn: turn }));
  const kept = [...one.fanOuts.values()].reduce((sum, fanOut) => sum + fanOut.kept(), 0);
  assert.ok(kept <= 20_000 && kept > 19_000, `${kept}`);
  assert.ok(one.requests.length <= 2000);
});

test("a snapshot that has not every request says so", () => {
  assert.ok(model([exchange(NOW)]).isWhole);
  assert.ok(!model([exchange(NOW)], { total: sums(2) }).isWhole);
});

test("a child leads by its first request, while it runs too", () => {
  const one = model([exchange(NOW, { fanned_out: FORK, fanned_out_children: 3 })], { underway: [underway(NOW, FORK, 1, { n: 1 })] });
  const leaders = () => fanout.rows(one.fanOuts.get(FORK)).filter((row) => row.leads).map((row) => row.label);
  assert.deepEqual(leaders(), ["child 1/3"]);
  one.apply("exchange", child(NOW, FORK, 1, { n: 1 }));
  for (const number of [2, 3]) {
    one.apply("exchange", child(NOW, FORK, number));
    one.apply("exchange", child(NOW + 1, FORK, number, { child_turn: 2, gate: "led" }));
    one.apply("underway", underway(NOW + 2, FORK, number, { n: 9 + number, gate: "led" }));
  }
  assert.deepEqual(leaders(), ["child 1/3"], "a later turn leads nobody");
});

test("failures are those of the log, and a fan-out names their causes", () => {
  const broken = child(NOW, FORK, 1, { failed: true, error: "overloaded_error" });
  const silent = child(NOW, FORK, 2, { failed: true, status: 502, ending: "refused", fault: "upstream_silent", reason: "upstream_silent" });
  const left = child(NOW, FORK, 3, { status: undefined, ending: "client_left" });
  const one = model([], { total: sums(0) });
  for (const x of [broken, silent, left]) one.apply("exchange", x);
  assert.deepEqual([one.total.requests, one.total.failed], [3, 2]);
  assert.match(fanout.sentence(one.fanOuts.get(FORK)), / 2 requests failed: overloaded_error; the upstream stayed silent\./);
  assert.match(fanout.requestInWords(broken), /failed after 2\.50 s: overloaded_error/);
  assert.match(fanout.requestInWords(left), /the client left, done after/);
});

test("layers and the shared part are in words", () => {
  assert.match(fanout.requestInWords(child(NOW, FORK, 1)), /tools 7\.8 kB, system 25\.2 kB, history 3\.5 kB, own 27\.2 kB, shared 36\.5 kB of 63\.7 kB$/);
});

test("what mode fork would do is said, and what a parent's context cost", () => {
  const say = (...children) => fanout.sentence(model(children).fanOuts.get(FORK));
  const watched = (number, would_fork) => child(NOW, FORK, number, { plan: "passthrough", reason: "observe", would_fork, context_usd: undefined });
  assert.match(say(watched(1, "none"), watched(2, "none")), /^Left alone, byte for byte: the mode is observe\. In mode fork they would be forked\.$/);
  assert.match(say(watched(1, "none"), watched(2, "model")), / In mode fork 1 of 2 would be forked\.$/);
  assert.match(say(watched(1, "model")), / In mode fork they would not be forked either: its parent's model differs\.$/);
  assert.match(say(child(NOW, FORK, 1)), /^Forked onto their parent's prompt\. The parent's context cost \$0\.0010 more than aligning\.$/);
  assert.doesNotMatch(say(child(NOW, FORK, 1, { context_usd: undefined })), /context/);
});

test("the last ten minutes are ten, by a filter too", () => {
  const start = NOW - (NOW % 60_000);
  const at = (minute, more) => exchange(start - minute * 60_000 - 2500, more);
  const [ten, nine] = [at(10, { client: "a" }), at(9, { client: "a" })];
  const one = model([], { total: sums(0) });
  for (const x of [at(60), ten, nine, at(0, { client: "b" })]) one.apply("exchange", x);
  one.now = () => start + 59_000;
  assert.equal(one.recent(one.minutes, 10).requests, 2);
  const { total, minutes } = one.historyOf({ client: "a" });
  assert.deepEqual([total.requests, one.recent(minutes, 10).requests], [2, 1]);
  one.apply("exchange", exchange(start, { client: "a" }));
  assert.equal(one.recent(one.historyOf({ client: "a" }).minutes, 10).requests, 2);
});

test("an axis has few marks, whatever its length", () => {
  for (let length = 1; length < 1e9; length = Math.ceil(length * 1.3)) {
    const marks = length / stepOf(length);
    assert.ok(marks <= 5 && (marks >= 1 || length < 5), `${length}: ${marks}`);
  }
});

test("a figure that is rounded up has the form of the larger one", () => {
  const said = (say, values) => values.map((value) => say(value));
  assert.deepEqual(said(format.duration, [999.4, 999.6, 9994, 9996, 59_940, 59_970, 119_600, 3_599_700]), [
    "999 ms", "1.00 s", "9.99 s", "10.0 s", "59.9 s", "1 min 0 s", "2 min 0 s", "1 h 0 min",
  ]);
  assert.deepEqual(said(format.usd, [0.99996, 1.095, 9.99996, 99.9996, -0.00001]), ["$1.0000", "$1.0950", "$10.00", "$100.00", "$0.0000"]);
  assert.deepEqual(said((part) => format.percent(part, 1000), [0, 0.2, 9.7, 99.6, 994, 996, 999.99, 1000, -30]), [
    "0 %", "0 %", "1 %", "10 %", "99 %", "99.6 %", "99.9 %", "100 %", "−3 %",
  ]);
  assert.deepEqual(said(format.bytes, [999, 999_940, 999_960]), ["999 B", "999.9 kB", "1.0 MB"]);
});

test("a time of another day has its day, and that of a file its zone", () => {
  assert.match(format.moment(NOW, NOW), /^\d\d:\d\d:\d\d$/);
  assert.match(format.moment(NOW - 3 * 86_400_000, NOW), /^\d+ \w+ \d\d:\d\d:\d\d$/);
  assert.match(format.dateTime(NOW), /\d{4}.*\d\d:\d\d:\d\d.* (UTC|GMT|[A-Z]{3,4})/);
});
