#!/usr/bin/env python3
"""Checks the dashboard, the alerts and their provisioning, as far as that goes without a Grafana server.

    tests/run dashboards              installs what this needs under target/dashboards, runs everything
    tests/dashboards/check.py STEP…   only these steps, once it is installed

    lint    ids, places, units, descriptions, names of metrics and labels (lint.py)
    types   the files as TypeScript, against @grafana/schema (types.ts, spoilt.ts)
    rules   promtool: the configuration, the rules, and every alert, firing and silent (alerts_test.yml)
    live    a real Prometheus scrapes a real forkpoint under a scripted load (load.py) against the simulator;
            every query of every panel and variable is executed and must return data
    story   fifteen minutes with an incident, played in one; the picture of it tells what happened. UPDATE=1 writes
            .github/dashboard.svg anew (story.py)
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True

import load  # noqa: E402
import story  # noqa: E402
from lint import LEGEND, lint, lint_alerts, panels_of  # noqa: E402
from parts import FORKPOINT, ROOT, Collector, Failed, Process, Prometheus, fetch, metrics, poll  # noqa: E402

HERE = Path(__file__).resolve().parent
INSTALLED = ROOT / "target" / "dashboards"
DASHBOARD = ROOT / "dashboards" / "forkpoint.json"
ALERTS = ROOT / "dashboards" / "alerts.yml"
PROMETHEUS = ROOT / "config" / "prometheus.yml"
PROVISIONING = ROOT / "config" / "grafana" / "provisioning"
PICTURE = ROOT / ".github" / "dashboard.svg"

MODE = "fork"
SETTINGS = {
    # Half of the fan-outs are held out to compare.
    "FORKPOINT_FORK__SHARE": "0.5",
    # The others are forked, whatever that costs beside aligning.
    "FORKPOINT_FORK__CONTEXT_PREMIUM": "100",
    # Large enough for a line with the bodies of a plain request, too small for that of a fan-out.
    "FORKPOINT_RECORD__FILE": "recording.jsonl",
    "FORKPOINT_RECORD__BODIES": "redacted",
    "FORKPOINT_RECORD__MAX_BYTES": "16384",
}
# How often the Prometheus of the check scrapes, instead of what the shipped configuration says.
SCRAPE_EVERY = "200ms"
# A rate needs two samples of every series.
ROUNDS = 3
# What Grafana puts for its variables; the ranges hold the whole load.
SUBSTITUTES = {"$__rate_interval": "2m", "$__range": "10m"}


def yaml(path: Path) -> Any:
    command = [INSTALLED / "node_modules/.bin/yaml", "--json", "--single", "--strict"]
    run = subprocess.run(command, stdin=path.open(), capture_output=True, text=True)
    if run.returncode != 0:
        raise Failed(f"{path.relative_to(ROOT)}: {run.stderr or run.stdout}")
    return json.loads(run.stdout)


def run(*command: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml(ALERTS)["groups"] for rule in group["rules"]]


# --- lint -----------------------------------------------------------------------------------------


def step_lint() -> str:
    dashboard, rules = json.loads(DASHBOARD.read_text()), alerts()
    if problems := [*lint(dashboard), *lint_alerts(rules)]:
        raise Failed("\n".join(problems))
    spoils = list(spoilt(dashboard, rules))
    for spoil, found, expected in spoils:
        if not any(re.search(expected, problem) for problem in found):
            raise Failed(f"the linter overlooks {spoil}; it says {found}")
    return f"{len(panels_of(dashboard))} panels and rows, {len(rules)} alerts, {len(spoils)} faults found in spoilt copies"


def spoilt(dashboard: dict[str, Any], rules: list[Any]) -> Iterator[tuple[str, list[str], str]]:
    """Copies with one fault each, what the linter says of them, and what it must say."""

    def with_(
        change: Callable[[dict[str, Any], dict[str, Any]], Any],
        rows: Callable[[list[dict[str, Any]]], Any] = lambda _: None,
    ) -> list[str]:
        changed = copy.deepcopy(dashboard)
        rows([panel for panel in changed["panels"] if panel["type"] == "row"])
        drawn = [panel for panel in changed["panels"] if panel["type"] == "timeseries"]
        change(drawn[0], drawn[1])
        return list(lint(changed))

    def query(old: str, new: str) -> list[str]:
        text = json.dumps(dashboard)
        assert old in text, old
        return list(lint(json.loads(text.replace(old, new))))

    def alert(change: Callable[[dict[str, Any]], Any]) -> list[str]:
        changed = copy.deepcopy(rules)
        change(changed[0])
        return list(lint_alerts(changed))

    yield "an id twice", with_(lambda a, b: b.update(id=a["id"])), "is used 2 times"
    yield "an overlap", with_(lambda a, b: b.update(gridPos=a["gridPos"])), "overlaps"
    yield "a wide panel", with_(lambda a, _: a["gridPos"].update(w=25)), "does not fit"
    yield "no description", with_(lambda a, _: a.update(description="")), "explains nothing"
    yield "a strange unit", with_(lambda a, _: a["fieldConfig"]["defaults"].update(unit="usd")), "unit usd"
    yield "a query twice", with_(lambda a, _: a["targets"].append(a["targets"][0])), "queries are called"
    yield "an unknown metric", query("forkpoint_forks_total", "forkpoint_fork_total"), "no metric forkpoint_fork_total"
    yield "an unknown label", query("by (cause)", "by (reason)"), "has reason"
    yield "an unknown selector", query('outcome=\\"sealed\\"', 'result=\\"sealed\\"'), "no label result"
    yield "an unknown legend", query("{{cause}}", "{{layers}}"), "has layers"
    yield "an unknown variable", query("$instance", "$node"), "no variable node"
    yield "a variable left out", query(',model=~\\"$model\\"', ""), r"does not heed \$model"
    yield "a bare counter", query("rate(forkpoint_forks_total", "abs(forkpoint_forks_total"), "only rises"
    yield "a metric nobody shows", query("forkpoint_held", "forkpoint_forks_live"), "no panel shows forkpoint_held"
    yield "a row in another place", with_(lambda a, b: None, rows=lambda rows: rows[0].update(title="Gate")), "do not begin"
    yield "a row that is open", with_(lambda a, b: None, rows=lambda rows: rows[-1].update(collapsed=False)), "is open"
    yield "a strange annotation", query("{{outcome}}", "{{result}}"), "nothing has result"
    yield "an alert without a section", alert(lambda rule: rule["annotations"].pop("runbook_url")), "is no section"
    yield "an alert without severity", alert(lambda rule: rule["labels"].clear()), "severity"
    yield "an alert of nothing", alert(lambda rule: rule.update(expr="forkpoint_gone > 1")), "no metric forkpoint_gone"


# --- types ----------------------------------------------------------------------------------------


def step_types() -> str:
    written = {
        "dashboard: WrittenDashboard": json.loads(DASHBOARD.read_text()),
        "datasources: Datasources": yaml(PROVISIONING / "datasources" / "prometheus.yaml"),
        "providers: Providers": yaml(PROVISIONING / "dashboards" / "forkpoint.yaml"),
    }
    lines = ['import type { Datasources, Providers, WrittenDashboard } from "./types.js";']
    lines += [f"export const {name} = {json.dumps(value, indent=1)};" for name, value in written.items()]
    (INSTALLED / "written.ts").write_text("\n".join(lines) + "\n")
    run(INSTALLED / "node_modules/.bin/tsc", "-p", INSTALLED)
    chosen = written["dashboard: WrittenDashboard"]["templating"]["list"][0]["current"]["value"]
    if chosen != written["datasources: Datasources"]["datasources"][0]["uid"]:
        raise Failed(f"the dashboard begins with the data source '{chosen}', which is not the provisioned one")
    return "dashboard, data source and provider fit their types"


# --- rules ----------------------------------------------------------------------------------------


def step_rules() -> str:
    run("promtool", "check", "config", PROMETHEUS)
    run("promtool", "check", "rules", ALERTS)
    # The rules of the tests are named as their file names them, so promtool runs beside it.
    tests = HERE / "alerts_test.yml"
    run("promtool", "test", "rules", tests)
    cases = [case for test in yaml(tests)["tests"] for case in test["alert_rule_test"]]
    for rule in alerts():
        own = [case for case in cases if case["alertname"] == rule["alert"]]
        for state, fires in [("firing", True), ("silent", False)]:
            if not any(bool(case.get("exp_alerts")) == fires for case in own):
                raise Failed(f"no test sees {rule['alert']} {state}")
    return f"{len(cases)} looks at {len(alerts())} alerts"


# --- live -----------------------------------------------------------------------------------------


def step_live() -> str:
    with ExitStack() as stack:
        simulator = stack.enter_context(
            Process([FORKPOINT, "sim", "--listen", "127.0.0.1:0", "--latency", "40"])
        ).says(r"^listening on (http://\S+)$")
        collector = stack.enter_context(Collector())
        serve = [FORKPOINT, "serve", "--mode", MODE, "--upstream", simulator]
        serve += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        settings = SETTINGS | {"FORKPOINT_TRACE__ENDPOINT": collector.url}
        forkpoint = stack.enter_context(Process(serve, settings))
        proxy, admin = (forkpoint.says(rf"^ +{name} +(http://\S+)$") for name in ["proxy", "admin"])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prometheus = start_prometheus(stack, folder, admin)
        started = time.time()
        for number in range(ROUNDS):
            load.play(proxy, simulator, number)
            forkpoint.child.send_signal(signal.SIGHUP)
            poll("a reload", lambda: counted(admin, "config_reloads_total") > number)
            poll("traces", lambda: counted(admin, "traces_total") and counted(admin, "traces_dropped_total"))
            scraped(prometheus, admin)
        return query_all(prometheus, started)


def start_prometheus(stack: ExitStack, folder: Path, admin: str) -> Prometheus:
    """Prometheus as it is configured, but for the address, and more eager."""
    shipped = yaml(PROMETHEUS)
    shipped["global"] = dict.fromkeys(shipped["global"], SCRAPE_EVERY)
    shipped["rule_files"] = [str(PROMETHEUS.parent / path) for path in shipped["rule_files"]]
    target = {"targets": [admin.removeprefix("http://")], "labels": {"namespace": "check"}}
    shipped["scrape_configs"][0]["static_configs"] = [target]
    configuration = folder / "prometheus.json"
    configuration.write_text(json.dumps(shipped))
    command = ["prometheus", "--config.file", configuration, "--storage.tsdb.path", folder / "data"]
    process = stack.enter_context(Process([*command, "--web.listen-address=127.0.0.1:0"]))
    address = process.says(r'msg="Listening on" address=(\S+)')
    process.says(r"(Server is ready to receive web requests)")
    return Prometheus(f"http://{address}")


def counted(admin: str, name: str) -> int:
    """The sum over all labels."""
    page = metrics(admin)
    return sum(map(int, re.findall(rf"^forkpoint_{name}(?:\{{.*\}})? (\d+)$", page, re.MULTILINE)))


def scraped(prometheus: Prometheus, admin: str) -> None:
    """Waits until Prometheus knows what forkpoint counted."""
    requests = counted(admin, "requests_total")
    poll("a scrape", lambda: prometheus.value("sum(forkpoint_requests_total)") >= requests)
    # A series that is new has a rate from its second sample on.
    scrapes = 'sum(count_over_time(up{job="forkpoint"}[1h]))'
    before = prometheus.value(scrapes)
    poll("another scrape", lambda: prometheus.value(scrapes) > before + 1)


def query_all(prometheus: Prometheus, started: float) -> str:
    dashboard = json.loads(DASHBOARD.read_text())
    problems: list[str] = []
    count = 0
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            count += 1
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            if not prometheus.ask(f"label/{label}/values", **{"match[]": substituted(selector)}):
                problems.append(f"${variable['name']}: no values")
    for note in dashboard["annotations"]["list"]:
        count += 1
        prometheus.ask("query_range", query=substituted(note["expr"]), start=started, end=time.time(), step=1)
    for panel in panels_of(dashboard):
        for query in panel.get("targets", []):
            count += 1
            if problem := answer_of(prometheus, query, started):
                problems.append(f"'{panel['title']}' {query['refId']}: {problem}")
    loaded = prometheus.ask("rules")["groups"][0]["rules"]
    problems += [f"{rule['name']}: {rule['lastError']}" for rule in loaded if rule["health"] != "ok"]
    if len(loaded) != len(alerts()):
        problems.append(f"Prometheus loaded {len(loaded)} of {len(alerts())} alerts")
    if problems:
        raise Failed("\n".join(problems))
    return f"all {count} queries returned data, those of annotations aside"


def substituted(expr: str) -> str:
    for name, value in SUBSTITUTES.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$\w+", ".*", expr)


def answer_of(prometheus: Prometheus, query: dict[str, Any], started: float) -> str | None:
    """What is wrong with what Prometheus answers."""
    expr, now = substituted(query["expr"]), time.time()
    try:
        if query["instant"]:
            series = prometheus.ask("query", query=expr, time=now)["result"]
        else:
            series = prometheus.ask("query_range", query=expr, start=started, end=now, step=1)["result"]
    except Failed as failure:
        return str(failure)
    numbers = lambda one: [float(value) for _, value in one.get("values", [one.get("value")])]  # noqa: E731
    told = [one for one in series if any(map(math.isfinite, numbers(one)))]
    if not told:
        return f"{len(series)} series, none with a number: {expr}"
    for label in LEGEND.findall(query.get("legendFormat", "")):
        if not all(one["metric"].get(label) for one in told):
            return f"a series without {label}: {expr}"
    return None


# --- story ----------------------------------------------------------------------------------------


def step_story() -> str:
    with tempfile.TemporaryDirectory() as folder:
        drawn, told = story.tell(Path(folder), json.loads(DASHBOARD.read_text()))
    path = PICTURE if os.environ.get("UPDATE") else INSTALLED / PICTURE.name
    path.write_text(drawn)
    # Its figures are those of one run; its panels are not.
    for panel in told.panels:
        if f">{panel.title}</text>" not in PICTURE.read_text():
            raise Failed(f"{PICTURE.relative_to(ROOT)} has no '{panel.title}': write it anew with UPDATE=1")
    return f"{len(told.panels)} panels tell it, drawn in {path.relative_to(ROOT)}"


# --------------------------------------------------------------------------------------------------

STEPS = {"lint": step_lint, "types": step_types, "rules": step_rules, "live": step_live, "story": step_story}


def main() -> int:
    chosen = sys.argv[1:] or list(STEPS)
    if unknown := set(chosen) - set(STEPS):
        print(f"there is no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
        return 64
    for step in chosen:
        print(f"{step} …", flush=True)
        try:
            print(f"  {STEPS[step]()}", flush=True)
        except Failed as failure:
            print(f"{step}: FAILED\n{failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
