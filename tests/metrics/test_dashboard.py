"""The dashboard: every metric that is implemented is on it, and nothing else."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from slipway.metrics import METRICS
from slipway.metrics.dashboard import ROWS, dashboard, dashboard_file, queries
from slipway.metrics.operator import OPERATOR_METRICS
from slipway.metrics.promql import DECLARED, metrics_in

FILE = Path(__file__).parents[2] / "helm/slipway/files/dashboard.json"
PANELS = [panel for panels in ROWS.values() for panel in panels]
PLACED = dashboard()["panels"]


def test_every_implemented_metric_has_a_panel_and_no_other_has():
    expected = {
        metric.exposed_name
        for metric in (*METRICS, *OPERATOR_METRICS)
        if metric.status == "implemented" and not metric.deprecated_in and not metric.same_as
    }
    assert set().union(*map(metrics_in, queries())) == expected
    assert expected <= set(DECLARED)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_says_what_it_shows(panel):
    assert panel.about.endswith(".")
    assert panel.unit
    legends = [legend for legend, _ in panel.queries]
    assert len(set(legends)) == len(legends)


def test_titles_are_unique_and_panels_numbered():
    titles = [panel["title"] for panel in PLACED]
    assert len(set(titles)) == len(titles)
    assert [panel["id"] for panel in PLACED] == list(range(1, len(PLACED) + 1))


def test_panels_do_not_overlap_and_stay_within_the_page():
    cells = []
    for panel in PLACED:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        columns, lines = range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])
        cells.append({(column, line) for column in columns for line in lines})
    assert not any(one & other for one, other in combinations(cells, 2))


def test_every_variable_of_a_query_is_declared():
    declared = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert declared == {"datasource", "namespace", "model"}
    for query in queries():
        text = query.replace("$__rate_interval", "")
        assert {word.split('"')[0] for word in text.split("$")[1:]} <= declared


def test_the_committed_dashboard_is_fresh():
    assert FILE.read_text() == dashboard_file(), "run `make generate`"
    assert json.loads(dashboard_file()) == dashboard()
