"""What the schema cannot say of a dashboard: ids, places, units, descriptions, and names that exist.

Names come from the table of metrics in dashboards/README.md, which a test of the Rust suite writes from the
declarations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from parts import ROOT

# Of Grafana's units, those that fit what is measured.
UNITS = {"short", "percentunit", "currencyUSD", "s", "bytes", "ops", "reqps", "string"}
# What Prometheus adds to every sample, and to those of histograms.
ADDED = {"namespace", "instance", "job"}
# What every selector heeds.
EVERYWHERE = ['namespace=~"$namespace"', 'job=~"$job"', 'instance=~"$instance"']
# The rows that are open, in this order; those after them are closed.
OPEN = [
    "At a glance",
    "Traffic and errors",
    "Latency and overhead",
    "Cache breaks",
    "Cache-hit share",
    "Savings (estimates)",
]
README = "dashboards/README.md"
PARTS = ("_bucket", "_sum", "_count")
COLUMNS = 24

METRIC = re.compile(r"\b(?:forkpoint|process)_[a-z0-9_]+")
SELECTOR = re.compile(r"\b((?:forkpoint|process)_[a-z0-9_]+)\{([^}]*)\}")
MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\b(?:by|on|group_left|without|ignoring)\s*\(([^)]*)\)")
LEGEND = re.compile(r"\{\{\s*([a-z_]+)\s*\}\}")
VARIABLE = re.compile(r"\$\{?([a-zA-Z_]\w*)\}?")
# Grafana's own.
BUILT_IN = {"__rate_interval", "__range"}


def metrics() -> dict[str, tuple[str, set[str]]]:
    """Type and labels of every metric."""
    row = re.compile(r"^\| `((?:forkpoint|process)_\w+)(?:\{([\w,]+)\})?` \| (\w+) \|", re.MULTILINE)
    found = row.findall((ROOT / "dashboards" / "README.md").read_text())
    return {name: (kind, set(labels.split(",")) - {""}) for name, labels, kind in found}


def lint(dashboard: dict[str, Any]) -> Iterator[str]:
    panels, known = panels_of(dashboard), metrics()
    ids = [panel["id"] for panel in panels]
    yield from (f"id {number} is used {ids.count(number)} times" for number in set(ids) if ids.count(number) > 1)
    titles = [panel["title"] for panel in panels if panel["type"] != "row"]
    yield from (f"two panels are called '{title}'" for title in set(titles) if titles.count(title) > 1)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    if missing := {"namespace", "job", "instance", "model", "client", "tenant"} - variables:
        yield f"there is no variable {', '.join(sorted(missing))}"
    yield from places(dashboard["panels"])
    for row in dashboard["panels"]:
        yield from places(row.get("panels", []))
    rows = [panel for panel in panels if panel["type"] == "row"]
    if [row["title"] for row in rows[: len(OPEN)]] != OPEN:
        yield f"the rows do not begin with {', '.join(OPEN)}"
    yield from (
        f"'{row['title']}' is {'closed' if row['collapsed'] else 'open'}"
        for row in rows
        if row["collapsed"] == (row["title"] in OPEN)
    )
    for note in dashboard["annotations"]["list"]:
        yield from (f"annotation {note['name']}: {problem}" for problem in lint_annotation(note, known))
    drawn = [panel for panel in panels if panel["type"] != "row"]
    for panel in drawn:
        yield from (f"'{panel['title']}': {problem}" for problem in lint_panel(panel, known, variables))
    used = {name for panel in drawn for query in panel["targets"] for name in names(query["expr"], known)}
    yield from (f"no panel shows {name}" for name in known if name not in used)


def panels_of(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel and row, those of closed rows too."""
    return [panel for outer in dashboard["panels"] for panel in [outer, *outer.get("panels", [])]]


