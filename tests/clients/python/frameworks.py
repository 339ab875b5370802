"""Programs in which a framework does the talking: deepagents, and the SDK's own loop, which holds its conversation
on the server. What is compared is the last text (see ../frameworks.py)."""

from __future__ import annotations

from typing import Any

import anthropic
from deepagents import create_deep_agent
from langchain_anthropic import ChatAnthropic
from transcript import KEY, Transcript

MODEL = "claude-sonnet-4-6"
BOUND = "claude-opus-5-5"
HANDBOOK = "The handbook, to be followed by everybody. " * 300
MANUAL = "A page of the surveyor's manual. " * 300


def deepagents(url: str, log: Transcript) -> None:
    """The parent starts three general-purpose agents, each of which lists files before it reports."""
    model = ChatAnthropic(model=MODEL, api_key=KEY, base_url=url, max_tokens=1000, max_retries=0)
    agent = create_deep_agent(model=model, system_prompt=HANDBOOK)
    child = "tools turns=2 calls=1 tool=ls"
    task = f"[[sim:fan_out n=3 tool=task field=description type=general-purpose words=60 | {child}]]"
    state = agent.invoke({"messages": [{"role": "user", "content": f"Survey it. {task}"}]})
    reports = [message.content for message in state["messages"] if message.type == "tool"]
    log.value("reports", reports)
    log.value("text", text_of(state["messages"][-1].content))


def tool_runner(url: str, log: Transcript) -> None:
    @anthropic.beta_tool
    def search(query: str) -> str:
        """Searches the archive."""
        return f"found {len(query)} letters"

    runner = log.sync_client(url).beta.messages.tool_runner(
        model=MODEL,
        max_tokens=1000,
        system=HANDBOOK,
        tools=[search],
        messages=[{"role": "user", "content": "Look it up. [[sim:tools turns=6 calls=2 tool=search]]"}],
    )
    log.value("text", said(runner.until_done()))


def held_thread(url: str, log: Transcript) -> None:
    """One conversation, every second turn of which is streamed."""
    system = [{"type": "text", "text": HANDBOOK}]
    thread = log.sync_client(url).beta.messages.thread(model=MODEL, max_tokens=1000, system=system)
    texts = []
    for number in range(1, 7):
        words = f"Question {number}. [[sim:text words=20]]"
        question: Any = {"role": "user", "content": [{"type": "text", "text": words}]}
        if number % 2 == 0:
            with thread.stream(question) as stream:
                texts.append(said(stream.get_final_message()))
        else:
            texts.append(said(thread.send(question)))
    log.value("text", "\n".join(texts))


def refused_thread(url: str, log: Transcript) -> None:
    """As `held_thread`, before an upstream that finds the fields of a continue changed."""
    held_thread(url, log)


def runner_agents(url: str, log: Transcript) -> None:
    """Every agent, the parent and each child, holds a conversation of its own on the server."""
    run_agents(url, log, {})


def whole_agents(url: str, log: Transcript) -> None:
    """The same, but each turn brings the whole conversation."""
    run_agents(url, log, {"thread": False})


def refused_agents(url: str, log: Transcript) -> None:
    """As `runner_agents`, before an upstream that finds the fields of a continue changed."""
    run_agents(url, log, {})


def late_agents(url: str, log: Transcript) -> None:
    """The parent looks something up before it starts its agents, so that they are the answer to a continue. Its model
    binds what it thinks to what came before."""
    own = {"model": BOUND, "thinking": {"type": "adaptive"}}
    run_agents(url, log, own, first="Look it up. [[sim:tools turns=1 calls=1 tool=search thinking=20]]")


def run_agents(url: str, log: Transcript, own: dict[str, Any], first: str | None = None) -> None:
    messages = log.sync_client(url).beta.messages
    params: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, **own}

    @anthropic.beta_tool
    def search(query: str) -> str:
        """Searches the archive."""
        return f"found {len(query)} letters"

    @anthropic.beta_tool
    def agent(prompt: str) -> str:
        """Starts a surveyor."""
        asked = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        survey = messages.tool_runner(**params, system=MANUAL, tools=[search], messages=asked)
        log.value("report", said(survey.until_done()))
        return log.steps[-1]["value"]

    task = "[[sim:fan_out n=3 tool=agent field=prompt words=60 | tools turns=3 calls=1 tool=search]]"
    asked = [{"role": "user", "content": [{"type": "text", "text": f"Survey it. {task}"}]}]
    if first:
        thread = messages.thread(**params, system=HANDBOOK, tools=[agent, search])
        thread.append({"role": "user", "content": first})
        thread.tool_runner().until_done()
        thread.append(*asked)
        lead = thread.tool_runner()
    else:
        lead = messages.tool_runner(**params, system=HANDBOOK, tools=[agent, search], messages=asked)
    log.value("text", said(lead.until_done()))


def said(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")


programs = {
    "deepagents": deepagents,
    "tool_runner": tool_runner,
    "held_thread": held_thread,
    "refused_thread": refused_thread,
    "runner_agents": runner_agents,
    "whole_agents": whole_agents,
    "refused_agents": refused_agents,
    "late_agents": late_agents,
}
