#!/usr/bin/env python3
"""Runs the recipes of the READMEs as they are written there: against the simulator, through forkpoint.

    tests/run python typescript                  installs what they import, and runs them after the programs
    tests/clients/snippets.py python|typescript  once that is there

Each must end well, print nothing, and be the one request that forkpoint counts and the simulator answers. All that
is changed is the address, since the port of the recipes may be taken. `python` also installs forkpoint by the command
of the README, into target/.
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

from drive import CLIENTS, HOME, ROOT, Failed, Process, fetch, poll, start_simulator  # noqa: E402

PAGES = ["README.md", "config/README.md"]
INSTALL = "cargo install --path ."
ADDRESS = "http://127.0.0.1:8787"
# The language of a fence, the ending of a file with it, and who runs that.
RUNNERS: dict[str, tuple[str, str, list[Any]]] = {
    "python": ("python", ".py", [CLIENTS / "python" / "bin" / "python"]),
    "typescript": ("ts", ".mjs", ["node"]),
}
SECONDS = 120


def fences(language: str) -> list[tuple[str, str]]:
    """The page and the text of each recipe in this language."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [(page, text) for page in PAGES for text in fence.findall((ROOT / page).read_text())]


def check(forkpoint: Path, snippet: str, ending: str, runner: list[Any], folder: Path) -> None:
    """Runs one recipe. Raises `Failed` unless it asked forkpoint once, and was answered."""
    if ADDRESS not in snippet:
        raise Failed(f"it does not name {ADDRESS}")
    with ExitStack() as stack, tempfile.NamedTemporaryFile("w", suffix=ending, dir=folder) as file:
        simulator = start_simulator(stack)
        words = [forkpoint, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        proxy = stack.enter_context(Process([*words, "--upstream", simulator], stderr=subprocess.PIPE))
        said = proxy.lines(proxy.child.stderr)
        url = proxy.wait_for(said, r"^ *proxy +(http\S+)")
        admin = proxy.wait_for(said, r"^ *admin +(http\S+)")
        file.write(snippet.replace(ADDRESS, url))
        file.flush()
        environment = {"PATH": os.environ["PATH"], "HOME": HOME.name, "ANTHROPIC_API_KEY": "sk-ant-api03-none"}
        done = subprocess.run(
            [*runner, file.name], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if done.returncode or done.stdout:
            raise Failed(f"it ended with {done.returncode}\n{done.stdout}{done.stderr}")

        def counted() -> bool:
            metrics = fetch(f"{admin}/metrics")
            return bool(re.search(r'^forkpoint_requests_total\{.*status="200"\} 1$', metrics, re.MULTILINE))

        poll(counted, "forkpoint did not see it")
        requests = json.loads(fetch(f"{simulator}/sim/requests"))["requests"]
        if [request["status"] for request in requests] != [200]:
            raise Failed(f"the simulator answered {requests}")


def installed() -> Path:
    """forkpoint, by the command of the README: without optimisation, beside what the tests have built."""
    if INSTALL not in (ROOT / "README.md").read_text():
        raise Failed(f"the README does not say `{INSTALL}`")
    root = ROOT / "target" / "readme"
    more = ["--debug", "--locked", "--quiet", "--force", "--root", root, "--target-dir", ROOT / "target"]
    subprocess.run([*INSTALL.split(), *more], cwd=ROOT, check=True)
    return root / "bin" / "forkpoint"


def main(language: str) -> int:
    fence, ending, runner = RUNNERS[language]
    if language == "python":
        forkpoint = installed()
    else:
        subprocess.run(["cargo", "build", "--locked", "--quiet"], cwd=ROOT, check=True)
        forkpoint = ROOT / "target" / "debug" / "forkpoint"
    # Modules are looked for beside the file.
    folder = CLIENTS / language
    snippets, failures = fences(fence), 0
    for number, (page, snippet) in enumerate(snippets, 1):
        try:
            check(forkpoint, snippet, ending, runner, folder)
            print(f"ok      {page} {fence} {number}", flush=True)
        except Failed as failure:
            failures += 1
            print(f"FAILED  {page} {fence} {number}: {failure}\n{snippet}", flush=True)
    print(f"snippets: {len(snippets) - failures} passed, {failures} failed")
    return 1 if failures or not snippets else 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in RUNNERS:
        print(f"usage: snippets.py {'|'.join(RUNNERS)}")
        sys.exit(64)
    sys.exit(main(sys.argv[1]))
