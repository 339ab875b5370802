"""A hand-written agent: the parent calls the Agent tool five times, and five sub-agents work at once.

A sub-agent has a short system prompt of its own, a part of the parent's tools, and its directive as the
user's message.
"""

from __future__ import annotations

import asyncio
from typing import Any

from transcript import Transcript

MODEL = "claude-opus-5-5"
SYSTEM = "You lead a survey of a code base. " + "Rules of the house, to be followed by everybody. " * 200
CHILD_SYSTEM = "You are a surveyor. Report what you find in one paragraph."


def tool(name: str, *fields: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": list(fields),
        "properties": {field: {"type": "string"} for field in fields},
    }
    return {"name": name, "description": f"{name} something.", "input_schema": schema}


TOOLS = [tool("Agent", "description", "prompt"), tool("Read", "path"), tool("Grep", "pattern", "path")]
CHILD_TOOLS = TOOLS[1:]


async def run(url: str) -> dict[str, Transcript]:
    logs = {"parent": Transcript()}
    async with logs["parent"].async_client(url) as client:
        task = "Survey it. [[sim:fan_out n=5 tool=Agent words=60 | tools turns=2 first_ms=60]]"
        system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        while True:
            stream = client.messages.stream(
                model=MODEL, max_tokens=4000, system=system, tools=TOOLS, messages=messages
            )
            async with stream as events:
                answer = logs["parent"].message(await events.get_final_message())
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return logs
            for number, _ in enumerate(calls, start=1):
                logs[f"child {number}"] = Transcript()
            children = [
                child(url, logs[f"child {number}"], call) for number, call in enumerate(calls, start=1)
            ]
            reports = await asyncio.gather(*children)
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": reports},
            ]


async def child(url: str, log: Transcript, call: Any) -> dict[str, Any]:
    """Works on one directive until the model has nothing more to call, and returns the tool_result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": call.input["prompt"]}]
    async with log.async_client(url) as client:
        while True:
            answer = log.message(
                await client.messages.create(
                    model=MODEL, max_tokens=2000, system=CHILD_SYSTEM, tools=CHILD_TOOLS, messages=messages
                )
            )
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                report = "".join(block.text for block in answer.content if block.type == "text")
                return {"type": "tool_result", "tool_use_id": call.id, "content": report}
            found = [
                {"type": "tool_result", "tool_use_id": call.id, "content": "three lines"} for call in calls
            ]
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": found}]
