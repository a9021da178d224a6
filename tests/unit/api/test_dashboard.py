# SPDX-License-Identifier: GPL-2.0-or-later
"""The Grafana dashboard and the alert rules ask only for metrics, and labels, that the controller has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest

from controller.act.recorder import Outcome, Step
from controller.api.metrics import OPERATIONS, USES, Metrics
from controller.cluster.adapter import CALLS
from controller.model import Phase

from . import scene

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
DASHBOARD = CONFIGS / "grafana" / "gandiva.json"
RULES = CONFIGS / "prometheus" / "gandiva.rules.yml"

OF_PROMETHEUS = {"job", "instance"}
"""Labels that every scrape adds."""
VALUES: dict[str, set[str]] = {
    "use": set(USES),
    "phase": {phase.value for phase in Phase},
    "kind": set(OPERATIONS),
    "outcome": {outcome.value for outcome in Outcome} | {"ok"},
    "step": {step.value for step in Step},
    "call": set(CALLS),
}
"""What labels can say, where that is known beforehand."""
GRAFANA = {"$__rate_interval": "5m", "$job": "gandiva", "$node": "n1"}


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """Every sample's name with its labels, as the registry gives them out."""
    metrics = Metrics(scene.live_state(), Path("/nowhere"))
    metrics.step("pause", 1.0)
    metrics.operation("place", "done", 1.0)
    metrics.slurm_call("load", "ok", 1.0)
    metrics.agent_call("observe", "ok", 1.0)
    found: dict[str, set[str]] = {"gandiva_journal_disk_free_bytes": set()}
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard() -> dict[str, Any]:
    content = json.loads(DASHBOARD.read_text())
    assert isinstance(content, dict)
    return content


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    found = [
        (f"{panel['title']} {target['refId']}", target["expr"])
        for panel in panels()
        for target in panel["targets"]
    ]
    # No YAML parser among our dependencies: an expression is on its line, or folded (`>-`) on the next ones.
    for rule in RULES.read_text().split("- alert: ")[1:]:
        match = re.search(r"expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", rule)
        assert match is not None, rule
        found.append((rule.split("\n")[0], " ".join((match[1] or match[2]).split())))
    return found


def selectors(expression: Any, labels: frozenset[str] = frozenset()) -> Iterator[tuple[Any, frozenset[str]]]:
    """Every vector selector, with the labels that it is grouped by."""
    if isinstance(expression, promql.AggregateExpr) and expression.modifier is not None:
        labels |= set(expression.modifier.labels)
    if isinstance(expression, promql.VectorSelector):
        yield expression, labels
    for name in ("lhs", "rhs", "expr", "args", "vector_selector"):
        below = getattr(expression, name, None)
        for item in below if isinstance(below, list) else [below]:
            if item is not None and type(item).__module__.startswith("promql_parser"):
                yield from selectors(item, labels)


@pytest.mark.parametrize(("where", "text"), expressions(), ids=[where for where, _ in expressions()])
def test_an_expression_asks_for_what_there_is(where: str, text: str, series: dict[str, set[str]]) -> None:
    for variable, value in GRAFANA.items():
        text = text.replace(variable, value)
    assert "$" not in text, f"{where}: a variable that Grafana does not know"
    asked = list(selectors(promql.parse(text)))
    assert asked, f"{where}: asks for nothing"
    for selector, grouped in asked:
        assert selector.name in series, f"{where}: there is no {selector.name}"
        labels = series[selector.name] | OF_PROMETHEUS
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, f"{where}: {selector.name} has no label {matcher.name}"
            if matcher.name in VALUES:
                words = set(matcher.value.split("|"))
                assert words <= VALUES[matcher.name], f"{where}: {matcher.name} is never {matcher.value}"
        assert grouped <= labels, f"{where}: {selector.name} has no label {grouped - labels}"
        counts = selector.name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert counts == bool(re.search(rf"(rate|increase)\({selector.name}\b", text)), (
            f"{where}: counters go through rate() or increase(), and nothing else does"
        )


def test_legends_name_labels_that_are_left(series: dict[str, set[str]]) -> None:
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"]
            for variable, value in GRAFANA.items():
                text = text.replace(variable, value)
            for selector, grouped in selectors(promql.parse(text)):
                wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert wanted <= (set(grouped) or series[selector.name]), (panel["title"], wanted)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    content = dashboard()
    assert content["title"] and content["uid"] and content["schemaVersion"] >= 36
    assert {variable["name"] for variable in content["templating"]["list"]} == {"datasource", "job", "node"}
    ids = [panel["id"] for panel in content["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in content["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
    for panel in panels():
        assert panel["title"] and panel["description"], panel["id"]
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs), panel["title"]
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_alert_says_what_to_do() -> None:
    rules = RULES.read_text().split("- alert: ")[1:]
    assert len(rules) >= 5
    for rule in rules:
        name = rule.split("\n")[0]
        assert re.search(r"severity: (warning|critical)\b", rule), name
        assert re.search(r"summary: .{20,}", rule) and re.search(r"description: .{20,}", rule), name
