"""Agents whose children are worth putting on their parent's prefix: a large parent, and children that bring a long
manual of their own and share its tools. Each says who it is in a header, so that the simulator's journal tells them
apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agent import CHILD_TOOLS, MODEL, TOOLS
from transcript import Transcript

SYSTEM = "You lead a survey of a code base. " + "Rules of the house, to be followed by everybody. " * 200
PROJECT = "Here is the whole project. " + "A line of the project, as it stands in its file. " * 800
CHILD_SYSTEM = "You are a surveyor. " + "A page of the manual, to be known by every surveyor. " * 600

Messages = list[dict[str, Any]]
# Works on a directive with a client and answers the report.
Child = Callable[[Transcript, str, str, str], Awaitable[str]]


async def survey(url: str, task: str, child: Child) -> dict[str, Transcript]:
    """The parent, and one child for each of its calls, all at once."""
    logs = {"parent": Transcript()}
    messages: Messages = [
        {"role": "user", "content": PROJECT},
        {"role": "assistant", "content": "I have read it."},
        {"role": "user", "content": f"Survey it. {task}"},
    ]
    async with logs["parent"].async_client(url) as client:
        while True:
            stream = client.messages.stream(
                model=MODEL,
                max_tokens=8000,
                system=SYSTEM,
                tools=TOOLS,
                messages=messages,
                extra_headers={"x-agent": "parent"},
            )
            async with stream as events:
                answer = logs["parent"].message(await events.get_final_message())
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return logs
            names = [f"child {number}" for number, _ in enumerate(calls, start=1)]
            logs.update({name: Transcript() for name in names})
            children = [
                child(logs[name], url, name, call.input["prompt"]) for name, call in zip(names, calls)
            ]
            reports = await asyncio.gather(*children)
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": report}
                for call, report in zip(calls, reports)
            ]
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]


def request(name: str, messages: Messages) -> dict[str, Any]:
    """The arguments of a child's call."""
    return {
        "model": MODEL,
        "max_tokens": 2000,
        "system": CHILD_SYSTEM,
        "tools": CHILD_TOOLS,
        "messages": messages,
        "extra_headers": {"x-agent": name},
    }


def text_of(answer: Any) -> str:
    return "".join(block.text for block in answer.content if block.type == "text")


async def compacting(log: Transcript, url: str, name: str, directive: str) -> str:
    """Streams, runs tools as long as they are called, then keeps its last turn alone and goes on from there."""
    first = {"role": "user", "content": directive}
    messages: Messages = [first]
    async with log.async_client(url) as client:

        async def turn() -> Any:
            async with client.messages.stream(**request(name, messages)) as events:
                return log.message(await events.get_final_message())

        while True:
            answer = await turn()
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                break
            found = [
                {"type": "tool_result", "tool_use_id": call.id, "content": "three lines"} for call in calls
            ]
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": found}]
        called, found = messages[-2:]
        summary = {"type": "text", "text": "So far: three files read. Sum it up. [[sim:text words=25]]"}
        messages = [first, called, {"role": "user", "content": [*found["content"], summary]}]
        return text_of(await turn())


async def cancelled(log: Transcript, url: str, name: str, directive: str) -> str:
    """Streams. The first child leaves after five events, and asks once more when it has."""
    messages: Messages = [{"role": "user", "content": directive}]
    async with log.async_client(url) as client:
        if name == "child 1":
            async with client.messages.stream(**request(name, messages)) as events:
                seen = 0
                async for event in events:
                    log.event(event)
                    seen += 1
                    if seen == 5:
                        break
        async with client.messages.stream(**request(name, messages)) as events:
            return text_of(log.message(await events.get_final_message()))


async def whole(log: Transcript, url: str, name: str, directive: str) -> str:
    """One answer in one piece; what the upstream refuses for a while, the SDK tries again."""
    async with log.async_client(url) as client:
        answer = await client.messages.create(**request(name, [{"role": "user", "content": directive}]))
        return text_of(log.message(answer))
