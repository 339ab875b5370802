#!/usr/bin/env python3
"""Records what real clients send and what they are answered, for tests/it/fork/recorded.rs.

    tests/clients/record.py              once `tests/run python typescript` has installed the SDKs
    tests/clients/record.py deepagents   only these clients

Each program runs directly against the simulator, which loses a part of the conversations that it holds. What stands
between them takes long filler out of the prompts, and writes down every exchange in the order in which they came:
one line of `tests/golden/wire/<client>/exchanges.jsonl` for each. Afterwards write what forkpoint makes of them anew:
`UPDATE=1 cargo test --test it fork::recorded`.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

sys.dont_write_bytecode = True

import drive  # noqa: E402
import frameworks  # noqa: E402

FOLDER = drive.ROOT / "tests" / "golden" / "wire"
# A sentence that is repeated is shortened to so many. Without children the prompt is to be long enough for the cache.
FEW, MANY = 4, 100
CLIENTS = {
    "typescript-held": ("typescript", "runner_agents", FEW),
    "typescript-held-alone": ("typescript", "tool_runner", MANY),
    "typescript-whole": ("typescript", "whole_agents", FEW),
    "python-held": ("python", "runner_agents", FEW),
    "python-held-alone": ("python", "tool_runner", MANY),
    "python-whole": ("python", "whole_agents", FEW),
    "python-late": ("python", "late_agents", FEW),
    "deepagents": ("python", "deepagents", FEW),
    "ai-sdk": ("typescript", "ai_sdk", FEW),
}
FILLER = re.compile(rb"(\w[^.\"\\]{20,60}\. )\1{100,}")
# Of the request, those that say something about its client and its prompt.
KEPT = ["anthropic-version", "anthropic-beta", "user-agent", "x-stainless-helper"]
NOT_FORWARDED = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding"}


class Tap(ThreadingHTTPServer):
    """Hands every request on, one answer after the other, and keeps both."""

    def __init__(self, simulator: str, sentences: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sentences = sentences
        self.simulator = urlsplit(simulator).netloc
        self.exchanges: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Tap
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        body = FILLER.sub(lambda found: found[1] * self.server.sentences, body)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_FORWARDED}
        exchange: dict[str, Any] = {
            "target": self.path,
            "headers": {name: self.headers[name] for name in KEPT if name in self.headers},
            "body": body.decode(),
        }
        # One at a time: a child that comes later has seen no more than what is written down before it.
        with self.server.lock:
            self.server.exchanges.append(exchange)
            upstream = http.client.HTTPConnection(self.server.simulator)
            upstream.request("POST", self.path, body, headers)
            answer = upstream.getresponse()
            said = answer.read()
        content_type = answer.headers["content-type"]
        exchange |= {"status": answer.status, "content_type": content_type, "answer": said.decode()}
        self.send_response(answer.status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    wanted = sys.argv[1:] or CLIENTS
    for client, (language, program, sentences) in CLIENTS.items():
        if client not in wanted:
            continue
        with ExitStack() as stack:
            simulator = drive.start_simulator(stack, frameworks.rules_of(program))
            for fault in frameworks.faults_of(program, None):
                drive.fetch(f"{simulator}/sim/faults", fault)
            tap = Tap(simulator, sentences)
            host = drive.Host(stack, language)
            saw = drive.Saw(host.run(program, f"http://127.0.0.1:{tap.server_port}"), [], language)
            assert not saw.errors(), saw.errors()
            tap.shutdown()
        folder = FOLDER / client
        folder.mkdir(exist_ok=True)
        lines = [json.dumps(exchange, ensure_ascii=False) + "\n" for exchange in tap.exchanges]
        (folder / "exchanges.jsonl").write_text("".join(lines))
        print(f"{client}: {len(lines)} exchanges, {sum(map(len, lines)):,} bytes")


if __name__ == "__main__":
    main()
