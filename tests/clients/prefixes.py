"""What the agents of the forked programs must have seen: always what expectations.py asks, and in mode `fork` that
their children went out on the parent's prefix, kept it for life, and paid for it what reading it costs."""

from __future__ import annotations

import json
from typing import Any

from expectations import Saw, equal, expect, header, kinds, most_at_once, stops, text_of, unmarked

# Of the shared prefix, what every child but the first must read.
READ_MIN = 0.99
PLACEHOLDER = "Fork started -- processing in background"


def children(saw: Saw) -> list[str]:
    return sorted(name for name in saw.agents if name != "parent")


def requests_of(saw: Saw, agent: str) -> list[dict[str, Any]]:
    """What the simulator received from an agent, in the order it came."""
    found = [record for record in saw.requests if header(record["headers"], "x-agent") == [agent]]
    return sorted(found, key=lambda record: record["number"])


def said(saw: Saw, agent: str, name: str) -> list[str]:
    """A header of forkpoint's own on every response that an agent got."""
    return [
        value
        for response in saw.agents[agent]["responses"]
        for value in header(response["headers"], f"x-forkpoint-{name}") or ["nothing"]
    ]


def reported(saw: Saw, number: int) -> None:
    """The parent fanned out, and got every child's last words."""
    names = [f"child {index}" for index in range(1, number + 1)]
    equal(children(saw), names, "children")
    first, last = saw.messages("parent")
    equal(kinds(first), ["text"] + ["tool_use"] * number, "the fan-out turn")
    equal(last["stop_reason"], "end_turn", "the end of the parent")
    reports = [text_of(saw.messages(name)[-1]) for name in names]
    equal(len(set(reports)), number, "different reports")
    final = json.loads(requests_of(saw, "parent")[-1]["body"])
    equal([block["content"] for block in final["messages"][-1]["content"]], reports, "reports to the parent")


def on_the_prefix(saw: Saw) -> None:
    """What holds for every forked child on every turn."""
    forks = set()
    for name in children(saw):
        answers = len(saw.agents[name]["responses"])
        for word, wanted in [("role", "child"), ("plan", "forked"), ("reason", "none")]:
            equal(said(saw, name, word), [wanted] * answers, f"{word} of {name}")
        equal(len(set(said(saw, name, "prefix"))), 1, f"prefixes of {name}")
        forks.update(said(saw, name, "fork"))
    equal(len(forks), 1, "fork points")
    firsts = [requests_of(saw, name)[0] for name in children(saw)]
    shared = {up_to_the_directive(saw, name, record) for name, record in zip(children(saw), firsts)}
    equal(len(shared), 1, "different bytes before the directives")
    (prefix,) = shared
    equal(prefix.count(PLACEHOLDER), len(firsts), "placeholders in the prefix")
    # Everything of the parent's last prompt stands in it, and the child's own manual too.
    asked = json.loads(requests_of(saw, "parent")[0]["body"])
    for words in [asked["system"], asked["messages"][0]["content"], asked["messages"][2]["content"]]:
        text = words if isinstance(words, str) else words[0]["text"]
        assert spelt(text) in prefix, f"the parent's {text[:40]!r} is missing"
    assert "A page of the manual" in prefix, "the child's own words are missing"
    followers_read_it(firsts)


def up_to_the_directive(saw: Saw, name: str, record: dict[str, Any]) -> str:
    """A child's request as far as it shares it with its siblings."""
    calls = [block for block in saw.messages("parent")[0]["content"] if block["type"] == "tool_use"]
    directive = calls[int(name.removeprefix("child ")) - 1]["input"]["prompt"]
    # It also stands in the parent's own turn, among the calls.
    before, found, _ = record["body"].rpartition(f'{{"type":"text","text":{spelt(directive)}')
    assert found, f"the directive of {name} is not in its request"
    return before


