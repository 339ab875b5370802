"""A story of fifteen minutes with an incident, and the picture of it in the README.

It is played in about a minute: after each step `/metrics` of a real forkpoint is read, and its samples get the time that
the step has in the story. promtool writes blocks of them, a real Prometheus reads those, and what it answers to
`query_range` for the panels of the dashboard is drawn.

    14:00  mode observe: agents that mark nothing for the cache, and a fan-out now and then
    14:03  a reload to mode fork
    14:06  their client is updated, and has the time of day in its system prompt
    14:10  the update is rolled back
    14:12  the upstream is overloaded for a minute
    14:14  forkpoint is restarted with its next version: the binary is the same, and its samples get that label
"""

from __future__ import annotations

import datetime
import math
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import load
from lint import LEGEND, panels_of
from parts import FORKPOINT, Failed, Process, Prometheus, fetch, metrics, poll

BEGIN = datetime.datetime(2026, 11, 16, 14, 0, tzinfo=datetime.UTC).timestamp()
STEP_SECONDS = 15
STEPS = 60
END = BEGIN + STEPS * STEP_SECONDS
# What is asked first: a rate needs a minute.
FIRST_SECONDS = 60
# What Grafana puts for its variables.
SUBSTITUTES = {"$__rate_interval": "1m", "$__range": "15m"}
LABELS = 'instance="agents-0",job="forkpoint",namespace="agents"'

# The next version, by the story.
NEXT = "0.1.1"
CHATS = 4
BEFORE, AFTER = "claude-cli/2.1.9", "claude-cli/2.2.0"
# The panels that are drawn, by title.
FIGURES = ["Cache-hit share", "Saved, share of as sent", "Saved", "Billed", "Cache breaks", "Answers with 5xx"]
GRAPHS = [
    "Requests by status",
    "Hit share by client",
    "Cache breaks by cause",
    "Cost per hour: billed and otherwise",
    "Saved, share of as sent, over time",
    "Children by plan and reason",
]


def minute(step: int) -> float:
    return step * STEP_SECONDS / 60


# --- the story ------------------------------------------------------------------------------------


class Chat(load.Agent):
    """An agent that marks nothing for the cache; what it reads next grows with each turn."""

    def __init__(self, proxy: str, number: int) -> None:
        self.opening = load.prose(f"You are agent {number} of a team of engineers.", 6000)
        headers = {"x-api-key": f"team-{number % 2}", "x-claude-code-session-id": f"chat-{number}"}
        super().__init__(proxy, headers, load.MODELS[0], self.opening, [load.READ, load.WRITE], f"Task {number}.")
        self.body["system"][0].pop("cache_control")

    def turn(self, step: int) -> None:
        is_updated = 6 <= minute(step) < 10
        self.headers["user-agent"] = AFTER if is_updated else BEFORE
        time = f"It is 14:{step // 4:02}:{step % 4 * 15:02}. " if is_updated else ""
        self.body["system"][0]["text"] = time + self.opening
        said = self.body["messages"]
        answered = len(said)
        try:
            self.ask()
        except Failed:
            # Overloaded: it tries again with its next turn.
            return
        if len(said) > answered:
            self.say([{"type": "text", "text": load.prose(f"And then? Step {step}.", 100)}])


def play(proxy: str, simulator: str, chats: list[Chat], step: int) -> None:
    """The requests of fifteen seconds."""
    if 12 <= minute(step) < 13:
        fault = {"fault": "status", "status": 529}
        fetch(f"{simulator}/sim/faults", [fault] * 2)
    with ThreadPoolExecutor(CHATS) as pool:
        list(pool.map(lambda chat: chat.turn(step), chats))
    fetch_delete(f"{simulator}/sim/faults")
    # As often as the window of a rate is long, so that it is no saw.
    if step % 4 == 0:
        team = load.Team(2 * step, 3, "tools turns=2 tool=Read", [load.READ, load.WRITE], client=BEFORE)
        load.fan_out(proxy, team)


def fetch_delete(url: str) -> None:
    host, path = re.fullmatch(r"http://([^/]+)(/.*)", url).groups()
    load.call(f"http://{host}", "DELETE", path, {})


def samples(page: str, time: float) -> list[str]:
    """The samples of a page of metrics, with the labels of a target and this time."""
    found = re.findall(r"^([a-zA-Z_]\w*)(?:\{(.*)\})? (\S+)$", page, re.MULTILINE)
    return [f"{name}{{{','.join(filter(None, [inside, LABELS]))}}} {value} {time}" for name, inside, value in found]


def started(stack: ExitStack, serve: list[Any]) -> tuple[Process, str, str]:
    """A forkpoint, and the addresses of its proxy and its admin port."""
    forkpoint = stack.enter_context(Process(serve))
    proxy, admin = (forkpoint.says(rf"^ +{name} +(http://\S+)$") for name in ["proxy", "admin"])
    return forkpoint, proxy, admin


