"""Programs in which a framework does the talking: deepagents, and the SDK's own loop, which holds its conversation
on the server. What is compared is the last text (see ../frameworks.py)."""

from __future__ import annotations

from typing import Any

import anthropic
from deepagents import create_deep_agent
from langchain_anthropic import ChatAnthropic
from transcript import KEY, Transcript

MODEL = "claude-sonnet-4-6"
HANDBOOK = "The handbook, to be followed by everybody. " * 300


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
    last = runner.until_done()
    log.value("text", "".join(block.text for block in last.content if block.type == "text"))


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")


programs = {"deepagents": deepagents, "tool_runner": tool_runner}
