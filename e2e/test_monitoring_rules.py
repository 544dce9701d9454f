"""The alert rules before promtool: each fires on what it is about, and not just below its budget."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.ground.build import Binaries
from e2e.ground.patience import scaled
from slipway.metrics.alerts import (
    ALERTS,
    CACHE_BUDGET,
    ERROR_BUDGET,
    FIRST_TOKEN_BUDGET,
    QUEUE_BUDGET,
    prometheus_rule,
)

POD = 'namespace="n", job="j", model_name="m", pod="{}"'
MINUTES = 40


@dataclass(frozen=True, slots=True)
class Case:
    """Series by PromQL's notation of values, one a minute, and the alert that must be firing at the end."""

    alert: str
    firing: bool
    series: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.alert}-{'fires' if self.firing else 'stays quiet'}"


def of(name: str, pod: int = 0, **labels: str) -> str:
    extra = "".join(f', {label}="{value}"' for label, value in labels.items())
    return f"{name}{{{POD.format(pod)}{extra}}}"


def constant(value: float) -> str:
    return f"{value}x{MINUTES}"


def growing(step: float) -> str:
    return f"0+{step}x{MINUTES}"


def first_tokens(seconds: float) -> dict[str, str]:
    """A hundred first tokens a minute that all took between half of `seconds` and `seconds`."""
    name = "vllm:time_to_first_token_seconds_bucket"
    return {
        of(name, le=str(seconds / 2)): growing(0),
        of(name, le=str(seconds)): growing(100),
        of(name, le="+Inf"): growing(100),
    }


def failing(share: float) -> dict[str, str]:
    """A thousand requests a minute of which a share fails."""
    return {
        of("slipway_request_failures_total"): growing(1000 * share),
        of("vllm:request_success_total", finished_reason="stop"): growing(1000 * (1 - share)),
    }


def cache(share: float, preemptions: float) -> dict[str, str]:
    return {
        of("vllm:gpu_cache_usage_perc"): constant(share),
        of("vllm:num_preemptions_total"): growing(preemptions),
    }


def queue(*waiting: float) -> dict[str, str]:
    return {of("vllm:num_requests_waiting", pod): constant(count) for pod, count in enumerate(waiting)}


UNREADY = 'slipway_operator_unready{{resource_namespace="n", resource="demo", reason="{}"}}'
ACTIVE = 'slipway_operator_active{{pod="{}"}}'
RECONCILES = 'slipway_operator_reconciles_total{{namespace="s", job="o", outcome="{}"}}'

CASES = (
    Case("SlipwayQueueLong", True, queue(2 * QUEUE_BUDGET, QUEUE_BUDGET)),
    Case("SlipwayQueueLong", False, queue(2 * QUEUE_BUDGET, 0)),
    Case("SlipwayCacheFull", True, cache(CACHE_BUDGET + 0.01, 1)),
    Case("SlipwayCacheFull", False, cache(CACHE_BUDGET + 0.01, 0)),
    Case("SlipwayCacheFull", False, cache(CACHE_BUDGET - 0.01, 1)),
    Case("SlipwayErrors", True, failing(2 * ERROR_BUDGET)),
    Case("SlipwayErrors", False, failing(ERROR_BUDGET / 2)),
    Case("SlipwayErrors", False, failing(0)),
    Case("SlipwayFirstTokenSlow", True, first_tokens(2 * FIRST_TOKEN_BUDGET)),
    Case("SlipwayFirstTokenSlow", False, first_tokens(FIRST_TOKEN_BUDGET)),
    Case("SlipwayNotReady", True, {UNREADY.format("Unschedulable"): constant(1)}),
    Case(
        "SlipwayNotReady",
        True,
        {UNREADY.format("Starting"): "1x20 stale", UNREADY.format("CrashLoop"): "_x20 1x20"},
    ),
    Case("SlipwayNotReady", False, {UNREADY.format("Starting"): "1x30 stale"}),
    Case("SlipwayOperatorErrors", True, {RECONCILES.format("failed"): growing(1)}),
    Case("SlipwayOperatorErrors", False, {RECONCILES.format("retry"): growing(1)}),
    Case("SlipwayOperatorWithoutLeader", True, {ACTIVE.format("a"): constant(0)}),
    Case("SlipwayOperatorWithoutLeader", True),
    Case(
        "SlipwayOperatorWithoutLeader",
        False,
        {ACTIVE.format("a"): constant(0), ACTIVE.format("b"): constant(1)},
    ),
)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The groups of the PrometheusRule as the Prometheus Operator hands them to Prometheus."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(prometheus_rule()["spec"]))
    return path


def promtool(binaries: Binaries, *words: str | Path) -> str:
    """What it prints. Raises AssertionError where it finds a fault."""
    done = subprocess.run(
        [binaries["promtool"], *words], capture_output=True, text=True, check=False, timeout=scaled(60)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rules(binaries: Binaries, rules: Path):
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool(binaries, "check", "rules", rules)


def test_every_alert_is_seen_firing_and_quiet():
    seen = {(case.alert, case.firing) for case in CASES}
    assert seen == {(alert.name, firing) for alert in ALERTS for firing in (True, False)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_alert_fires_over_its_budget_only(case: Case, binaries: Binaries, rules: Path):
    count = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}}) or vector(0)'
    sample: dict[str, Any] = {"labels": "{}", "value": int(case.firing)}
    unit = {
        "rule_files": [rules.name],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "promql_expr_test": [
                    {"expr": count, "eval_time": f"{MINUTES - 5}m", "exp_samples": [sample]}
                ],
            }
        ],
    }
    path = rules.with_name("unit.yaml")
    path.write_text(yaml.safe_dump(unit))
    promtool(binaries, "test", "rules", path)
