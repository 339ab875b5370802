#!/usr/bin/env python3
"""Drives the real SDKs, and proves that they see the same through forkpoint as without it.

    tests/run python typescript                       installs the SDKs under target/clients, runs everything
    tests/clients/drive.py python errors cancelled    only these programs of one SDK, once it is installed
    CLIENTS_SEED=7 tests/run python                   again by the seed of an earlier run

Every program runs four times, against simulators that start empty from one seed, drawn for the run: directly, and through
`forkpoint serve` in each of its modes. A program is a function in python/programs.py or
typescript/programs.ts; it writes down everything the SDK showed it, as the transcript of each agent it
played:

    {"main": {"steps": [message | event | error | value …], "responses": [{"status", "headers"} …]}}

Programs in which a framework does the talking (frameworks.py) need only end with the same text and without an error.
One more run starts the SDK by `forkpoint run`, and another the AI SDK, which wants the path of the API in its base URL:
they find the proxy by themselves, and the receipt must name what the simulator received.

Then five things must hold:

1. The program did its job, each time: expectations.py and prefixes.py say for each what must be in the transcript
   and in the simulator's journal. So an empty transcript cannot pass.
2. `observe`: both runs agree, in every byte of the transcripts and of the requests that reached the
   simulator. What may differ is listed below, each with its reason.
3. `align`: they agree as much in all but the bill, and nothing but markers was added to a request. The same
   prompts are billed, no request reads less of its own from the cache, and the program costs no more than
   expectations.py allows.
4. `fork`: a program whose children are not worth a fork sees the same as in `align`, to the letter. The children of
   the forked programs go out on their parent's prefix, as prefixes.py says; nobody else does.
5. The proxied runs went through forkpoint: every response says so, none of the direct run does, and forkpoint
   counted as many requests as the simulator received.

Nothing beyond 127.0.0.1 is called, and the environment of the user is not passed on.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

sys.dont_write_bytecode = True

import frameworks  # noqa: E402
import prefixes  # noqa: E402, F401, for the programs that it registers
from expectations import MARKER, PROGRAMS, Expectation, Saw, header, unmarked  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FORKPOINT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "forkpoint"
CLIENTS = ROOT / "target" / "clients"
HOSTS: dict[str, list[Any]] = {
    "python": [CLIENTS / "python" / "bin" / "python", ROOT / "tests" / "clients" / "python" / "programs.py"],
    "typescript": ["node", CLIENTS / "typescript" / "out" / "programs.js"],
}

# Of the simulator: what it says, which conversations it loses and which it refuses to go on with.
SEED = int(os.environ.get("CLIENTS_SEED") or random.randrange(1_000_000))

# An empty home: no profile, credential or configuration of the user reaches an SDK.
HOME = tempfile.TemporaryDirectory()

# Of HTTP's own, these speak about one connection, and there are two of those behind the proxy.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection"}
# Clocks: the value is replaced, so that its presence and shape are still compared.
CLOCKS = {
    "date": r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT",
    **{
        f"anthropic-ratelimit-{name}-reset": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
        for name in ["requests", "tokens", "input-tokens", "output-tokens"]
    },
}
# Names whom the client called: the simulator directly, or forkpoint, which puts the upstream's name there.
OF_THE_HOP = {"host"}
# Documented as forkpoint's own.
OURS = "x-forkpoint-"
# Why a request may pass as it came: `observe` never does anything else.
PASSES = {
    "observe": {"observe", "endpoint", "body_too_large"},
    "align": {"refused", "endpoint", "body_too_large"},
    "fork": {"refused", "endpoint", "body_too_large"},
}
# Of a journal record, all that does not measure time. Ids and numbers follow arrival, see `labels`.
COMPARED = [
    "method", "target", "workspace", "model", "message_id", "status", "error", "usage", "cost_usd", "hit",
    "breakpoints", "faults", "ending", "body", "body_base64",
]  # fmt: skip
# Of those, what follows from the markers.
BILL = ["usage", "cost_usd", "hit", "breakpoints"]
# Answers for which an aligned request goes out once more, as it came.
REFUSED = {400, 413}
# The tokens of a prompt, in three parts that are billed differently.
PROMPT = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"]

# A program takes milliseconds, or a few seconds if the SDK waits between attempts; what takes longer hangs.
PROGRAM_SECONDS = 40
# How long the last records of a finished program may take to be written.
SETTLE_SECONDS = 10
DIFF_LINES = 60
# Beside the programs: the fan-out, and that of the AI SDK, started by `forkpoint run`.
RUN, RUN_AI_SDK = "run", "run_ai_sdk"

# Lines of a process as they come, and None behind the last.
Lines = queue.Queue[str | None]


class Failed(Exception):
    """A program did not do its job, or saw something else through forkpoint."""


# --- processes ------------------------------------------------------------------------------------


class Process:
    """A child process whose output is read as it comes; ended with the block that holds it."""

    def __init__(self, command: list[Any], settings: dict[str, str] | None = None, **pipes: Any) -> None:
        own = {"HOME": HOME.name, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **(settings or {})}
        self.name = " ".join(Path(word).name for word in command[:2])
        self.child = subprocess.Popen(
            command,
            env={"PATH": os.environ["PATH"], **own},
            cwd=HOME.name,
            encoding="utf-8",
            bufsize=1,
            **pipes,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: Any) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in [self.child.stdin, self.child.stdout, self.child.stderr]:
            if pipe:
                pipe.close()

    def lines(self, pipe: IO[str] | None) -> Lines:
        """What it writes. A full pipe would stop the process, so all is taken."""
        lines: Lines = queue.Queue()

        def read() -> None:
            try:
                for line in pipe or []:
                    lines.put(line.rstrip("\n"))
            except ValueError:
                pass  # closed, since the block is over
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        return lines

    def wait_for(self, lines: Lines, pattern: str) -> str:
        """The first group of the first line that matches."""
        seen: list[str] = []
        while True:
            try:
                line = lines.get(timeout=PROGRAM_SECONDS)
            except queue.Empty:
                line = None
            if line is None:
                raise Failed(f"{self.name} never said {pattern!r}, but:\n" + "\n".join(seen))
            seen.append(line)
            if found := re.search(pattern, line):
                return found[1]


def start_simulator(stack: ExitStack, rules: list[Any] | None = None) -> str:
    command = [FORKPOINT, "sim", "--listen", "127.0.0.1:0", "--seed", str(SEED), *(rules or [])]
    simulator = stack.enter_context(Process(command, stdout=subprocess.PIPE))
    return simulator.wait_for(simulator.lines(simulator.child.stdout), r"^listening on (http://\S+)$")


# Children of small parents, forked whatever that costs: the bytes are what is checked.
AT_ANY_PRICE = {"FORKPOINT_FORK__CONTEXT_PREMIUM": "100", "FORKPOINT_FORK__MAX_COST_RATIO": "100"}


def start_forkpoint(
    stack: ExitStack, upstream: str, mode: str, settings: dict[str, str]
) -> tuple[str, str, Lines]:
    command = [FORKPOINT, "serve", "--mode", mode, "--upstream", upstream]
    command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    proxy = stack.enter_context(Process(command, settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    lines = proxy.lines(proxy.child.stderr)
    address = proxy.wait_for(lines, r"^ +proxy +(http://\S+)$")
    return address, proxy.wait_for(lines, r"^ +admin +(http://\S+)$"), lines


class Host:
    """The process in which an SDK's programs run. One that hangs or dies is replaced for the next program."""

    def __init__(self, stack: ExitStack, language: str, before: list[Any] | None = None, **pipes: Any) -> None:
        self.stack, self.language, self.before = stack, language, before or []
        self.pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **pipes}
        self.start()

    def start(self) -> None:
        command = [*self.before, *HOSTS[self.language]]
        self.process = self.stack.enter_context(Process(command, **self.pipes))
        self.answers = self.process.lines(self.process.child.stdout)
        self.programs = self.read()

    def read(self) -> Any:
        try:
            answer = self.answers.get(timeout=PROGRAM_SECONDS)
        except queue.Empty:
            answer = None
        return None if answer is None else json.loads(answer)

    def run(self, program: str, url: str | None) -> dict[str, Any]:
        """Without a URL the SDK finds one by itself."""
        order = {"program": program} if url is None else {"program": program, "url": url}
        print(json.dumps(order), file=self.process.child.stdin)
        answer = self.read()
        if answer is None:
            self.process.child.kill()
            self.start()
            raise Failed(f"the program died or took more than {PROGRAM_SECONDS} s")
        if "crash" in answer:
            raise Failed(f"the program crashed\n{answer['crash']}")
        return answer["agents"]