def record(folder: Path) -> Path:
    """Plays the story, and writes every sample of it in the OpenMetrics format."""
    with ExitStack() as stack:
        latency = ["--latency", "20"]
        simulator = stack.enter_context(Process([FORKPOINT, "sim", "--listen", "127.0.0.1:0", *latency]))
        simulator = simulator.says(r"^listening on (http://\S+)$")
        settings = folder / "forkpoint.toml"
        # These children read nothing again: forking them costs more than aligning, which the story allows.
        allowed = "[fork]\nmax_cost_ratio = 2\ncontext_premium = 100\n"
        mode = lambda word: settings.write_text(f'[server]\nmode = "{word}"\n{allowed}')  # noqa: E731
        mode("observe")
        serve = [FORKPOINT, "serve", "--config", settings, "--upstream", simulator]
        serve += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        forkpoint, proxy, admin = started(stack, serve)
        chats = [Chat(proxy, number) for number in range(CHATS)]
        lines: list[str] = []
        for step in range(STEPS + 1):
            if minute(step) == 3:
                mode("fork")
                forkpoint.child.send_signal(signal.SIGHUP)
                poll("a reload", lambda: 'forkpoint_mode{mode="fork"} 1' in metrics(admin))
            if minute(step) == 14:
                forkpoint.child.send_signal(signal.SIGTERM)
                forkpoint.child.wait(timeout=30)
                forkpoint, proxy, admin = started(stack, serve)
                for chat in chats:
                    chat.proxy = proxy
            page = metrics(admin)
            if minute(step) >= 14:
                page = re.sub(r'(forkpoint_build_info\{.*version=")[^"]+', rf"\g<1>{NEXT}", page)
            lines += samples(page, BEGIN + step * STEP_SECONDS)
            if step < STEPS:
                play(proxy, simulator, chats, step)
    path = folder / "story.txt"
    path.write_text("\n".join([*lines, "# EOF", ""]))
    return path


def serve(stack: ExitStack, folder: Path, recorded: Path) -> Prometheus:
    """A Prometheus that knows nothing but the story."""
    data = folder / "data"
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", recorded, data]
    if (made := subprocess.run(command, capture_output=True, text=True)).returncode != 0:
        raise Failed(f"promtool: {made.stdout}{made.stderr}")
    configuration = folder / "prometheus.yml"
    configuration.write_text("global: {}\n")
    command = ["prometheus", "--config.file", configuration, "--storage.tsdb.path", data]
    command += ["--storage.tsdb.retention.time=100y", "--web.listen-address=127.0.0.1:0"]
    process = stack.enter_context(Process(command))
    address = process.says(r'msg="Listening on" address=(\S+)')
    process.says(r"(Server is ready to receive web requests)")
    return Prometheus(f"http://{address}")


# --- what the panels show -------------------------------------------------------------------------


class Line(NamedTuple):
    name: str
    points: list[tuple[float, float]]


class Panel(NamedTuple):
    title: str
    unit: str
    lines: list[Line]
    limits: list[tuple[float, str]]


class Mark(NamedTuple):
    title: str
    colour: str
    time: float


class Story(NamedTuple):
    figures: list[tuple[str, str, float]]
    panels: list[Panel]
    marks: list[Mark]

    def marked(self, title: str) -> list[int]:
        """The minutes in which an event is marked."""
        return sorted({round((mark.time - BEGIN) / 60) for mark in self.marks if mark.title == title})

    def values(self, panel: str, name: str, first: float, last: float) -> list[float]:
        """What a line shows between two minutes."""
        lines = [line for one in self.panels if one.title == panel for line in one.lines if line.name == name]
        if not lines:
            raise Failed(f"'{panel}' does not show {name}")
        return [value for time, value in lines[0].points if first <= (time - BEGIN) / 60 <= last]


def substituted(expr: str) -> str:
    for name, value in SUBSTITUTES.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$\w+", ".*", expr)


def read(prometheus: Prometheus, dashboard: dict[str, Any]) -> Story:
    panels = {panel["title"]: panel for panel in panels_of(dashboard) if panel["type"] != "row"}
    figures = []
    for title in FIGURES:
        panel = panels[title]
        value = prometheus.ask("query", query=substituted(panel["targets"][0]["expr"]), time=END)["result"]
        if not value:
            raise Failed(f"'{title}' shows nothing")
        figures.append((title, panel["fieldConfig"]["defaults"]["unit"], float(value[0]["value"][1])))
    marks = []
    for note in dashboard["annotations"]["list"]:
        for series in range_of(prometheus, note["expr"]):
            # Neighbours are one event.
            time = float(series["values"][0][0])
            if time == BEGIN + FIRST_SECONDS:
                # It was so from the start.
                continue
            marks.append(Mark(legend(note["titleFormat"], series["metric"]), note["iconColor"], time))
    return Story(figures, [panel_of(prometheus, panels[title]) for title in GRAPHS], marks)


