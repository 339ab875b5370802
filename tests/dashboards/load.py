"""The scripted load: a small team's afternoon in some seconds, against the simulator.

Each round plays the same again with other words, so that every counter of it moves between two scrapes:

    fan-outs      parents whose children work with tools, read again what the parent has read, answer nothing, fan
                  out themselves, or call tools that are not theirs; two clients, two tenants
    silence       children that answer with nothing once they are forked, until forking stands down for their tool
    drift         a conversation whose system prompt has another date on each turn, and so breaks its cache
    refusals      a rewrite that the upstream refuses, a request that is forkpoint's to refuse, other endpoints
"""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from parts import PATIENCE_SECONDS, Failed, fetch

# The first has prices for prompt and output, the second for its prompt only.
MODELS = ["claude-fable-5-2", "claude-opus-5-5"]
CLIENTS = ["claude-cli/2.1.3 (external)", "anthropic-python/1.8.0"]
TURNS_MAX = 12


def tool(name: str, field: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
    return {"name": name, "description": f"{name} something and return what was found.", "input_schema": schema}


READ, WRITE = tool("Read", "path"), tool("Write", "path")
AGENT, TASK = tool("Agent", "prompt"), tool("Task", "prompt")


def prose(opening: str, tokens: int) -> str:
    """Instructions of about that many tokens: the simulator takes four bytes for one."""
    sentence = " Read before you write, measure before you claim, and leave the place tidier than it was."
    return opening + sentence * (tokens * 4 // len(sentence) + 1)


# What a parent has read, and its children read again.
FILE = prose("A file of the project.", 300)


class Agent:
    """One conversation, streamed, with the client's own markers or none."""

    def __init__(self, proxy: str, headers: dict[str, str], model: str, system: str, tools: list[Any], ask: str):
        self.proxy, self.headers, self.plan = proxy, headers, ""
        self.body: dict[str, Any] = {
            "model": model,
            "max_tokens": 16_000,
            "stream": True,
            "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
            "tools": tools,
            "messages": [{"role": "user", "content": [{"type": "text", "text": ask}]}],
        }

    def ask(self) -> list[dict[str, Any]]:
        """The blocks of the answer, which becomes part of the conversation."""
        headers = {"anthropic-version": "2023-06-01", "content-type": "application/json", **self.headers}
        answer = call(self.proxy, "POST", "/v1/messages", headers, json.dumps(self.body))
        if answer.status != 200:
            raise Failed(f"the load got a {answer.status}: {answer.text[:300]}")
        self.plan = answer.plan
        blocks = blocks_of(answer.text)
        if blocks:
            self.body["messages"].append({"role": "assistant", "content": blocks})
        return blocks

    def say(self, content: list[dict[str, Any]]) -> None:
        self.body["messages"].append({"role": "user", "content": content})

    def work(self) -> None:
        """Answers its calls until there are none; every other result is an error, and the rest are the file."""
        for turn in range(TURNS_MAX):
            calls = [block for block in self.ask() if block["type"] == "tool_use"]
            if not calls:
                return
            failed = turn % 2 == 0
            results = [result(call, "It cannot be read." if failed else FILE, failed) for call in calls]
            self.say(results + self.aside())
        raise Failed(f"an agent of the load did not end within {TURNS_MAX} turns")


    def aside(self) -> list[dict[str, Any]]:
        return []


class Silent(Agent):
    """One that has nothing to say once it is forked."""

    def aside(self) -> list[dict[str, Any]]:
        return [{"type": "text", "text": "[[sim:empty]]"}] if self.plan == "forked" else []


class Answer(NamedTuple):
    status: int
    text: str
    plan: str


def result(call: dict[str, Any], text: str, failed: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text, "is_error": failed}


def blocks_of(stream: str) -> list[dict[str, Any]]:
    """The content of a streamed answer."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for line in stream.splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
            blocks[event["index"]]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return blocks


def call(proxy: str, method: str, path: str, headers: dict[str, str], body: str | None = None) -> Answer:
    connection = http.client.HTTPConnection(proxy.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode(), answer.getheader("x-forkpoint-plan", ""))
    finally:
        connection.close()


class Team(NamedTuple):
    """A fan-out: who asks, how many children, what they do and with which tools."""

    number: int
    children: int
    does: str
    tools: list[Any]
    spawner: Any = AGENT
    kind: type[Agent] = Agent
    key: str = "key"
    client: str = ""


def fan_out(proxy: str, team: Team) -> None:
    """A parent, its children all at once, and the parent's second turn."""
    number, name = team.number, team.spawner["name"]
    session = f"session-{number}-{name}-{team.does}"
    headers = {"x-api-key": f"{team.key}-{number % 2}", "user-agent": team.client or CLIENTS[number % 2]}
    headers |= {"x-claude-code-session-id": session}
    model = MODELS[number % 2]
    ask = f"Survey part {number}. [[sim:fan_out n={team.children} tool={name} field=prompt words=60 | {team.does}]]"
    system = prose("You lead a team of engineers.", 3000)
    parent = Agent(proxy, headers, model, system, [READ, WRITE, team.spawner], f"Look into part {number}.")
    look = {"type": "tool_use", "id": f"toolu_look_{number}", "name": "Read", "input": {"path": "a"}}
    parent.body["messages"].append({"role": "assistant", "content": [look]})
    parent.say([result(look, FILE), {"type": "text", "text": ask}])
    calls = [block for block in parent.ask() if block["type"] == "tool_use"]
    if len(calls) != team.children:
        raise Failed(f"the parent called {len(calls)} children of {team.children}")
    children = [
        team.kind(
            proxy,
            headers | {"x-claude-code-agent-id": f"{session}-{index}"},
            model,
            # New to every fan-out, so that its children come to the gate with something to write.
            prose(f"You are a sub-agent of team {number}. Report tersely.", 6000),
            team.tools,
            call["input"]["prompt"],
        )
        for index, call in enumerate(calls)
    ]
    with ThreadPoolExecutor(team.children) as pool:
        list(pool.map(Agent.work, children))
    parent.say([result(call, "Done.") for call in calls])
    parent.ask()


def drift(proxy: str, number: int) -> None:
    """Four turns under a system prompt with the date in it."""
    headers = {"x-api-key": f"key-{number % 2}", "user-agent": CLIENTS[number % 2]}
    agent = Agent(proxy, headers, MODELS[0], "", [READ], f"Chat {number}.")
    for day in range(1, 5):
        agent.body["system"][0]["text"] = prose(f"Today is 2026-11-{day:02}.", 3000)
        agent.ask()
        agent.say([{"type": "text", "text": f"And on day {day}?"}])


def refusals(proxy: str, simulator: str, number: int) -> None:
    key = {"x-api-key": "key-0", "user-agent": CLIENTS[0]}
    # What align adds is refused once; the original goes out again.
    fault = {"fault": "status", "status": 400, "match": {"body_contains": f"Refuse {number}."}}
    fetch(f"{simulator}/sim/faults", fault)
    agent = Agent(proxy, key, MODELS[0], prose("You are refused.", 3000), [READ], f"Refuse {number}.")
    agent.body["system"][0].pop("cache_control")
    agent.body["messages"] += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    agent.ask()
    # What fork makes of a child is refused as well.
    fetch(f"{simulator}/sim/faults", fault | {"match": {"body_contains": "<forkpoint-child>"}})
    fan_out(proxy, Team(number * 10 + 9, 2, "tools turns=1 tool=Read", [READ, WRITE]))
    if (status := call(proxy, "GET", "/v1/models", key).status) >= 500:
        raise Failed(f"GET /v1/models gave {status}")
    upgrade = {**key, "connection": "upgrade", "upgrade": "websocket"}
    if (status := call(proxy, "GET", "/v1/socket", upgrade).status) != 501:
        raise Failed(f"an upgrade gave {status}")


def silence(proxy: str, number: int) -> None:
    """Enough silent children of one tenant and tool for forking to stand down: eight of three fan-outs."""
    for turn in range(8):
        team = Team(number * 100 + turn * 2, 4, "tools turns=1 tool=Read", [READ, WRITE], TASK, Silent, f"silent-{number}")
        fan_out(proxy, team)


def play(proxy: str, simulator: str, number: int) -> None:
    """One round."""
    for index, (does, tools) in enumerate(
        [
            ("tools turns=2 tool=Read", [READ, WRITE]),
            ("tools turns=2 tool=Read", [READ, WRITE]),
            ("tools turns=2 tool=Write", [READ]),
            ("empty", [READ, WRITE]),
            ("fan_out n=2 tool=Agent field=prompt words=60", [READ, WRITE, AGENT]),
        ]
    ):
        fan_out(proxy, Team(number * 10 + index, 2 + index % 3, does, tools))
    silence(proxy, number)
    drift(proxy, number)
    refusals(proxy, simulator, number)
