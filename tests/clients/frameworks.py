"""What holds for programs in which a framework does the talking: the same last text directly and through forkpoint,
and no error. Their bytes are the framework's business, so the journal is asked only what forkpoint must not change.

A program that holds its conversation on the server meets a simulator that loses threads and refuses continues at
random; the SDKs recover from that by sending everything again. They do not recover from fixed fields that differ,
which the simulator refuses too: that must never happen. Other faults are drawn in every run; `CLIENTS_SEED` repeats one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from expectations import BOTH, Saw, equal, header

MODES = ["observe", "align", "fork"]


@dataclass
class Framework:
    languages: tuple[str, ...]
    # Rules of the simulator, for programs whose conversations it holds.
    rules: tuple[str, ...] = ()
    # Modes in which the first continue is refused for fields that differ. The SDKs do not recover from that; in a
    # conversation that was changed, forkpoint asks them for the whole of it instead.
    mismatches: tuple[str, ...] = ()
    # How many children it starts, all of which are forked in mode `fork`: there they read another prompt, and so say
    # as many words, but other ones.
    children: int = 0
    # Its model binds what it thinks to what came before, with the order of the keys, which is another when the Python SDK
    # sends a conversation again: there nothing is refused.
    is_bound: bool = False


# Whether a continue is refused, and how, follows from the seed and the answer that it goes on from.
FAULTS = ("threads.loss_percent=30", "threads.refusal_percent=30")
DRAWN = {"thread_not_found", "thread_already_continued", "thread_continue_in_flight"}
MISMATCH = "thread_fingerprint_mismatch"
# The reason of what forkpoint answers to one itself.
OURS = "thread_mismatch"
FRAMEWORKS = {
    "ai_sdk": Framework(("typescript",), children=3),
    "deepagents": Framework(("python",), children=3),
    "tool_runner": Framework(BOTH, FAULTS),
    "runner_agents": Framework(BOTH, FAULTS, children=3),
    "whole_agents": Framework(BOTH, children=3),
    "refused_agents": Framework(BOTH, FAULTS, mismatches=("align", "fork"), children=3),
    "late_agents": Framework(BOTH, FAULTS, children=3, is_bound=True),
    "held_thread": Framework(BOTH, FAULTS),
    "refused_thread": Framework(BOTH, FAULTS, mismatches=("align", "fork")),
}


def judge(name: str, mode: str | None, saw: Saw, directly: Saw | None, children: dict[str, int]) -> None:
    """Raises `AssertionError` unless a run of a program is right; `mode` is none for the direct one. `children` are
    those that forkpoint counted, by plan and reason."""
    framework = FRAMEWORKS[name]
    assert not saw.errors(), saw.errors()
    text = saw.value("text")
    assert len(text) > 20, f"the last text is {text!r}"
    refused = {record["error_code"] for record in saw.requests if record["status"] != 200}
    ordered = {MISMATCH} if mode in framework.mismatches else set()
    equal(refused - DRAWN, ordered, "refusals")
    ours = [one["status"] for one in saw.responses() if header(one["headers"], "x-forkpoint-reason") == [OURS]]
    equal(ours, [404] * len(ordered), "requests for the whole conversation")
    if framework.rules:
        held(saw, mode)
    if framework.children:
        equal(len(reports(saw)), framework.children, "reports")
    if directly is None:
        return
    if framework.children and mode == "fork":
        equal(children, {"forked: none": framework.children}, "children")
    # The simulator's words follow from the bytes of the prompt. That of a forked child is another, and so is what its
    # parent reads. The Python SDK writes the keys of what it was answered in another order when it sends that again.
    is_resent = any(record["error_code"] for record in [*saw.requests, *directly.requests])
    are_others = (framework.children and mode == "fork") or (saw.language == "python" and is_resent)
    for what, found, wanted in [
        ("the last text", [text], [directly.value("text")]),
        ("the reports", reports(saw), reports(directly)),
    ]:
        if are_others:
            found, wanted = ([len(words.split()) for words in texts] for texts in [found, wanted])
        equal(sorted(found), sorted(wanted), what)


def held(saw: Saw, mode: str | None) -> None:
    """Conversations were held by the server, went on there, and were marked where forkpoint does that."""
    bodies = [body for body in saw.bodies() if body.get("thread")]
    kinds = {body["thread"]["type"] for body in bodies}
    equal(kinds, {"create", "continue"}, "threads")
    marked = any("cache_control" in json.dumps(body["messages"]) for body in bodies)
    equal(marked, mode in ["align", "fork"], "marked")


def reports(saw: Saw) -> list[str]:
    """What the children said."""
    said = [step["value"] for step in saw.steps("value") if step["name"] in ["report", "reports"]]
    return [text for value in said for text in (value if isinstance(value, list) else [value])]


def is_expected(name: str, language: str) -> bool:
    return language in FRAMEWORKS[name].languages


def rules_of(name: str, language: str) -> list[str]:
    framework = FRAMEWORKS[name]
    rules = () if framework.is_bound and language == "python" else framework.rules
    return [word for rule in rules for word in ["--rule", rule]]


def faults_of(name: str, mode: str | None) -> list[dict[str, Any]]:
    framework, matching = FRAMEWORKS[name], {"body_contains": "previous_message_id"}
    is_ordered = mode in framework.mismatches
    return [{"fault": "refusal", "code": MISMATCH, "match": matching}] if is_ordered else []
