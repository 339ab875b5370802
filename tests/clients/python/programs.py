"""The programs of the Python SDK: one function each, and the loop that runs those the driver asks for.

Standard input has one line of JSON per run, `{"program": …, "url": …}`; standard output answers each with the
transcripts of its agents. Without a URL the SDK finds one by itself. The process stays, since importing the SDK takes longer than most programs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import agent
import forks
import frameworks
from transcript import Transcript

MODEL = "claude-opus-5-5"
SEARCH = {
    "name": "search",
    "description": "Searches the archive.",
    "input_schema": {
        "type": "object",
        "required": ["query", "limit", "deep"],
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "deep": {"type": "object", "required": ["x"], "properties": {"x": {"type": "null"}}},
        },
    },
}

# Long enough for the cache, and with a tool that may be called: align marks such a request.
LONG = {"system": "The handbook. " * 300, "tools": [SEARCH]}

Program = Callable[[str, Transcript], Any]
programs: dict[str, Program] = {}


def program(run: Program) -> Program:
    programs[run.__name__] = run
    return run


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(text: str, **options: Any) -> dict[str, Any]:
    """The arguments of a call with one user message."""
    return {"model": MODEL, "max_tokens": 1000, "messages": [user(text)], **options}


def results(message: Any) -> dict[str, Any]:
    """A user message that answers every call of `message`."""
    calls = [block for block in message.content if block.type == "tool_use"]
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"found {json.dumps(call.input)}"}
            for call in calls
        ],
    }


@program
def create(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    first = log.message(
        client.messages.create(**ask("Hello.", system="Be brief.", metadata={"user_id": "u-1"}))
    )
    history = [
        user("Hello."),
        {"role": "assistant", "content": first.content},
        user("And now? [[sim:text words=9]]"),
    ]
    log.message(client.messages.create(model=MODEL, max_tokens=1000, messages=history))
    log.message(client.messages.create(**ask("[[sim:text words=400]]", max_tokens=20)))
    log.message(client.messages.create(**ask("[[sim:text words=60]]", stop_sequences=[". "])))
    log.message(client.messages.create(**ask("[[sim:empty]]")))


@program
async def asynchronous(url: str, log: Transcript) -> None:
    async with log.async_client(url) as client:
        log.message(await client.messages.create(**ask("Hello.")))
        async for event in await client.messages.create(**ask("[[sim:text words=40]]"), stream=True):
            log.event(event)
        async with client.messages.stream(**ask("[[sim:text words=50]]")) as stream:
            log.value("text", [text async for text in stream.text_stream])
            log.message(await stream.get_final_message())
        log.value(
            "tokens",
            (await client.messages.count_tokens(model=MODEL, messages=[user("Hello.")])).input_tokens,
        )
        log.value("models", [model.id async for model in client.models.list(limit=7)])


@program
def stream_helper(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    with client.messages.stream(**ask("[[sim:tools calls=2]]", tools=[SEARCH])) as stream:
        for event in stream:
            log.event(event)
        log.message(stream.get_final_message())
        log.value("request_id", stream.request_id)
    with client.messages.stream(**ask("[[sim:text words=80]]")) as stream:
        log.value("text", list(stream.text_stream))
        log.message(stream.get_final_message())


@program
def stream_events(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    for event in client.messages.create(**ask("[[sim:text words=120]]"), stream=True):
        log.event(event)
    for event in client.messages.create(**ask("[[sim:tools calls=3]]", tools=[SEARCH]), stream=True):
        log.event(event)


@program
def raw_bytes(url: str, log: Transcript) -> None:
    """The bodies as they came, below everything that the SDK makes of them."""
    client = log.sync_client(url)
    log.value("json", client.messages.with_raw_response.create(**ask("Hello.")).text())
    streaming = client.messages.with_streaming_response
    with streaming.create(**ask("[[sim:text words=50]]"), stream=True) as response:
        log.value("stream", b"".join(response.iter_bytes()).decode())


@program
def beta(url: str, log: Transcript) -> None:
    """Betas travel in a header and in the query, and both must arrive as they were sent."""
    client = log.sync_client(url, default_query={"beta": "true"})
    betas = ["context-management-2025-06-27", "an-unknown-beta-2099-01-01"]
    log.message(client.beta.messages.create(**ask("Hello.", **LONG), betas=betas))
    with client.beta.messages.stream(**ask("[[sim:text words=20]]", **LONG), betas=betas) as stream:
        log.message(stream.get_final_message())


@program
def tools(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    messages = [user("Look it up. [[sim:tools turns=3 calls=2]]")]
    while True:
        answer = log.message(
            client.messages.create(model=MODEL, max_tokens=1000, tools=[SEARCH], messages=messages)
        )
        if answer.stop_reason != "tool_use":
            return
        messages += [{"role": "assistant", "content": answer.content}, results(answer)]


@program
def long_conversation(url: str, log: Transcript) -> None:
    """Nothing is marked: caching is left to the proxy."""
    client = log.sync_client(url)
    messages = [user("Look it up. [[sim:tools turns=7 calls=2]]")]
    while True:
        with client.messages.stream(
            model=MODEL, max_tokens=1000, messages=messages, **LONG
        ) as stream:
            answer = log.message(stream.get_final_message())
        if answer.stop_reason != "tool_use":
            return
        messages += [{"role": "assistant", "content": answer.content}, results(answer)]


@program
def thinking(url: str, log: Transcript) -> None:
    """Thinking comes back with its signature; on this model it is bound to the exact prompt before it."""
    client = log.sync_client(url)
    options: dict[str, Any] = {"thinking": {"type": "adaptive"}, **LONG}
    question = "[[sim:tools turns=2 thinking=40]]"
    answer = log.message(client.messages.create(**ask(question, **options)))
    history = [user(question), {"role": "assistant", "content": answer.content}, results(answer)]
    with client.messages.stream(model=MODEL, max_tokens=1000, messages=history, **options) as stream:
        for event in stream:
            log.event(event)
        answer = log.message(stream.get_final_message())
    history += [{"role": "assistant", "content": answer.content}, results(answer)]
    log.message(client.messages.create(model=MODEL, max_tokens=1000, messages=history, **options))
    with log.errors():
        moved = {**options, "system": "Another prompt."}
        client.messages.create(model=MODEL, max_tokens=1000, messages=history, **moved)
    with log.errors():
        edited = [
            block.model_copy(update={"thinking": "no"})
            for block in answer.content
            if block.type == "thinking"
        ]
        history[3] = {"role": "assistant", "content": [*edited, *answer.content[1:]]}
        client.messages.create(model=MODEL, max_tokens=1000, messages=history, **options)


@program
def caching(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    marked = {"cache_control": {"type": "ephemeral"}}
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [
        {"type": "text", "text": "The handbook. " * 300, **hour},
        {"type": "text", "text": "The appendix. " * 300, **marked},
    ]
    for text in ["One.", "Two."]:
        log.message(client.messages.create(**ask(text, system=system)))
    with client.messages.stream(**ask("Three.", system=system)) as stream:
        log.message(stream.get_final_message())
    automatic = ask("Four. " * 600, system=system[:1], **marked)
    log.message(client.messages.create(**automatic))
    log.message(client.messages.create(**automatic))


@program
def retries(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    log.message(client.messages.create(**ask("Hello.", **LONG)))


@program
def retried_stream(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    with client.messages.stream(**ask("Hello.", **LONG)) as stream:
        log.message(stream.get_final_message())


@program
def retry_after(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    log.message(client.messages.create(**ask("Hello.")))


@program
def gives_up(url: str, log: Transcript) -> None:
    client = log.sync_client(url, max_retries=1)
    with log.errors():
        client.messages.create(**ask("Hello."))


@program
def errors(url: str, log: Transcript) -> None:
    client = log.sync_client(url, max_retries=0)
    with log.errors():
        client.messages.create(**ask(""))
    with log.errors():
        client.messages.create(**ask("Hello."), extra_headers={"Authorization": "Basic none"})
    with log.errors():
        client.messages.create(**ask("Hello.", model="claude-none-1"))
    with log.errors():
        client.messages.create(**ask("x" * (33 << 20)))
    for status in ["403", "409", "429", "500", "504", "529"]:
        with log.errors():
            client.messages.create(**ask("Hello."), extra_headers={"x-sim-status": status})
    with log.errors():
        client.messages.create(**ask("Hello."), stream=True, extra_headers={"x-sim-status": "529"})
    with log.errors():
        client.messages.count_tokens(model=MODEL, messages=[])
    with log.errors():
        client.models.retrieve("claude-none-1")
    with log.errors():
        client.post("/v1/nowhere", cast_to=object, body={})


@program
def error_event(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    headers = {"x-sim-error-after": "6"}
    with log.errors():
        for event in client.messages.create(
            **ask("[[sim:text words=60]]", **LONG), stream=True, extra_headers=headers
        ):
            log.event(event)
    with log.errors():
        with client.messages.stream(**ask("[[sim:text words=70]]", **LONG), extra_headers=headers) as stream:
            log.message(stream.get_final_message())


@program
def cancelled(url: str, log: Transcript) -> None:
    """Leaves a stream that would take a minute, twice: by closing it, and by cancelling a task."""
    client = log.sync_client(url)
    stream = client.messages.create(
        **ask("[[sim:text words=9000 pace_ms=40]]", max_tokens=20_000, **LONG), stream=True
    )
    for _ in range(5):
        log.event(next(stream))
    stream.close()
    asyncio.run(cancelled_task(url, log))


async def cancelled_task(url: str, log: Transcript) -> None:
    five = asyncio.Event()

    async def read() -> None:
        stream = client.messages.create(
            **ask("[[sim:text words=9001 pace_ms=40]]", max_tokens=20_000), stream=True
        )
        seen = 0
        async for event in await stream:
            seen += 1
            if seen <= 5:
                log.event(event)
            if seen == 5:
                five.set()

    async with log.async_client(url) as client:
        reading = asyncio.create_task(read())
        await five.wait()
        reading.cancel()
        log.value("ended by", type((await asyncio.gather(reading, return_exceptions=True))[0]).__name__)


@program
def timed_out(url: str, log: Transcript) -> None:
    client = log.sync_client(url, max_retries=0, timeout=0.5)
    with log.errors():
        client.messages.create(**ask("Hello."), extra_headers={"x-sim-latency-ms": "60000"})


@program
def count_tokens(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    same: dict[str, Any] = {
        "model": MODEL,
        "system": "Count.",
        "tools": [SEARCH],
        "messages": [user("How many?")],
    }
    log.value("tokens", client.messages.count_tokens(**same).to_dict())
    log.message(client.messages.create(max_tokens=100, **same))


@program
def models(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    page = client.models.list(limit=4)
    log.value("page", page.to_dict(mode="json"))
    log.value("all", [model.to_dict(mode="json") for model in page])
    log.value("one", client.models.retrieve(MODEL).to_dict(mode="json"))


@program
def compressed(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    for coding in ["gzip", "deflate"]:
        headers = {"x-sim-compress": coding}
        log.message(client.messages.create(**ask("[[sim:text words=200]]", **LONG), extra_headers=headers))
        long = ask("[[sim:text words=300]]", **LONG)
        stream = client.messages.create(**long, stream=True, extra_headers=headers)
        for event in stream:
            log.event(event)


@program
def cut(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    headers = {"x-sim-cut-at": "900"}
    with log.errors():
        for event in client.messages.create(
            **ask("[[sim:text words=200]]", **LONG), stream=True, extra_headers=headers
        ):
            log.event(event)
    with log.errors():
        with client.messages.stream(**ask("[[sim:text words=201]]"), extra_headers=headers) as stream:
            log.message(stream.get_final_message())


@program
def cut_json(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    with log.errors():
        log.message(client.messages.create(**ask("[[sim:text words=200]]", **LONG)))


@program
def large(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    log.message(client.messages.create(**ask("lorem ipsum dolor sit amet " * 39_000)))


@program
def unicode(url: str, log: Transcript) -> None:
    client = log.sync_client(url)
    odd = "Zürich, 東京, שלום, 👩‍🚀 e\u0301 \u2028\u2029 \u0000\u0001\u007f\ufeff \\u0041 \"\\/' \U0010ffff"
    place = {
        "name": "place",
        "input_schema": {"type": "object", "required": [odd], "properties": {odd: {"const": odd}}},
    }
    question = ask(f"{odd} [[sim:tools turns=1]]", system=odd, tools=[place])
    answer = log.message(client.messages.create(**question))
    history = [*question["messages"], {"role": "assistant", "content": answer.content}, results(answer)]
    log.message(client.messages.create(**{**question, "messages": history}))
    with client.messages.stream(**question) as stream:
        for event in stream:
            log.event(event)
        log.message(stream.get_final_message())


@program
def fan_out(url: str, _: Transcript) -> dict[str, Transcript]:
    return asyncio.run(agent.run(url))


@program
def forked(url: str, _: Transcript) -> dict[str, Transcript]:
    task = "[[sim:fan_out n=4 tool=Agent words=60 | tools turns=3 calls=2 first_ms=40]]"
    return asyncio.run(forks.survey(url, task, forks.compacting))


@program
def forked_cancelled(url: str, _: Transcript) -> dict[str, Transcript]:
    task = "[[sim:fan_out n=3 tool=Agent words=60 | text words=80 pace_ms=10 first_ms=40]]"
    return asyncio.run(forks.survey(url, task, forks.cancelled))


@program
def forked_retried(url: str, _: Transcript) -> dict[str, Transcript]:
    task = "[[sim:fan_out n=3 tool=Agent words=60 | text words=20 first_ms=40]]"
    return asyncio.run(forks.survey(url, task, forks.whole))


programs.update(frameworks.programs)


def run(name: str, url: Any) -> dict[str, Any]:
    log = Transcript()
    outcome = programs[name](url, log)
    if asyncio.iscoroutine(outcome):
        outcome = asyncio.run(outcome)
    return {name: log.json() for name, log in (outcome or {"main": log}).items()}


def serve() -> None:
    print(json.dumps(list(programs)), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"agents": run(order["program"], order.get("url"))}
        except Exception:
            answer = {"crash": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
