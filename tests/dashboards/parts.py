"""Processes of the check, and questions to them: started on free loopback ports, ended with their block."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import queue
import re
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
FORKPOINT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "forkpoint"

# Only a guard against hanging: long enough for a busy machine.
PATIENCE_SECONDS = 60
LOOK_EVERY_SECONDS = 0.02


class Failed(Exception):
    """Something is not as it should be; the message says what."""


class Process:
    """A child process. What it writes is read as it comes, since a full pipe would stop it."""

    def __init__(self, command: list[Any], env: dict[str, str] | None = None) -> None:
        self.name = Path(command[0]).name
        self.home = tempfile.TemporaryDirectory()
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.child = subprocess.Popen(
            command,
            env={"PATH": os.environ["PATH"], "HOME": self.home.name, **(env or {})},
            cwd=self.home.name,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        threading.Thread(target=self.read, args=[self.child.stdout], daemon=True).start()

    def read(self, pipe: IO[str]) -> None:
        for line in pipe:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: Any) -> None:
        self.child.kill()
        self.child.wait()
        self.home.cleanup()

    def says(self, pattern: str) -> str:
        """The first group of the first line that matches."""
        seen: list[str] = []
        while True:
            try:
                line = self.lines.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                line = None
            if line is None:
                raise Failed(f"{self.name} never said {pattern!r}, but:\n" + "\n".join(seen[-30:]))
            seen.append(line)
            if found := re.search(pattern, line):
                return found[1]


class Collector:
    """Takes traces by OTLP, and every third batch not."""

    def __init__(self) -> None:
        turns = itertools.count(1)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(503 if next(turns) % 3 == 0 else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


def fetch(url: str, order: Any = None) -> str:
    data = None if order is None else json.dumps(order).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, data, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()


def poll(what: str, probe: Callable[[], Any]) -> Any:
    """What the probe finds, asked until it finds something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(LOOK_EVERY_SECONDS)
    raise Failed(f"waited too long for {what}")


def metrics(admin: str) -> str:
    """The metrics of now, and no text that others share."""
    asked = time.monotonic()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def rendered() -> str:
        with opener.open(f"{admin}/metrics", timeout=PATIENCE_SECONDS) as answer:
            age = int(answer.headers.get("x-forkpoint-age-ms", "0"))
            page = answer.read().decode()
        return page if age <= 1000 * (time.monotonic() - asked) else ""

    return poll("metrics of now", rendered)


class Prometheus:
    """The API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            answer = json.loads(fetch(f"{self.url}/api/v1/{path}?{query}"))
        except urllib.error.HTTPError as error:
            answer = json.loads(error.read())
        if answer["status"] != "success":
            raise Failed(f"{answer['errorType']}: {answer['error']}")
        return answer["data"]

    def value(self, expr: str) -> float:
        result = self.ask("query", query=expr)["result"]
        return float(result[0]["value"][1]) if result else 0.0
