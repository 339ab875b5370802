"""What forkpoint would run with: the environment of the image, changed by a manifest, judged by check-config."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FORKPOINT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "forkpoint"


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets, for whoever changes none of it."""
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    return dict(word.split("=", 1) for word in block[1].replace("\\\n", " ").split())


def image_arguments() -> list[str]:
    """What the image calls forkpoint with, for whoever gives no arguments."""
    return json.loads(re.search(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.M)[1])


def effective(changes: dict[str, str]) -> dict[str, Any]:
    """The value of every key; fails if forkpoint refuses or overlooks a variable."""
    environment = image_environment() | changes
    done = subprocess.run(
        [FORKPOINT, "check-config", "--json"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    origins = {entry["origin"] for entry in answer["keys"].values()}
    overlooked = {name for name in environment if name.startswith("FORKPOINT_")} - origins
    assert not overlooked, f"no key of the configuration: {overlooked}"
    return {name: entry["value"] for name, entry in answer["keys"].items()}


def shown_in_readme(start: str) -> list[list[str]]:
    """The words of every command in the fences of config/README.md that starts like this."""
    fences = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "config" / "README.md").read_text(), re.M | re.S)
    lines = [line.split(" #")[0].split() for fence in fences for line in fence.splitlines()]
    shown = [words for words in lines if words[: len(start.split())] == start.split()]
    assert shown, f"config/README.md shows no {start!r}"
    return shown


def port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
