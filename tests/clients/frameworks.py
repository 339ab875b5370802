"""What holds for programs in which a framework does the talking: the same last text directly and through forkpoint,
and no error. Their bytes are the framework's business, so the journal is asked only what forkpoint must not change.

A program that holds its conversation on the server meets a simulator that loses threads at random and refuses some
continues; the SDKs recover from that by sending everything again. They do not recover from fixed fields that differ,
which the simulator refuses too: that must never happen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from expectations import BOTH, Saw, equal

MODES = ["observe", "align", "fork"]


@dataclass
class Framework:
    languages: tuple[str, ...]
    # Rules of the simulator, and refusals that it is ordered to give to the first continues.
    rules: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    # Modes in which the first continue is refused for fields that differ. The SDKs do not recover from that; in a
    # conversation that was changed, forkpoint asks them for the whole of it instead.
    mismatches: tuple[str, ...] = ()
    # How many children it starts, all of which are forked in mode `fork`: there they read another prompt, and so say
    # something else.
    children: int = 0


LOSSY = ("threads.loss_percent=30",)
MISMATCH = "thread_fingerprint_mismatch"
REFUSALS = ("thread_already_continued", "thread_continue_in_flight")
FRAMEWORKS = {
    "ai_sdk": Framework(("typescript",), children=3),
    "deepagents": Framework(("python",), children=3),
    "tool_runner": Framework(BOTH, LOSSY, REFUSALS),
    "runner_agents": Framework(BOTH, LOSSY, children=3),
    "whole_agents": Framework(BOTH, children=3),
    "refused_agents": Framework(BOTH, ("threads.loss_percent=0",), mismatches=("align", "fork"), children=3),
    "late_agents": Framework(("python",), ("threads.loss_percent=0",), children=3),
    "held_thread": Framework(("typescript",), LOSSY, REFUSALS),
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
    equal(refused - {"thread_not_found", *framework.refusals}, ordered, "refusals")
    if framework.rules:
        threads = [json.loads(record["body"]).get("thread") for record in saw.requests]
        assert {"type": "create"} in threads, "no conversation was held on the server"
        assert any((thread or {}).get("type") == "continue" for thread in threads), "none was continued"
    if directly is None:
        return
    if framework.children and mode == "fork":
        equal(children, {"forked: none": framework.children}, "children")
    else:
        equal(comparable(text, saw), comparable(directly.value("text"), saw), "the last text")


def comparable(text: str, saw: Saw) -> Any:
    """The simulator's words follow from the bytes of the prompt. The Python SDK writes the keys of what it was answered
    in another order, so a conversation that is sent again is continued with as many words, and not with the same."""
    is_resent = any(record["error_code"] for record in saw.requests)
    return len(text.split()) if saw.language == "python" and is_resent else text


def is_expected(name: str, language: str) -> bool:
    return language in FRAMEWORKS[name].languages


def rules_of(name: str) -> list[str]:
    return [word for rule in FRAMEWORKS[name].rules for word in ["--rule", rule]]


def faults_of(name: str, mode: str | None) -> list[dict[str, Any]]:
    framework, matching = FRAMEWORKS[name], {"body_contains": "previous_message_id"}
    codes = [*framework.refusals, *([MISMATCH] if mode in framework.mismatches else [])]
    return [{"fault": "refusal", "code": code, "match": matching} for code in codes]
