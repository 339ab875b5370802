#!/usr/bin/env python3
"""Plays the recorded clients again as sent, aligned and forked, and prints the table of tests/README.md.

    tests/deep wire

A recording has what one session of a client sent while it fanned out to three children: every body with its
structure, key order and string lengths as on the wire, and filler for its prose. The captures come from a scripted
API that answered at once; in the recordings an answer begins after 1.5 s and takes 15 ms for each token, and what
follows it comes as long after as it did. Fails if a mode costs more than what was sent.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FORKPOINT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "forkpoint"
RECORDINGS = ROOT / "tests" / "golden" / "wire"
# One run takes a second.
RUN_SECONDS = 120


def runs(recording: Path) -> list[dict[str, Any]]:
    """As sent, aligned and forked."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as plain:
        plain.write(gzip.decompress(recording.read_bytes()))
        plain.flush()
        command = [FORKPOINT, "replay", "--json", "--modes-only", plain.name]
        played = subprocess.run(command, capture_output=True, check=True, timeout=RUN_SECONDS)
    return json.loads(played.stdout)["runs"]


def cell(run: dict[str, Any], sent: dict[str, Any]) -> str:
    cost, before, usd = run["all"]["weighed"], sent["all"]["weighed"], run["all"]["prompt_usd"]
    price = "" if usd is None else f" (${usd:.4f})"
    share = "" if run is sent else f", {100 * (cost / before - 1):+.0f} %"
    return f"{cost:,.0f}{price}{share}"


def main() -> int:
    dearer = []
    print("| client | as sent | aligned | forked | requests of children, forked |\n|---|--:|--:|--:|--:|")
    for recording in sorted(RECORDINGS.glob("*/recording.jsonl.gz")):
        client = recording.parent.name
        sent, aligned, forked = runs(recording)
        cells = [cell(run, sent) for run in [sent, aligned, forked]]
        print(f"| {client} | {' | '.join(cells)} | {sent['children']}, {forked['forked']} |")
        most = sent["all"]["weighed"]
        dearer += [f"{client} {run['run']}" for run in [aligned, forked] if run["all"]["weighed"] > most]
    if dearer:
        print(f"dearer than as sent: {', '.join(dearer)}", file=sys.stderr)
    return 1 if dearer else 0


if __name__ == "__main__":
    sys.exit(main())