# --- one program ----------------------------------------------------------------------------------


def check(host: Host, program: str, expectation: Expectation) -> None:
    """Raises `Failed` unless the program passes."""
    with ExitStack() as stack:
        simulator = start_simulator(stack)
        directly = run(host, program, expectation, simulator, simulator)
    judge(directly, expectation.check, "directly")
    observed = proxied(host, program, expectation, "observe", directly)
    compare(directly, observed, "observed")
    aligned = proxied(host, program, expectation, "align", directly)
    compare_aligned(directly, aligned, expectation, "aligned")
    forked = proxied(host, program, expectation, "fork", directly)
    if expectation.forked is None:
        compare_aligned(directly, forked, expectation, "in fork")
    else:
        judge(forked, lambda saw: expectation.forked(directly, saw), "in fork")


def check_framework(host: Host, program: str) -> None:
    """A framework, directly and in every mode. Raises `Failed` unless it passes."""
    directly: Saw | None = None
    for mode in [None, *frameworks.MODES]:
        with ExitStack() as stack:
            simulator = start_simulator(stack, frameworks.rules_of(program, host.language))
            for fault in frameworks.faults_of(program, mode):
                fetch(f"{simulator}/sim/faults", fault)
            url, admin = simulator, None
            if mode:
                url, admin, _ = start_forkpoint(stack, simulator, mode, AT_ANY_PRICE)
            saw = Saw(host.run(program, url), settled_journal(simulator), host.language)
            children = {}
            if admin:
                count_requests(saw, admin)
                labels = r'^forkpoint_children_total\{plan="(\w+)",reason="(\w+)"\} ([1-9]\d*)$'
                found = re.findall(labels, fetch(f"{admin}/metrics"), re.MULTILINE)
                children = {f"{plan}: {reason}": int(count) for plan, reason, count in found}
        way = f"in {mode}" if mode else "directly"
        judge(saw, lambda saw: frameworks.judge(program, mode, saw, directly, children), way)
        directly = directly or saw


