#!/usr/bin/env python3
"""Records what real clients send and what they are answered, for tests/it/fork/recorded.rs.

    tests/clients/record.py              once `tests/run python typescript` has installed the SDKs
    tests/clients/record.py deepagents   only these clients

Each program runs directly against the simulator, which loses a part of the conversations that it holds. What stands
between them takes long filler out of the prompts, of Claude Code all that it says by itself, and writes down every
exchange in the order in which they came: one line of `tests/golden/wire/<client>/exchanges.jsonl` for each. Afterwards
write what forkpoint makes of them anew: `UPDATE=1 cargo test --test it fork::recorded`. Claude Code is recorded only by
its name, claude-code-held, once `tests/deep clients` has installed it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

sys.dont_write_bytecode = True

import claude_code  # noqa: E402
import drive  # noqa: E402
import frameworks  # noqa: E402

# One seed for all, so that goldens that are recorded again differ by their client alone.
drive.SEED = 7
FOLDER = drive.ROOT / "tests" / "golden" / "wire"
# A sentence that is repeated is shortened to so many. Without children the prompt is to be long enough for the cache.
FEW, SOME, MANY = 4, 40, 100
CLIENTS = {
    "typescript-held": ("typescript", "runner_agents", FEW),
    "typescript-held-alone": ("typescript", "tool_runner", MANY),
    "typescript-thread": ("typescript", "held_thread", MANY),
    "typescript-whole": ("typescript", "whole_agents", FEW),
    "python-held": ("python", "runner_agents", FEW),
    "python-held-alone": ("python", "tool_runner", MANY),
    "python-thread": ("python", "held_thread", MANY),
    "python-whole": ("python", "whole_agents", FEW),
    "python-late": ("python", "late_agents", FEW),
    "deepagents": ("python", "deepagents", FEW),
    "ai-sdk": ("typescript", "ai_sdk", FEW),
}
CLAUDE_CODE = "claude-code-held"
FILLER = re.compile(rb"(\w[^.\"\\]{20,60}\. )\1{100,}")
# Of the request, those that say something about its client and its prompt.
KEPT = [
    "anthropic-version", "anthropic-beta", "user-agent", "x-stainless-helper", "x-claude-code-session-id",
    "x-claude-code-agent-id",
]  # fmt: skip
# What Claude Code says by itself is cut to this, unless it instructs the simulator or is what that has said.
CUT = 40
LEFT_OUT = ["metadata", "diagnostics"]
NOT_FORWARDED = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding"}


class Tap(ThreadingHTTPServer):
    """Hands every request on, one answer after the other, and keeps both."""

    def __init__(self, simulator: str, shorten: Callable[[bytes], bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.shorten = shorten
        self.simulator = urlsplit(simulator).netloc
        self.exchanges: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Tap
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        body = self.server.shorten(body)
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

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_: Any) -> None:
        pass


def in_sentences(most: int) -> Callable[[bytes], bytes]:
    return lambda body: FILLER.sub(lambda found: found[1] * most, body)


def without_prose(body: bytes) -> bytes:
    """A request of Claude Code with its members in their order, and a digest in the place of what it says by itself."""
    names = ["type", "role", "name", "id", "tool_use_id", "model", "ttl", "scope", "previous_message_id", "required"]

    def walk(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: walk(member, key) for key, member in value.items() if key not in LEFT_OUT}
        if isinstance(value, list):
            return [walk(element, name) for element in value]
        if not isinstance(value, str) or name in names:
            return value
        is_prompt = "[[sim:" in value and "<system-reminder>" not in value
        if is_prompt or value.startswith("x-anthropic-billing-header") or len(value) <= CUT:
            return value
        said = hashlib.sha256(value.encode()).hexdigest()[:12]
        # Of a system prompt enough for the cache.
        return f"What Claude Code says, {said}. " * (SOME if len(value) > 2000 else 1)

    request = json.loads(body)
    # Of three dozen tools those that are called, and what they take.
    tools = [tool for tool in request.get("tools", []) if tool.get("name") in ["Agent", "Read"]]
    if tools:
        request["tools"] = [{**tool, "input_schema": without_descriptions(tool["input_schema"])} for tool in tools]
    return json.dumps(walk(request), ensure_ascii=False, separators=(",", ":")).encode()


def without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_descriptions(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: without_descriptions(member)
        for name, member in schema.items()
        if name != "description" or isinstance(member, dict)
    }


def record(client: str, rules: list[str], shorten: Callable[[bytes], bytes], play: Callable[[str], None]) -> None:
    with ExitStack() as stack:
        tap = Tap(drive.start_simulator(stack, rules), shorten)
        play(f"http://127.0.0.1:{tap.server_port}")
        tap.shutdown()
    folder = FOLDER / client
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(exchange, ensure_ascii=False) + "\n" for exchange in tap.exchanges]
    (folder / "exchanges.jsonl").write_text("".join(lines))
    print(f"{client}: {len(lines)} exchanges, {sum(map(len, lines)):,} bytes")


def program(language: str, name: str, url: str) -> None:
    with ExitStack() as stack:
        saw = drive.Saw(drive.Host(stack, language).run(name, url), [], language)
    assert not saw.errors(), saw.errors()


def claude(url: str) -> None:
    result = claude_code.claude(url, threads=True)
    assert not result.get("is_error"), result


def main() -> None:
    wanted = sys.argv[1:] or CLIENTS
    for client, (language, name, sentences) in CLIENTS.items():
        if client in wanted:
            rules = frameworks.rules_of(name, language)
            record(client, rules, in_sentences(sentences), lambda url: program(language, name, url))
    if CLAUDE_CODE in wanted:
        record(CLAUDE_CODE, [], without_prose, claude)


if __name__ == "__main__":
    main()
