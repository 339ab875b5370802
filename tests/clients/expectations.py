"""What each program must have seen, whichever way it went: the proof that it did its job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BOTH = ("python", "typescript")

# What a write costs, of what the same tokens cost otherwise: the most that is lost on a program that ends
# before anybody reads what was written for its next turn.
WRITTEN = 1.25
# As align writes one: behind the last member of a block, or before the first of the body.
MARKER = re.compile(r',{0}|{0},'.format(r'"cache_control":\{"type":"ephemeral"(?:,"ttl":"1h")?\}'))


@dataclass
class Saw:
    """One run: the transcripts of its agents, and the requests that reached the simulator."""

    agents: dict[str, Any]
    requests: list[dict[str, Any]]
    language: str

    def steps(self, kind: str, agent: str = "main") -> list[dict[str, Any]]:
        return [step for step in self.agents[agent]["steps"] if step["step"] == kind]

    def messages(self, agent: str = "main") -> list[dict[str, Any]]:
        return [step["message"] for step in self.steps("message", agent)]

    def events(self) -> list[dict[str, Any]]:
        return [step["event"] for step in self.steps("event")]

    def errors(self) -> list[dict[str, Any]]:
        return self.steps("error")

    def value(self, name: str) -> Any:
        found = [step["value"] for step in self.steps("value") if step["name"] == name]
        assert len(found) == 1, f"{len(found)} values named {name}"
        return found[0]

    def responses(self) -> list[dict[str, Any]]:
        return [response for agent in self.agents.values() for response in agent["responses"]]

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request["body"]) for request in self.requests]


@dataclass
class Expectation:
    check: Callable[[Saw], None]
    languages: tuple[str, ...] = BOTH
    # Ordered of the simulator before the program starts; others a program asks for by header.
    faults: list[dict[str, Any]] = field(default_factory=list)
    # What the aligned run may cost, of what the direct one does.
    most: float = 1.0
    # What must hold in mode `fork`, of the direct run and of that one; without it no child may be forked there.
    forked: Callable[[Saw, Saw], None] | None = None


PROGRAMS: dict[str, Expectation] = {}


def expect(
    *faults: dict[str, Any],
    languages: tuple[str, ...] = BOTH,
    most: float = 1.0,
    forked: Callable[[Saw, Saw], None] | None = None,
) -> Callable[..., None]:
    def register(check: Callable[[Saw], None]) -> None:
        PROGRAMS[check.__name__] = Expectation(check, languages, list(faults), most, forked)

    return register


def equal(found: Any, wanted: Any, what: str) -> None:
    assert found == wanted, f"{what}: {found!r}, expected {wanted!r}"


def text_of(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def stops(messages: list[dict[str, Any]]) -> list[str]:
    return [message["stop_reason"] for message in messages]


def header(pairs: list[list[str]], name: str) -> list[str]:
    return [value for known, value in pairs if known == name]


def unmarked(body: str | None) -> str | None:
    return body and MARKER.sub("", body)


def endings(saw: Saw) -> list[str]:
    return [request["ending"] for request in saw.requests]


def whole_stream(events: list[dict[str, Any]]) -> None:
    """The events of one stream, first to last. The SDKs keep pings to themselves."""
    names = [event["type"] for event in events]
    equal(
        (names[0], names[-2:]),
        ("message_start", ["message_delta", "message_stop"]),
        "the frame of the stream",
    )
    equal(names.count("content_block_start"), names.count("content_block_stop"), "blocks that close")


# --- answers --------------------------------------------------------------------------------------


@expect()
def create(saw: Saw) -> None:
    wanted = ["end_turn", "end_turn", "max_tokens", "stop_sequence", "end_turn"]
    equal(stops(saw.messages()), wanted, "stop reasons")
    texts = [text_of(message) for message in saw.messages()]
    assert all(texts[:4]) and texts[0] != texts[1], texts
    equal(saw.messages()[4]["content"], [], "the empty answer")
    assert all(step["request_id"].startswith("req_") for step in saw.steps("message"))
    equal(saw.bodies()[1]["messages"][1]["content"][0]["text"], texts[0], "the answer that came back")


@expect(languages=("python",))
def asynchronous(saw: Saw) -> None:
    equal(len(saw.messages()), 2, "messages")
    whole_stream(saw.events())
    equal("".join(saw.value("text")), text_of(saw.messages()[1]), "the text of the stream")
    assert saw.value("tokens") > 0 and len(saw.value("models")) > 7
    assert all(
        header(request["headers"], "x-stainless-async")[0].startswith("async") for request in saw.requests
    )


@expect()
def stream_helper(saw: Saw) -> None:
    tools, text = saw.messages()
    equal(kinds(tools), ["text", "tool_use", "tool_use"], "blocks")
    equal(set(tools["content"][1]["input"]), {"query", "limit", "deep"}, "the input")
    assert len(saw.events()) >= 15
    assert len(saw.value("text")) >= 10
    equal("".join(saw.value("text")), text_of(text), "the text of the stream")
    assert saw.value("request_id").startswith("req_")


@expect()
def stream_events(saw: Saw) -> None:
    events = saw.events()
    second = max(index for index, event in enumerate(events) if event["type"] == "message_start")
    whole_stream(events[:second])
    whole_stream(events[second:])
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas.count("text_delta") >= 15 and deltas.count("input_json_delta") >= 6, deltas


@expect()
def raw_bytes(saw: Saw) -> None:
    assert json.loads(saw.value("json"))["content"][0]["text"]
    stream = saw.value("stream")
    assert stream.startswith("event: message_start\ndata: {") and stream.count("\n\n") >= 8, stream
    assert "event: ping\n" in stream and stream.endswith("\n\n"), stream


@expect(most=WRITTEN)
def beta(saw: Saw) -> None:
    equal(stops(saw.messages()), ["end_turn"] * 2, "stop reasons")
    for request in saw.requests:
        equal(request["target"], "/v1/messages?beta=true", "target")
        betas = header(request["headers"], "anthropic-beta")
        equal(betas, ["context-management-2025-06-27,an-unknown-beta-2099-01-01"], "betas")


# Ends with the first turn that is long enough for the cache: what it writes, at a quarter more, nobody reads.
@expect(most=1.07)
def tools(saw: Saw) -> None:
    equal(stops(saw.messages()), ["tool_use"] * 3 + ["end_turn"], "stop reasons")
    equal([len(body["messages"]) for body in saw.bodies()], [1, 3, 5, 7], "lengths of the history")
    calls = [
        block["id"]
        for message in saw.messages()
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    equal(len(set(calls)), 6, "calls")


@expect(most=0.5)
def long_conversation(saw: Saw) -> None:
    equal(stops(saw.messages()), ["tool_use"] * 7 + ["end_turn"], "stop reasons")
    equal(len({json.dumps(message["content"]) for message in saw.messages()}), 8, "different answers")
    equal([len(body["messages"]) for body in saw.bodies()], list(range(1, 16, 2)), "lengths of the history")


@expect()
def thinking(saw: Saw) -> None:
    messages = saw.messages()
    equal([kinds(message)[0] for message in messages], ["thinking"] * 3, "first blocks")
    equal([kinds(message)[-1] for message in messages], ["tool_use", "tool_use", "text"], "last blocks")
    assert all(message["content"][0]["signature"] for message in messages)
    deltas = {event["delta"]["type"] for event in saw.events() if event["type"] == "content_block_delta"}
    assert {"thinking_delta", "signature_delta"} <= deltas, deltas
    sent = saw.bodies()[2]["messages"]
    for index, message in [(1, messages[0]), (3, messages[1])]:
        for name in ["thinking", "signature"]:
            equal(sent[index]["content"][0][name], message["content"][0][name], f"{name} that came back")
    moved, edited = saw.errors()
    assert "bound to a different conversation" in moved["message"], moved
    assert "cannot be modified" in edited["message"], edited


@expect()
def caching(saw: Saw) -> None:
    usage = [message["usage"] for message in saw.messages()]
    counters = [(used["cache_creation_input_tokens"], used["cache_read_input_tokens"]) for used in usage]
    (written, _), *later = counters
    assert written > 1000 and counters[0][1] == 0, counters
    equal(later[:2], [(0, written)] * 2, "what the second and third request read")
    hour = usage[0]["cache_creation"]["ephemeral_1h_input_tokens"]
    assert 0 < hour < written, usage[0]
    equal(later[2][1], hour, "what automatic caching read")
    assert later[2][0] > 500, counters
    equal(later[3], (0, sum(later[2])), "what its repetition read")


@expect()
def count_tokens(saw: Saw) -> None:
    equal(saw.value("tokens"), {"input_tokens": saw.messages()[0]["usage"]["input_tokens"]}, "tokens")
    equal(
        [request["target"] for request in saw.requests],
        ["/v1/messages/count_tokens", "/v1/messages"],
        "targets",
    )


@expect()
def models(saw: Saw) -> None:
    equal(len(saw.value("page")["data"]), 4, "models on a page")
    names = [model["id"] for model in saw.value("all")]
    assert len(names) > 8 and len(set(names)) == len(names), names
    equal(saw.value("one")["id"], "claude-opus-5-5", "the model asked for")
    assert len(saw.requests) >= 4 and all(request["method"] == "GET" for request in saw.requests)
    assert any("after_id=" in request["target"] for request in saw.requests)


@expect()
def compressed(saw: Saw) -> None:
    codings = [header(response["headers"], "content-encoding") for response in saw.responses()]
    wanted = ["gzip", "deflate"] if saw.language == "python" else ["gzip", "deflate", "br"]
    equal(codings, [[coding] for coding in wanted for _ in ["message", "stream"]], "content-encoding")
    equal(len(saw.messages()), len(wanted), "messages")
    equal(len({text_of(message) for message in saw.messages()}), 1, "different texts")
    streams = len(saw.events()) // len(wanted)
    for index in range(len(wanted)):
        whole_stream(saw.events()[index * streams : (index + 1) * streams])


@expect()
def large(saw: Saw) -> None:
    assert len(saw.requests[0]["body"]) > 1 << 20
    assert saw.messages()[0]["usage"]["input_tokens"] > 200_000


@expect()
def unicode(saw: Saw) -> None:
    first, second, streamed = saw.messages()
    (odd,) = first["content"][-1]["input"].values()
    for wanted in ["Zürich", "東京", "👩‍🚀", "\u2028", "\u0000", "\U0010ffff"]:
        assert wanted in odd, repr(odd)
    equal(second["stop_reason"], "end_turn", "the end")
    equal(streamed["content"][-1]["input"], {odd: odd}, "the streamed input")
    equal([body["system"] for body in saw.bodies()], [odd] * 3, "system prompts")
    equal(saw.bodies()[1]["messages"][1]["content"][-1]["input"], {odd: odd}, "the input that came back")


# --- failures -------------------------------------------------------------------------------------


def attempts(saw: Saw, statuses: list[int]) -> None:
    """One request after the other, each but the first marked as a retry, with one body."""
    equal([request["status"] for request in saw.requests], statuses, "statuses that the simulator gave")
    equal([response["status"] for response in saw.responses()], statuses, "statuses that the SDK got")
    counts = [header(request["headers"], "x-stainless-retry-count") for request in saw.requests]
    equal(counts, [[str(index)] for index in range(len(statuses))], "x-stainless-retry-count")
    equal(len({request["body"] for request in saw.requests}), 1, "different bodies")


@expect({"fault": "status", "status": 529, "count": 2}, most=WRITTEN)
def retries(saw: Saw) -> None:
    attempts(saw, [529, 529, 200])
    equal(stops(saw.messages()), ["end_turn"], "stop reasons")


@expect({"fault": "status", "status": 529, "count": 2}, most=WRITTEN)
def retried_stream(saw: Saw) -> None:
    attempts(saw, [529, 529, 200])
    equal(stops(saw.messages()), ["end_turn"], "stop reasons")


@expect({"fault": "status", "status": 429, "retry_after_s": 1})
def retry_after(saw: Saw) -> None:
    attempts(saw, [429, 200])
    equal(header(saw.responses()[0]["headers"], "retry-after"), ["1"], "retry-after")
    # Without the header the SDKs wait half a second at most.
    waited_us = saw.requests[1]["arrived_us"] - saw.requests[0]["arrived_us"]
    assert waited_us >= 950_000, f"the retry came after {waited_us} µs"


@expect({"fault": "status", "status": 529, "count": 9})
def gives_up(saw: Saw) -> None:
    attempts(saw, [529, 529])
    equal([error["class"] for error in saw.errors()], ["OverloadedError"], "errors")


@expect()
def errors(saw: Saw) -> None:
    wanted = [
        ("BadRequestError", 400, "invalid_request_error"),
        ("AuthenticationError", 401, "authentication_error"),
        ("NotFoundError", 404, "not_found_error"),
        ("ContentTooLargeError", 413, "request_too_large"),
        ("PermissionDeniedError", 403, "permission_error"),
        ("ConflictError", 409, "conflict_error"),
        ("RateLimitError", 429, "rate_limit_error"),
        ("InternalServerError", 500, "api_error"),
        ("GatewayTimeoutError", 504, "timeout_error"),
        ("OverloadedError", 529, "overloaded_error"),
        ("OverloadedError", 529, "overloaded_error"),
        ("BadRequestError", 400, "invalid_request_error"),
        ("NotFoundError", 404, "not_found_error"),
        ("NotFoundError", 404, "not_found_error"),
    ]
    equal([(error["class"], error["status"], error["type"]) for error in saw.errors()], wanted, "errors")
    equal([request["status"] for request in saw.requests], [status for _, status, _ in wanted], "statuses")
    assert all(error["api_message"] and error["request_id"].startswith("req_") for error in saw.errors())
    equal(saw.errors()[2]["api_message"], "model: claude-none-1", "the message of a 404")


@expect(most=WRITTEN)
def error_event(saw: Saw) -> None:
    equal(len(saw.events()), 5, "events before the error, one of six being a ping")
    equal(saw.messages(), [], "messages")
    classes = {"python": "APIStatusError", "typescript": "APIError"}
    found = [(error["class"], error["type"], error["api_message"]) for error in saw.errors()]
    equal(found, [(classes[saw.language], "overloaded_error", "Overloaded")] * 2, "errors")
    equal([response["status"] for response in saw.responses()], [200, 200], "statuses")


@expect(most=WRITTEN)
def cancelled(saw: Saw) -> None:
    equal([event["type"] for event in saw.events()].count("content_block_delta"), 6, "deltas of two streams")
    equal(endings(saw), ["client_left"] * 2, "endings")
    assert saw.value("ended by") in ["CancelledError", "APIUserAbortError"], saw.value("ended by")


@expect()
def timed_out(saw: Saw) -> None:
    wanted = "APITimeoutError" if saw.language == "python" else "APIConnectionTimeoutError"
    equal([error["class"] for error in saw.errors()], [wanted], "errors")
    equal(endings(saw), ["client_left"], "endings")
    equal(saw.responses(), [], "responses")


@expect(most=WRITTEN)
def cut(saw: Saw) -> None:
    equal(len(saw.events()), 4, "events before the cut")
    classes = {"python": ["RemoteProtocolError"] * 2, "typescript": ["TypeError", "AnthropicError"]}
    equal([error["class"] for error in saw.errors()], classes[saw.language], "errors")
    equal(saw.messages(), [], "messages")
    equal(endings(saw), ["cut"] * 2, "endings")


@expect({"fault": "cut", "at_byte": 300}, most=WRITTEN)
def cut_json(saw: Saw) -> None:
    # Only the Python SDK reads the body of an answer within the attempt, and so tries again.
    if saw.language == "python":
        equal(endings(saw), ["cut", "complete"], "endings")
        equal(stops(saw.messages()), ["end_turn"], "stop reasons")
    else:
        equal(endings(saw), ["cut"], "endings")
        equal([error["message"] for error in saw.errors()], ["terminated"], "errors")


# --- the agent ------------------------------------------------------------------------------------


# Two turns, of which the second writes what no third one reads; the children are too short for the cache.
@expect(most=1.02)
def fan_out(saw: Saw) -> None:
    children = [f"child {number}" for number in range(1, 6)]
    equal(sorted(saw.agents), [*children, "parent"], "agents")
    first, last = saw.messages("parent")
    equal(kinds(first), ["text"] + ["tool_use"] * 5, "the fan-out turn")
    equal(last["stop_reason"], "end_turn", "the end of the parent")
    assert last["usage"]["cache_read_input_tokens"] > 1000, last["usage"]
    reports = []
    for child in children:
        equal(stops(saw.messages(child)), ["tool_use", "tool_use", "end_turn"], f"turns of {child}")
        reports.append(text_of(saw.messages(child)[-1]))
    equal(len(set(reports)), 5, "different reports")
    (final,) = [body for body in saw.bodies() if len(body["messages"]) == 3 and len(body["tools"]) == 3]
    equal([block["content"] for block in final["messages"][2]["content"]], reports, "reports to the parent")
    equal(len(saw.requests), 17, "requests")
    assert most_at_once(saw.requests) >= 2, "the children did not work at the same time"


def most_at_once(requests: list[dict[str, Any]]) -> int:
    changes = [(request["arrived_us"], 1) for request in requests] + [
        (request["ended_us"], -1) for request in requests
    ]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most