def proxied(host: Host, program: str, expectation: Expectation, mode: str, directly: Saw) -> Saw:
    """What the program saw through forkpoint in one of its modes."""
    with ExitStack() as stack:
        simulator = start_simulator(stack)
        settings = AT_ANY_PRICE if expectation.forked else {}
        proxy, admin, said = start_forkpoint(stack, simulator, mode, settings)
        try:
            saw = run(host, program, expectation, proxy, simulator)
            saw.requests = relayed(saw.requests)
            check_route(directly, saw, admin, mode, expectation)
        except Failed as failure:
            log = [line for line in said.queue if line]
            raise Failed("\n".join([f"in {mode}: {failure}", "forkpoint said:", *log])) from None
    judge(saw, expectation.check, f"in {mode}")
    return saw


def judge(saw: Saw, check: Callable[[Saw], None], way: str) -> None:
    try:
        check(saw)
    except AssertionError as error:
        raise Failed(f"{way}: {error}\n{excerpt(saw)}") from None


def check_run(language: str) -> None:
    """The fan-out, by an SDK that `forkpoint run` started. Raises `Failed` unless it passes."""
    expectation = PROGRAMS["fan_out"]
    with ExitStack() as stack:
        simulator = start_simulator(stack)
        before = [FORKPOINT, "run", "--upstream", simulator, "--"]
        host = Host(stack, language, before, stderr=subprocess.PIPE)
        saw, receipt = received(host, lambda: run(host, "fan_out", expectation, None, simulator))
    judge(saw, expectation.check, "run")
    check_receipt(saw, receipt, 5)


def check_run_ai_sdk(language: str) -> None:
    """The AI SDK, where the environment names the upstream and its path. Raises `Failed` unless it passes."""
    with ExitStack() as stack:
        simulator = start_simulator(stack)
        settings = {"ANTHROPIC_BASE_URL": f"{simulator}/v1"}
        host = Host(stack, language, [FORKPOINT, "run", "--"], settings=settings, stderr=subprocess.PIPE)
        played = lambda: Saw(host.run("ai_sdk", None), settled_journal(simulator), language)  # noqa: E731
        saw, receipt = received(host, played)
    judge(saw, lambda saw: frameworks.judge("ai_sdk", None, saw, None, {}), "run")
    check_receipt(saw, receipt, 3)
    if not all(header(response["headers"], f"{OURS}plan") for response in saw.responses()):
        raise Failed("an answer did not come through forkpoint")