def spelt(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def followers_read_it(firsts: list[dict[str, Any]]) -> None:
    billed = [record for record in firsts if record["status"] == 200]
    _, *followers = sorted(billed, key=lambda record: record["number"])
    assert followers, "nobody followed"
    for record in followers:
        # The last breakpoint is the tail, with the directive in it; the one before ends the shared prefix.
        shared = record["breakpoints"][-2]["tokens"]
        read = record["usage"]["cache_read"]
        assert read >= READ_MIN * shared, f"{read} of the {shared} tokens that are shared were read"


def cost(saw: Saw) -> float:
    return sum(record["cost_usd"] or 0 for name in children(saw) for record in requests_of(saw, name))


def cheaper(directly: Saw, forked: Saw, most: float) -> None:
    """Nothing is marked directly, so nothing is read there; a fork must be worth its while."""
    before, after = cost(directly), cost(forked)
    assert after <= most * before, f"the children cost {after:.6f} $, and {before:.6f} $ directly"


# --- the programs ---------------------------------------------------------------------------------


def lives_are_forked(directly: Saw, saw: Saw) -> None:
    on_the_prefix(saw)
    for name in children(saw):
        first, *middle, compacted = requests_of(saw, name)
        written = ["cache_read", "cache_write_5m", "cache_write_1h"]
        before = 0
        for turn, record in enumerate([first, *middle], start=1):
            usage = record["usage"]
            assert usage["cache_read"] >= before, f"turn {turn} of {name} read {usage}, {before} were there"
            before = sum(usage[kind] for kind in written)
        # Its bytes, for life; only the markers move on.
        turns = [first, *middle, compacted]
        equal(len({unmarked(up_to_the_directive(saw, name, turn)) for turn in turns}), 1, f"prefixes of {name}")
        read, there = compacted["usage"]["cache_read"], first["breakpoints"][-2]["tokens"]
        assert read >= READ_MIN * there, f"compacted, {name} read {read} of {there}"
    cheaper(directly, saw, 0.5)


@expect(forked=lives_are_forked)
def forked(saw: Saw) -> None:
    reported(saw, 4)
    for name in children(saw):
        equal(stops(saw.messages(name)), ["tool_use"] * 3 + ["end_turn"] * 2, f"turns of {name}")
        bodies = [json.loads(record["body"]) for record in requests_of(saw, name)]
        assert all(body["stream"] for body in bodies), f"{name} did not stream"
        lengths = [len(body["messages"]) for body in bodies]
        assert lengths[-1] == lengths[1] < lengths[2] < lengths[3], f"{name} did not compact: {lengths}"
    assert most_at_once(saw.requests) >= 2, "the children did not work at the same time"


def siblings_go_on(_: Saw, saw: Saw) -> None:
    on_the_prefix(saw)
    left, again = requests_of(saw, "child 1")
    equal(again["body"], left["body"], "what is asked once more")
    assert again["usage"]["cache_read"] >= READ_MIN * left["breakpoints"][-1]["tokens"], again["usage"]


@expect(forked=siblings_go_on)
def forked_cancelled(saw: Saw) -> None:
    reported(saw, 3)
    equal(len(saw.steps("event", "child 1")), 5, "events before the first child left")
    ends = {name: [record["ending"] for record in requests_of(saw, name)] for name in children(saw)}
    equal(ends["child 1"], ["client_left", "complete"], "endings of the one that left")
    equal([ends["child 2"], ends["child 3"]], [["complete"]] * 2, "endings of its siblings")


def retries_are_one_claim(directly: Saw, saw: Saw) -> None:
    on_the_prefix(saw)
    equal(len({record["body"] for record in requests_of(saw, "child 2")}), 1, "different attempts")
    cheaper(directly, saw, 1.0)


@expect(
    {"fault": "status", "status": 529, "count": 2, "match": {"headers": {"x-agent": "child 2"}}},
    forked=retries_are_one_claim,
)
def forked_retried(saw: Saw) -> None:
    reported(saw, 3)
    statuses = {name: [record["status"] for record in requests_of(saw, name)] for name in children(saw)}
    equal(statuses, {"child 1": [200], "child 2": [529, 529, 200], "child 3": [200]}, "statuses")
    counts = [header(record["headers"], "x-stainless-retry-count") for record in requests_of(saw, "child 2")]
    equal(counts, [["0"], ["1"], ["2"]], "x-stainless-retry-count")