def lint_annotation(note: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    yield from lint_query(note["expr"], known)
    yield from lint_selectors(note["expr"], known)
    shown = set(LEGEND.findall(note["titleFormat"] + note["textFormat"]))
    if unknown := shown - labels(note["expr"], known):
        yield f"nothing has {', '.join(sorted(unknown))}"


def places(panels: list[dict[str, Any]]) -> Iterator[str]:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > COLUMNS:
            yield f"'{panel['title']}' does not fit into {COLUMNS} columns"
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        for other in sorted({taken[cell] for cell in cells if cell in taken}):
            yield f"'{panel['title']}' overlaps '{other}'"
        taken |= dict.fromkeys(cells, panel["title"])


def lint_panel(panel: dict[str, Any], known: dict[str, Any], variables: set[str]) -> Iterator[str]:
    if len(panel.get("description", "")) < 30:
        yield "the description explains nothing"
    unit = panel["fieldConfig"]["defaults"].get("unit")
    if unit not in UNITS:
        yield f"the unit {unit} is not one of {', '.join(sorted(UNITS))}"
    references = [query["refId"] for query in panel["targets"]]
    if not references or len(references) != len(set(references)):
        yield f"queries are called {references}"
    for query in panel["targets"]:
        yield from lint_query(query["expr"], known)
        legend = set(LEGEND.findall(query.get("legendFormat", "")))
        if unknown := legend - labels(query["expr"], known):
            yield f"no metric of {query['refId']} has {', '.join(sorted(unknown))}"
        if unknown := set(VARIABLE.findall(query["expr"])) - variables - BUILT_IN:
            yield f"there is no variable {', '.join(sorted(unknown))}"
        if panel["type"] == "timeseries" and len(panel["targets"]) > 1 and not query.get("legendFormat"):
            yield f"{query['refId']} has no legend"
        yield from lint_selectors(query["expr"], known)


def lint_selectors(expr: str, known: dict[str, Any]) -> Iterator[str]:
    """Selectors that leave a variable out."""
    for name, inside in SELECTOR.findall(expr):
        if any(matcher not in inside for matcher in EVERYWHERE):
            yield f"{name} does not heed $namespace, $job and $instance"
        for label in ["model", "client", "tenant"]:
            if label in known.get(family(name, known), ("", set()))[1] and f'{label}=~"${label}"' not in inside:
                yield f"{name} does not heed ${label}"


def lint_query(expr: str, known: dict[str, Any]) -> Iterator[str]:
    """Names of metrics and labels that do not exist, and a hit rate that is no ratio of sums."""
    for name in METRIC.findall(expr):
        if family(name, known) not in known:
            yield f"there is no metric {name}"
    for name, inside in SELECTOR.findall(expr):
        own = known.get(family(name, known), ("", set()))[1] | ADDED
        if unknown := set(MATCHER.findall(inside)) - own:
            yield f"{name} has no label {', '.join(sorted(unknown))}"
    grouped = {label.strip() for group in GROUPING.findall(expr) for label in group.split(",")} - {""}
    if unknown := grouped - labels(expr, known):
        yield f"nothing in the query has {', '.join(sorted(unknown))}"
    if re.search(r"\bavg\b", expr):
        yield "an average of ratios is no ratio of sums"
    for name in names(expr, known):
        counts = re.search(rf"(?:rate|increase)\(\s*{name}\b", expr) or f"{name} unless" in expr
        if known[name][0] == "counter" and not counts:
            yield f"{name} only rises: its rate or increase is of interest"


def family(name: str, known: dict[str, Any]) -> str:
    """The metric that a series belongs to."""
    for part in PARTS:
        stem = name.removesuffix(part)
        if stem != name and known.get(stem, ("",))[0] == "histogram":
            return stem
    return name


def names(expr: str, known: dict[str, Any]) -> set[str]:
    return {family(name, known) for name in METRIC.findall(expr)} & set(known)


def labels(expr: str, known: dict[str, Any]) -> set[str]:
    """Every label that a series of the query may have."""
    found = set(ADDED)
    for name in names(expr, known):
        kind, own = known[name]
        found |= own | ({"le"} if kind == "histogram" else set())
    return found


def lint_alerts(rules: list[dict[str, Any]]) -> Iterator[str]:
    known = metrics()
    for rule in rules:
        for problem in lint_rule(rule, known):
            yield f"{rule.get('alert', 'a rule')}: {problem}"


def lint_rule(rule: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    if not rule.get("alert", "").startswith("Forkpoint"):
        yield "its name does not begin with Forkpoint"
    if rule.get("labels", {}).get("severity") not in {"warning", "critical"}:
        yield "its severity is neither warning nor critical"
    for member in ["summary", "description"]:
        if len(rule.get("annotations", {}).get(member, "")) < 30:
            yield f"its {member} explains nothing"
    link = rule.get("annotations", {}).get("runbook_url", "")
    if link != f"{README}#{rule.get('alert', '').lower()}" or f"\n### {rule['alert']}\n" not in (ROOT / README).read_text():
        yield f"its runbook_url '{link}' is no section of {README}"
    yield from lint_query(rule["expr"], known)
    said = " ".join(rule.get("annotations", {}).values())
    grouped = {label.strip() for group in GROUPING.findall(rule["expr"]) for label in group.split(",")}
    # A query that groups nothing has all labels of its metrics.
    if unknown := set(re.findall(r"\$labels\.(\w+)", said)) - (grouped - {""} or labels(rule["expr"], known)):
        yield f"its text names {', '.join(sorted(unknown))}, which the alert does not have"