def received(host: Host, play: Callable[[], Saw]) -> tuple[Saw, str]:
    """What a program saw below `forkpoint run`, and the receipt."""
    lines = host.process.lines(host.process.child.stderr)
    saw = play()
    host.process.child.stdin.close()
    if code := host.process.child.wait(PROGRAM_SECONDS):
        raise Failed(f"forkpoint run ended with {code}")
    return saw, "\n".join(line for line in iter(lines.get, None))


def check_receipt(saw: Saw, receipt: str, children: int) -> None:
    usage = [record["usage"] for record in saw.requests]
    read = sum(bill["cache_read"] for bill in usage)
    cost = r"cost +billed \$[\d.]+ · as sent \$[\d.]+ · aligned \$[\d.]+ \(an estimate"
    counted = [f"requests +{len(usage)} ", "fan-outs +1$", f"children +{children} "]
    for part in [*counted, f"cache read {read:,} ", cost]:
        if not re.search(part, receipt, re.MULTILINE):
            raise Failed(f"{part!r} is missing in the receipt\n{receipt}")


def run(host: Host, program: str, expectation: Expectation, url: str | None, simulator: str) -> Saw:
    for fault in expectation.faults:
        fetch(f"{simulator}/sim/faults", fault)
    agents = host.run(program, url)
    return Saw(agents, settled_journal(simulator), host.language)


def settled_journal(simulator: str) -> list[dict[str, Any]]:
    """What the simulator received, once every exchange is over: it notices later that a client has left."""

    def over() -> list[dict[str, Any]] | None:
        records = json.loads(fetch(f"{simulator}/sim/requests"))["requests"]
        return None if any(record["ending"] == "running" for record in records) else records

    return poll(over, "the simulator still holds requests open")


def relayed(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those whose answer the client got.

    What align made of a request and the upstream refused goes out once more as it came. Refused as well, the
    fault was the client's.
    """
    kept: list[dict[str, Any]] = []
    for record in requests:
        if kept and is_refused_twice(kept[-1], record):
            kept.pop()
        kept.append(record)
    return kept


def is_refused_twice(aligned: dict[str, Any], record: dict[str, Any]) -> bool:
    made, came = (request.get("body") or "" for request in [aligned, record])
    same_verdict = aligned["status"] in REFUSED and aligned["error"] == record["error"]
    return same_verdict and made != came and without_added(came, made) == came


def check_route(directly: Saw, proxied: Saw, admin: str, mode: str, expectation: Expectation) -> None:
    if any(name.startswith(OURS) for response in directly.responses() for name, _ in response["headers"]):
        raise Failed(f"the direct run has {OURS}* headers")
    for response in proxied.responses():
        plan, reason = (header(response["headers"], f"{OURS}{name}") for name in ["plan", "reason"])
        passed = plan == ["passthrough"] and len(reason) == 1 and reason[0] in PASSES[mode]
        forked = plan == ["forked"] and mode == "fork" and expectation.forked is not None
        if not passed and not forked and (mode == "observe" or plan != ["aligned"]):
            raise Failed(f"{OURS}plan is {plan} and {OURS}reason {reason} on {response}")

    count_requests(proxied, admin)


def count_requests(proxied: Saw, admin: str) -> None:
    """All that the simulator received came through forkpoint."""

    def counted() -> bool:
        metrics = fetch(f"{admin}/metrics")
        samples = re.findall(r"^forkpoint_requests_total\{.*\} (\d+)$", metrics, re.MULTILINE)
        return sum(map(int, samples)) == len(proxied.requests)

    poll(counted, f"forkpoint did not count the {len(proxied.requests)} requests that the simulator received")


def poll(probe: Callable[[], Any], complaint: str) -> Any:
    """What the probe finds, asked until it finds something."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.01)
    raise Failed(complaint)


def fetch(url: str, order: Any = None) -> str:
    data = None if order is None else json.dumps(order).encode()
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, data, timeout=10) as answer:
        return answer.read().decode()


# --- comparing ------------------------------------------------------------------------------------


