#!/usr/bin/env python3
"""Drives a real Claude Code against the simulator, directly and through forkpoint in each mode.

    tests/deep clients

It fans out to three agents, with conversations that the server holds (`CLAUDE_CODE_TETHER_LIVE=1`) and without, once more
with threads that the simulator loses and continues that it refuses at random, and once with a continue of an agent whose
fields it finds changed. Each run must end without an error and with as many words as the direct one (which words depends on ids
and times in its prompt), the upstream may never see a field that a thread holds otherwise, and in `fork` every agent must be
forked, and the changed fields must be answered by forkpoint. `CLIENTS_SEED` repeats what was drawn, as far as the prompts
are the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True

import drive  # noqa: E402
import frameworks  # noqa: E402

CLAUDE = drive.CLIENTS / "claude-code" / "node_modules" / ".bin" / "claude"
AGENTS = 3
FAN_OUT = f"fan_out n={AGENTS} tool=Agent field=prompt alike=true type=general-purpose"
PROMPT = f"Look at it. [[sim:{FAN_OUT} | tools turns=2 tool=Read]]"
RUN_SECONDS = 120
MISMATCH = "thread_fingerprint_mismatch"
# Of an agent, whose results are errors: forkpoint changes nothing for its parent, which marks all by itself.
MISMATCHED = {"fault": "refusal", "code": MISMATCH, "match": {"body_contains": '"is_error":true'}}


@dataclass
class Weather:
    """Who holds the conversations, and how well."""

    name: str
    threads: bool = False
    rules: tuple[str, ...] = ()
    # Refusals that are ordered.
    faults: tuple[dict[str, Any], ...] = ()


WEATHERS = [
    Weather("whole"),
    Weather("held", threads=True),
    Weather("held, 30 % lost, 30 % refused", threads=True, rules=frameworks.FAULTS),
    Weather("held, one mismatch", threads=True, faults=(MISMATCHED,)),
]


class Run:
    """What came of one run."""

    def __init__(self, weather: Weather, mode: str | None) -> None:
        with ExitStack() as stack:
            rules = [word for rule in weather.rules for word in ["--rule", rule]]
            self.simulator = drive.start_simulator(stack, rules)
            for fault in weather.faults:
                drive.fetch(f"{self.simulator}/sim/faults", fault)
            url, admin = self.simulator, None
            if mode:
                url, admin, _ = drive.start_forkpoint(stack, self.simulator, mode, drive.AT_ANY_PRICE)
            self.result = claude(url, weather.threads)
            self.requests = drive.settled_journal(self.simulator)
            metrics = drive.fetch(f"{admin}/metrics") if admin else ""
            counted = r'^forkpoint_children_total\{plan="(\w+)",reason="(\w+)"\} ([1-9]\d*)$'
            found = re.findall(counted, metrics, re.MULTILINE)
            self.children = {f"{plan}: {reason}": int(count) for plan, reason, count in found}
            answered = re.search(r'^forkpoint_fallbacks_total\{.*reason="thread".*\} (\d+)$', metrics, re.MULTILINE)
            self.answered_by_us = int(answered[1]) if answered else 0

    def continues(self) -> int:
        return sum('"type":"continue"' in (record.get("body") or "") for record in self.requests)

    def usd(self) -> float:
        return sum(record["cost_usd"] or 0 for record in self.requests)


def claude(url: str, threads: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        project = Path(home) / "project"
        project.mkdir()
        (project / "notes.txt").write_text("A line.\n")
        settings = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            # It refuses to run unattended as root, unless it is told that nothing can break.
            "IS_SANDBOX": "1",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-ant-test",
            "CLAUDE_CODE_TETHER_LIVE": "1" if threads else "false",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        }
        command = [CLAUDE, "--print", PROMPT, "--model", "claude-opus-5-5", "--output-format", "json"]
        command += ["--dangerously-skip-permissions"]
        done = subprocess.run(
            command, env=settings, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_SECONDS
        )
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise drive.Failed(f"no result: {(done.stdout + done.stderr).decode(errors='replace')[-2000:]}") from None


def judge(run: Run, directly: Run, mode: str | None, weather: Weather) -> list[str]:
    """What is wrong with a run."""
    wrong = []
    if run.result.get("is_error") or not run.result.get("result"):
        wrong.append(f"it ended with an error: {run.result.get('result')}")
    elif len(run.result["result"].split()) != len(directly.result["result"].split()):
        wrong.append(f"it ended with {run.result['result']!r}, directly with {directly.result['result']!r}")
    if weather.threads and not run.continues():
        wrong.append("no conversation was held by the server")
    refused = [record["error"] for record in run.requests if record["error_code"] == MISMATCH]
    if weather.faults and not refused:
        wrong.append("no continue was refused")
    wrong += [f"the upstream saw a changed field: {error}" for error in refused[len(weather.faults) :]]
    if mode == "fork" and run.answered_by_us != len(weather.faults):
        wrong.append(f"forkpoint asked {run.answered_by_us} times for a whole conversation")
    if mode == "fork" and run.children.get("forked: none", 0) < AGENTS:
        wrong.append(f"children: {run.children}")
    return wrong


def main() -> int:
    failed = 0
    version = subprocess.run([CLAUDE, "--version"], capture_output=True, check=True, timeout=RUN_SECONDS)
    print(f"Claude Code {version.stdout.decode().split()[0]}, CLIENTS_SEED={drive.SEED}", file=sys.stderr)
    print("| conversations | way | requests | continues | billed | children |\n|---|---|--:|--:|--:|---|")
    for weather in WEATHERS:
        directly = None
        for mode in [None, "observe", "align", "fork"]:
            way = mode or "directly"
            try:
                run = Run(weather, mode)
            except (drive.Failed, subprocess.TimeoutExpired) as failure:
                wrong, run = [str(failure)], None
            else:
                directly = directly or run
                wrong = judge(run, directly, mode, weather)
                children = ", ".join(f"{count} {plan}" for plan, count in sorted(run.children.items()))
                cells = [weather.name, way, str(len(run.requests)), str(run.continues()), f"${run.usd():.4f}", children]
                print(f"| {' | '.join(cells)} |", flush=True)
            failed += bool(wrong)
            for what in wrong:
                print(f"{weather.name}, {way}: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
