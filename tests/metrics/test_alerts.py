"""The alert rules: what they ask exists, what they say is exact, and the committed file is fresh."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from slipway.metrics import METRICS
from slipway.metrics.alerts import (
    ALERTS,
    CACHE_BUDGET,
    ERROR_BUDGET,
    FIRST_TOKEN_BUDGET,
    QUEUE_BUDGET,
    Alert,
    alert_rules,
    prometheus_rule,
)
from slipway.metrics.declared import SECONDS_TO_FIRST_TOKEN
from slipway.metrics.promql import DECLARED, mean, metrics_in, quantile, rate, series

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/kubernetes/monitoring.md"
LABEL = re.compile(r"\$labels\.(\w+)")
DEPRECATED = {metric.exposed_name for metric in METRICS if metric.deprecated_in}

each = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


@each
def test_an_alert_asks_only_for_metrics_that_are_declared_and_always_shown(alert: Alert):
    asked = metrics_in(alert.query)
    assert asked
    assert asked <= set(DECLARED) - DEPRECATED


@each
def test_an_alert_names_only_labels_that_its_query_keeps(alert: Alert):
    kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", alert.query)))) - {"le"}
    assert set(LABEL.findall(alert.summary + alert.action)) <= kept


@each
def test_the_manual_says_what_to_do_at_an_alert(alert: Alert):
    assert f"\n### {alert.name}\n" in PAGE.read_text()
    assert alert.as_rule()["annotations"]["runbook"].endswith(f"monitoring.md#{alert.name.lower()}")


def test_the_manual_names_every_budget():
    page = PAGE.read_text()
    for budget in (f"{QUEUE_BUDGET} requests", f"{CACHE_BUDGET:.0%}", f"{ERROR_BUDGET:.0%}"):
        assert budget.replace("%", " %") in page, budget
    assert f"{FIRST_TOKEN_BUDGET} s" in page


def test_the_first_token_budget_is_a_bound_of_a_bucket():
    assert FIRST_TOKEN_BUDGET in SECONDS_TO_FIRST_TOKEN


def test_alerts_have_names_of_their_own():
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_the_committed_rules_are_fresh():
    assert (ROOT / "helm/slipway/files/alerts.yaml").read_text() == alert_rules(), "run `make generate`"


def test_the_file_holds_the_rules_as_they_were_made():
    assert yaml.safe_load(alert_rules()) == prometheus_rule()


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ('sum by (job) (rate(vllm:nothing_total{le="x", a=~"b_c"}[5m])) > 1e3', {"vllm:nothing_total"}),
        ("a_b / on (namespace) group_left (job) c:d offset 5m", {"a_b", "c:d", "offset"}),
        ("absent(slipway_operator_active == 1)", {"slipway_operator_active"}),
        (
            "histogram_quantile(0.95, rate(slipway_step_seconds_bucket[$__rate_interval]))",
            {"slipway_step_seconds"},
        ),
        ("vllm:iteration_tokens_total_sum", {"vllm:iteration_tokens_total"}),
    ],
)
def test_names_of_metrics_are_read_from_a_query(query, names):
    assert metrics_in(query) == names


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: series("vllm:no_such_metric"),
        lambda: series("slipway_step_seconds"),
        lambda: rate("vllm:num_requests_running", "5m"),
        lambda: quantile(0.5, "vllm:prompt_tokens_total", "5m"),
        lambda: mean("vllm:prompt_tokens_total", "5m"),
    ],
)
def test_a_query_for_what_nothing_exposes_cannot_be_made(wrong):
    with pytest.raises(KeyError):
        wrong()