def compare(directly: Saw, proxied: Saw, way: str) -> None:
    left, right = (shown(comparable(saw)) for saw in [directly, proxied])
    if left == right:
        return
    diff = list(difflib.unified_diff(left, right, "directly", way, n=4, lineterm=""))
    more = [f"… and {len(diff) - DIFF_LINES} lines more"] if len(diff) > DIFF_LINES else []
    raise Failed("\n".join(["the runs differ", *diff[:DIFF_LINES], *more]))


def comparable(saw: Saw) -> Any:
    """Transcripts and journal without what may differ."""
    agents = {
        name: {
            "steps": agent["steps"],
            "responses": [
                {"status": response["status"], "headers": headers(response["headers"])}
                for response in agent["responses"]
            ],
        }
        for name, agent in saw.agents.items()
    }
    # Agents that work at the same time arrive in any order, so the journal is sorted by what was asked.
    requests = sorted(
        (
            {**{key: record.get(key) for key in COMPARED}, "headers": headers(record["headers"])}
            for record in saw.requests
        ),
        key=shown_line,
    )
    text = json.dumps({"agents": agents, "requests": requests})
    for request_id, label in labels(saw.requests).items():
        text = text.replace(request_id, label)
    if unknown := re.search(r"req_\w+", text):
        raise Failed(f"no request that the simulator received has the id {unknown[0]}")
    return json.loads(text)


def headers(pairs: list[list[str]]) -> list[str]:
    """Sorted, since only the order of equal names has a meaning."""
    kept = []
    for name, value in pairs:
        if name in HOP_BY_HOP or name in OF_THE_HOP or name.startswith(OURS):
            continue
        if name in CLOCKS and re.fullmatch(CLOCKS[name], value):
            value = "<a time>"
        kept.append((name, value))
    return [f"{name}: {value}" for name, value in sorted(kept, key=lambda pair: pair[0])]


def labels(requests: list[dict[str, Any]]) -> dict[str, str]:
    """A name for every request id that says to which request it belongs.

    The simulator numbers requests as they arrive, and those of concurrent agents arrive in any order. The
    name is made of the request itself instead, which proves more: an agent saw the id of its own request.
    """
    names: dict[str, str] = {}
    taken: dict[str, int] = {}
    for record in requests:
        asked = f"{record['method']} {record['target']} {record.get('body') or record.get('body_base64')}"
        digest = hashlib.sha256(asked.encode()).hexdigest()[:12]
        taken[digest] = taken.get(digest, 0) + 1
        names[record["request_id"]] = f"<id of request {digest} number {taken[digest]}>"
    return names


def shown(value: Any) -> list[str]:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