def range_of(prometheus: Prometheus, expr: str) -> list[dict[str, Any]]:
    parameters = {"query": substituted(expr), "start": BEGIN + FIRST_SECONDS, "end": END, "step": STEP_SECONDS}
    return prometheus.ask("query_range", **parameters)["result"]


def panel_of(prometheus: Prometheus, panel: dict[str, Any]) -> Panel:
    lines = []
    for query in panel["targets"]:
        for series in range_of(prometheus, query["expr"]):
            points = [(float(time), float(value)) for time, value in series["values"]]
            points = [(time, value) for time, value in points if math.isfinite(value)]
            # A share of nothing says something, a counter that stays at zero does not.
            is_share = panel["fieldConfig"]["defaults"]["unit"] == "percentunit"
            if points and (is_share or any(value != 0 for _, value in points)):
                lines.append(Line(legend(query["legendFormat"], series["metric"]), points))
    if not lines:
        raise Failed(f"'{panel['title']}' shows nothing")
    defaults = panel["fieldConfig"]["defaults"]
    steps = defaults.get("thresholds", {}).get("steps", [])
    limits = [(step["value"], step["color"]) for step in steps if step["value"] is not None]
    lines.sort(key=lambda line: -max(value for _, value in line.points))
    return Panel(panel["title"], defaults["unit"], lines, limits)


def legend(form: str, labels: dict[str, str]) -> str:
    return LEGEND.sub(lambda found: labels.get(found[1], ""), form)


def check(story: Story) -> None:
    """The pictures tell what happened."""
    at = lambda *line: story.values(*line)  # noqa: E731
    facts = {
        "after the reload the cache is read": max(at("Hit share by client", "claude-cli/2.1", 4, 6)) > 0.8,
        "before it less was": min(at("Hit share by client", "claude-cli/2.1", 1, 2.5)) < 0.5,
        "the updated client reads little": min(at("Hit share by client", "claude-cli/2.2", 7, 10)) < 0.5,
        "and the cause is named": max(at("Cache breaks by cause", "system", 6, 7.5)) > 0,
        "which is no cause before": max(at("Cache breaks by cause", "system", 1, 6)) == 0,
        "forkpoint saves": min(at("Saved, share of as sent, over time", "saved", 4.5, 6)) > 0.1,
        "children are forked from then on": max(at("Children by plan and reason", "forked: none", 4, 12)) > 0,
        "the upstream was overloaded": max(at("Requests by status", "529", 12, 13.5)) > 0,
        "the reload is marked": story.marked("Reload: loaded") == [3],
        "so is the mode": story.marked("Mode fork") == [3],
        "so is the next version": story.marked(f"Version {NEXT}") == [14],
        "so is the restart": story.marked("Restart") == [14],
    }
    if wrong := [fact for fact, holds in facts.items() if not holds]:
        raise Failed(f"not so in the story: {', '.join(wrong)}")


# --- the picture ----------------------------------------------------------------------------------

WIDTH, COLUMNS, GAP = 960, 3, 16
FIGURE_HEIGHT, GRAPH_HEIGHT, LEGEND_LINES = 62, 210, 2
TOP = 76
# Of Okabe and Ito: told apart by most eyes, on white and on black.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
NAMED = {"blue": "#0072b2", "purple": "#9b59b6", "green": "#009e73", "orange": "#e69f00", "red": "#d62728"}
STYLE = (
    ".page{fill:#fff}.card{fill:#f6f8fa}.ink{fill:#1f2328;font-family:sans-serif}.faint{fill:#59636e}"
    ".grid{stroke:#d1d9e0}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}"
    "@media (prefers-color-scheme: dark){.page{fill:#0d1117}.card{fill:#161b22}.ink{fill:#f0f6fc}"
    ".faint{fill:#9198a1}.grid{stroke:#3d444d}}"
)


