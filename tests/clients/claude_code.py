#!/usr/bin/env python3
"""Drives a real Claude Code against the simulator, directly and through forkpoint in each mode.

    tests/deep clients

It fans out to three agents, with conversations that the server holds (`CLAUDE_CODE_TETHER_LIVE=1`) and without, and once
more with threads that the simulator loses at random. Each run must end without an error and with as many words as the
direct one (which words depends on ids and times in its prompt), the upstream may never see a field that a thread holds
otherwise, and in `fork` every agent must be forked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True

import drive  # noqa: E402

CLAUDE = drive.CLIENTS / "claude-code" / "node_modules" / ".bin" / "claude"
AGENTS = 3
FAN_OUT = f"fan_out n={AGENTS} tool=Agent field=prompt alike=true type=general-purpose"
PROMPT = f"Look at it. [[sim:{FAN_OUT} | tools turns=2 tool=Read]]"
RUN_SECONDS = 120
MISMATCH = "thread_fingerprint_mismatch"
LOSSES = ["--rule", "threads.loss_percent=30"]


class Run:
    """What came of one run."""

    def __init__(self, threads: bool, losses: bool, mode: str | None) -> None:
        with ExitStack() as stack:
            self.simulator = drive.start_simulator(stack, LOSSES if losses else None)
            url, admin = self.simulator, None
            if mode:
                url, admin, _ = drive.start_forkpoint(stack, self.simulator, mode, drive.AT_ANY_PRICE)
            self.result = claude(url, threads)
            self.requests = drive.settled_journal(self.simulator)
            self.children: dict[str, int] = {}
            if admin:
                counted = r'^forkpoint_children_total\{plan="(\w+)",reason="(\w+)"\} ([1-9]\d*)$'
                found = re.findall(counted, drive.fetch(f"{admin}/metrics"), re.MULTILINE)
                self.children = {f"{plan}: {reason}": int(count) for plan, reason, count in found}

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


def judge(run: Run, directly: Run, mode: str | None, threads: bool) -> list[str]:
    """What is wrong with a run."""
    wrong = []
    if run.result.get("is_error") or not run.result.get("result"):
        wrong.append(f"it ended with an error: {run.result.get('result')}")
    elif len(run.result["result"].split()) != len(directly.result["result"].split()):
        wrong.append(f"it ended with {run.result['result']!r}, directly with {directly.result['result']!r}")
    if threads and not run.continues():
        wrong.append("no conversation was held by the server")
    refused = [record["error"] for record in run.requests if record["error_code"] == MISMATCH]
    wrong += [f"the upstream saw a changed field: {error}" for error in refused]
    if mode == "fork" and run.children.get("forked: none", 0) < AGENTS:
        wrong.append(f"children: {run.children}")
    return wrong


def main() -> int:
    failed = 0
    version = subprocess.run([CLAUDE, "--version"], capture_output=True, check=True, timeout=RUN_SECONDS)
    print(f"Claude Code {version.stdout.decode().split()[0]}", file=sys.stderr)
    print("| conversations | way | requests | continues | billed | children |\n|---|---|--:|--:|--:|---|")
    for name, threads, losses in [("whole", False, False), ("held", True, False), ("held, 30 % lost", True, True)]:
        directly = None
        for mode in [None, "observe", "align", "fork"]:
            way = mode or "directly"
            try:
                run = Run(threads, losses, mode)
            except (drive.Failed, subprocess.TimeoutExpired) as failure:
                wrong, run = [str(failure)], None
            else:
                directly = directly or run
                wrong = judge(run, directly, mode, threads)
                children = ", ".join(f"{count} {plan}" for plan, count in sorted(run.children.items()))
                cells = [name, way, str(len(run.requests)), str(run.continues()), f"${run.usd():.4f}", children]
                print(f"| {' | '.join(cells)} |", flush=True)
            failed += bool(wrong)
            for what in wrong:
                print(f"{name}, {way}: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