def shown_line(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def excerpt(saw: Saw) -> str:
    steps = {name: agent["steps"] for name, agent in saw.agents.items()}
    return "\n".join(line[:200] for line in shown(steps)[:DIFF_LINES])


# --- comparing what was aligned -------------------------------------------------------------------


def compare_aligned(directly: Saw, aligned: Saw, expectation: Expectation, way: str) -> None:
    sent, forwarded = (sorted(saw.requests, key=unmarked_request) for saw in [directly, aligned])
    if len(sent) != len(forwarded):
        raise Failed(f"{len(sent)} requests became {len(forwarded)}: what was aligned was refused")
    # One for one, as their comparison below proves.
    pairs = list(zip(sent, forwarded))
    billed_otherwise = {
        record["request_id"] for pair in pairs if pair[0]["usage"] != pair[1]["usage"] for record in pair
    }
    compare(unbilled(directly, billed_otherwise), unbilled(aligned, billed_otherwise), way)
    for left, right in pairs:
        check_body(left, right)
        check_usage(left["usage"], right["usage"])
    costs = [sum(record["cost_usd"] or 0 for record in records) for records in [sent, forwarded]]
    if costs[1] > costs[0] * expectation.most + 1e-9:
        wanted = f"at most {expectation.most:.0%} of the {costs[0]:.6f} $ that it costs directly"
        raise Failed(f"{way} it costs {costs[1]:.6f} $, expected {wanted}")


def unbilled(saw: Saw, billed_otherwise: set[str]) -> Saw:
    """The same run without its bill, and its requests as they were before markers came in."""
    agents = {
        name: {
            "steps": without_parts(agent["steps"]),
            "responses": [
                {**response, "headers": without_length(response["headers"], billed_otherwise)}
                for response in agent["responses"]
            ],
        }
        for name, agent in saw.agents.items()
    }
    requests = [
        {
            **{name: value for name, value in record.items() if name not in BILL},
            "body": unmarked(record.get("body")),
            "headers": [pair for pair in record["headers"] if pair[0] != "content-length"],
        }
        for record in saw.requests
    ]
    return Saw(agents, requests, saw.language)


def without_parts(value: Any) -> Any:
    """The tokens of every prompt as one number."""
    if isinstance(value, list):
        return [without_parts(element) for element in value]
    if not isinstance(value, dict):
        return value
    if "cache_read_input_tokens" not in value:
        return {name: without_parts(member) for name, member in value.items()}
    rest = {name: value[name] for name in value if name not in [*PROMPT, "cache_creation"]}
    return {**rest, "prompt": sum(value.get(name) or 0 for name in PROMPT)}


def without_length(pairs: list[list[str]], billed_otherwise: set[str]) -> list[list[str]]:
    """Without the length of an answer whose usage has other digits."""
    if not any(name == "request-id" and value in billed_otherwise for name, value in pairs):
        return pairs
    return [pair for pair in pairs if pair[0] != "content-length"]


def unmarked_request(record: dict[str, Any]) -> str:
    return f"{record['method']} {record['target']} {unmarked(record.get('body'))}"


def check_body(sent: dict[str, Any], forwarded: dict[str, Any]) -> None:
    """Only markers were added, none of the client's own was lost, and the length is the new one."""
    before, after = (record.get("body") or "" for record in [sent, forwarded])
    if without_added(before, after) != before:
        raise Failed(f"more than markers were changed\n- {before}\n+ {after}"[:4000])
    length = header(forwarded["headers"], "content-length")
    # The simulator does not read what it refuses unseen.
    if after and length != [str(len(after.encode()))]:
        raise Failed(f"content-length is {length} of a body of {len(after.encode())} bytes")


def without_added(before: str, after: str) -> str:
    """`after` without the markers that `before` does not have at the same place."""
    removed = 0

    def keep_own(marker: re.Match[str]) -> str:
        nonlocal removed
        at = marker.start() - removed
        if before.startswith(marker[0], at):
            return marker[0]
        removed += len(marker[0])
        return ""

    return MARKER.sub(keep_own, after)


def check_usage(direct: dict[str, int] | None, aligned: dict[str, int] | None) -> None:
    before, after = direct or {}, aligned or {}
    if sum(before.values()) != sum(after.values()):
        raise Failed(f"other tokens were billed: directly {before}, aligned {after}")
    if after.get("cache_read", 0) < before.get("cache_read", 0):
        raise Failed(f"fewer were read from the cache: directly {before}, aligned {after}")


# --- all programs ---------------------------------------------------------------------------------


def main(language: str, chosen: list[str]) -> int:
    subprocess.run(["cargo", "build", "--locked", "--quiet"], cwd=ROOT, check=True)
    expected = {name: PROGRAMS[name] for name in PROGRAMS if language in PROGRAMS[name].languages}
    others = [name for name in frameworks.FRAMEWORKS if frameworks.is_expected(name, language)]
    runs = {RUN: check_run, **({RUN_AI_SDK: check_run_ai_sdk} if "ai_sdk" in others else {})}
    if unknown := set(chosen) - {*expected, *others, *runs}:
        known = ", ".join([*expected, *others, *runs])
        print(f"no such program: {', '.join(sorted(unknown))}; there are {known}")
        return 64
    failures = 0
    with ExitStack() as stack:
        host = Host(stack, language)
        if sorted(host.programs or []) != sorted([*expected, *others]):
            print(f"FAILED: {language} has the programs {host.programs}, expected are {[*expected, *others]}")
            return 1
        names = chosen or [*expected, *others, *runs]
        for name in names:
            started = time.monotonic()
            try:
                if name in runs:
                    runs[name](language)
                elif name in others:
                    check_framework(host, name)
                else:
                    check(host, name, expected[name])
                print(f"ok      {language} {name} ({time.monotonic() - started:.1f} s)", flush=True)
            except Failed as failure:
                failures += 1
                print(f"FAILED  {language} {name} (CLIENTS_SEED={SEED}): {failure}", flush=True)
    print(f"clients: {len(names) - failures} passed, {failures} failed, by the seed {SEED}")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in HOSTS:
        print(f"usage: drive.py {'|'.join(HOSTS)} [PROGRAM...]")
        sys.exit(64)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