def shown(value: float, unit: str) -> str:
    """A value as Grafana writes it, nearly."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %" if abs(value) >= 0.1 or value == 0 else f"{100 * value:.1f} %"
    if unit == "currencyUSD":
        digits = 0 if value == int(value) else 2
        return f"{'-' if value < 0 else ''}${abs(value):.{digits}f}"
    rate = {"reqps": " req/s", "ops": " /s"}.get(unit, "")
    return f"{value:.0f}{rate}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}{rate}"


def text(x: float, y: float, size: int, words: str, kind: str = "ink", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def picture(story: Story) -> str:
    rows = math.ceil(len(story.panels) / COLUMNS)
    height = TOP + FIGURE_HEIGHT + GAP + rows * (GRAPH_HEIGHT + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The dashboard during an incident</title>",
        "<desc>Fifteen minutes of a scripted story: a reload to mode fork, a client that loses its cache, an overload.</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        text(GAP, 26, 17, "forkpoint, 14:00 to 14:15"),
        text(GAP, 46, 12, said(story.marks), "ink faint"),
        text(GAP, 63, 12, "14:06 to 14:10 a client with the time of day in its system prompt; 14:12 an overload. The settings let forking cost more than aligning.", "ink faint"),
    ]
    width = (WIDTH - GAP * (len(story.figures) + 1)) / len(story.figures)
    for place, (title, unit, value) in enumerate(story.figures):
        x = GAP + place * (width + GAP)
        out.append(f'<rect class="card" x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{FIGURE_HEIGHT}" rx="4"/>')
        out += [text(x + 10, TOP + 20, 11, title, "ink faint"), text(x + 10, TOP + 48, 20, shown(value, unit))]
    width = (WIDTH - GAP * (COLUMNS + 1)) / COLUMNS
    for place, panel in enumerate(story.panels):
        x = GAP + place % COLUMNS * (width + GAP)
        y = TOP + FIGURE_HEIGHT + GAP + place // COLUMNS * (GRAPH_HEIGHT + GAP)
        out.append(f'<rect class="card" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{GRAPH_HEIGHT}" rx="4"/>')
        out += graph(panel, story.marks, x, y, width)
    return "\n".join([*out, "</svg>", ""])


def said(marks: list[Mark]) -> str:
    clock = lambda time: f"{datetime.datetime.fromtimestamp(time, datetime.UTC):%H:%M}"  # noqa: E731
    events = ", ".join(f"{clock(mark.time)} {mark.title}" for mark in sorted(marks, key=lambda mark: mark.time))
    return f"Vertical lines: {events}."


def graph(panel: Panel, marks: list[Mark], x: float, y: float, width: float) -> list[str]:
    left, right, top, bottom = x + 58, x + width - 12, y + 34, y + GRAPH_HEIGHT - 24 - 14 * LEGEND_LINES
    values = [value for line in panel.lines for _, value in line.points]
    high, low = nice(max(values)), min(0.0, *values)
    across = lambda time: left + (time - BEGIN) / (END - BEGIN) * (right - left)  # noqa: E731
    up = lambda value: bottom - (value - low) / (high - low) * (bottom - top)  # noqa: E731
    out = [text(x + 10, y + 20, 12, panel.title)]
    for part in range(3):
        value = high * part / 2
        out.append(f'<path class="grid" d="M{left:.1f} {up(value):.1f}H{right:.1f}"/>')
        out.append(text(left - 6, up(value) + 4, 10, shown(value, panel.unit), "ink faint", "end"))
    for at in range(0, 16, 5):
        out.append(text(across(BEGIN + 60 * at), bottom + 14, 10, f"14:{at:02}", "ink faint", "middle"))
    for value, colour in panel.limits:
        if low <= value <= high:
            out.append(f'<path stroke="{NAMED.get(colour, colour)}" stroke-dasharray="5 4" d="M{left:.1f} {up(value):.1f}H{right:.1f}"/>')
    for mark in marks:
        at = f"M{across(mark.time):.1f} {top:.1f}V{bottom:.1f}"
        out.append(f'<path stroke="{NAMED[mark.colour]}" stroke-dasharray="2 3" d="{at}"><title>{escape(mark.title)}</title></path>')
    for place, line in enumerate(panel.lines[: len(COLOURS)]):
        points = " ".join(f"{across(time):.1f},{up(value):.1f}" for time, value in line.points)
        out.append(f'<polyline class="line" stroke="{COLOURS[place]}" points="{points}"><title>{escape(line.name)}</title></polyline>')
    for place, line in enumerate(panel.lines[: 2 * LEGEND_LINES]):
        key_x, key_y = x + 12 + place % 2 * (width / 2 - 8), bottom + 30 + 14 * (place // 2)
        out.append(f'<rect x="{key_x:.1f}" y="{key_y - 7:.1f}" width="9" height="3" fill="{COLOURS[place]}"/>')
        out.append(text(key_x + 14, key_y - 2, 10, line.name, "ink faint"))
    return out


def nice(value: float) -> float:
    """The next number that is easy to read."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10] if step * power >= value * 0.999)


def tell(folder: Path, dashboard: dict[str, Any]) -> tuple[str, Story]:
    """Plays the story and draws it."""
    recorded = record(folder)
    with ExitStack() as stack:
        story = read(serve(stack, folder, recorded), dashboard)
    check(story)
    return picture(story), story
