"""From a chart and a document to every query: Helm, our operator, the Prometheus Operator, Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from e2e.ground.build import Binaries
from e2e.helm.command import run_in
from e2e.monitored import (
    ADDRESSES,
    COMPLETIONS,
    KINDS,
    LABEL,
    MEASURED,
    MODEL,
    OPERATOR,
    REVEALING,
    SHOWN,
    SPECS,
    SYSTEM,
    TEAM,
    TOKENS,
    Monitored,
    monitored,
    url,
)
from e2e.operators import ROOT, until
from slipway.metrics import METRICS, Metric
from slipway.metrics.alerts import ALERTS
from slipway.metrics.dashboard import dashboard, queries
from slipway.metrics.operator import OPERATOR_METRICS
from slipway.metrics.promql import metrics_in

WITHOUT_SERIES = {metric.exposed_name for metric in METRICS if metric.since} - {MEASURED}
"""Services here have no adapters and draft nothing."""


@pytest.fixture(scope="module")
def watched(
    binaries: Binaries, carries_control_plane: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Monitored]:
    with monitored(binaries, tmp_path_factory.mktemp("monitored")) as told:
        yield told


def names_of_series(metric: Metric) -> list[str]:
    """What a query says to read the metric."""
    if metric.type == "histogram":
        return [metric.name + suffix for suffix in ("_bucket", "_sum", "_count")]
    return [metric.exposed_name]


def jobs_that_show(metric: Metric) -> set[str]:
    if metric in OPERATOR_METRICS:
        return {OPERATOR}
    if metric.exposed_name in WITHOUT_SERIES:
        return set()
    return {REVEALING} if metric.deprecated_in else set(SPECS)


def filled(query: str) -> str:
    """A query of the dashboard as Grafana sends it for what the variables offer."""
    return query.replace("$namespace", TEAM).replace("$model", MODEL).replace("$__rate_interval", "1m")


def test_every_monitor_makes_a_target_that_is_up_and_named_after_its_service(watched: Monitored):
    found = {sample["metric"]["job"]: sample["metric"] for sample in watched.query("up == 1")}
    assert {name: labels["namespace"] for name, labels in found.items()} == {
        OPERATOR: SYSTEM,
        SHOWN: TEAM,
        REVEALING: TEAM,
    }
    assert all(labels["pod"].startswith(f"{name}-") for name, labels in found.items())
    assert found[SHOWN]["service"] == SHOWN


def test_a_service_with_tls_is_scraped_by_https_at_its_pods_address(watched: Monitored):
    targets = watched.ask("targets", state="active")["activeTargets"]
    assert {target["labels"]["job"]: target["scrapeUrl"] for target in targets} == {
        OPERATOR: f"http://{ADDRESSES[OPERATOR]}:8080/metrics",
        SHOWN: f"{url(SHOWN)}/metrics",
        REVEALING: f"{url(REVEALING)}/metrics",
    }
    assert url(SHOWN).startswith("https://")


def test_a_pod_that_still_loads_is_scraped_too(watched: Monitored):
    (slice_,) = watched.team.all("endpointslices", f"--selector=kubernetes.io/service-name={SHOWN}")
    assert [endpoint["conditions"]["ready"] for endpoint in slice_["endpoints"]] == [False]
    assert watched.query(f'up{{job="{SHOWN}"}} == 1')


def test_the_chart_wide_labels_are_on_each_monitor(watched: Monitored):
    monitors = [watched.team.the(kind, name) for name, kind in KINDS.items()]
    monitors.append(watched.system.the("servicemonitor", OPERATOR))
    for monitor in monitors:
        assert LABEL.items() <= monitor["metadata"]["labels"].items()


def test_each_documented_metric_is_queryable_by_the_name_it_is_exposed_under(watched: Monitored):
    expected = {
        name: jobs_that_show(metric)
        for metric in (*METRICS, *OPERATOR_METRICS)
        for name in names_of_series(metric)
    }
    assert {name: watched.jobs_with(name) for name in expected} == expected


def test_prometheus_knows_the_type_and_the_summary_that_are_declared(watched: Monitored):
    for job, metrics in ((REVEALING, METRICS), (OPERATOR, OPERATOR_METRICS)):
        told = watched.ask("targets/metadata", match_target=f'{{job="{job}"}}')
        found = {entry["metric"]: (entry["type"], entry["help"]) for entry in told}
        declared = {metric.exposed_name: (metric.type, metric.summary) for metric in metrics}
        assert {name: found.get(name) for name in declared} == declared


SHOWING = [query for query in queries() if not metrics_in(query) & WITHOUT_SERIES]


@pytest.mark.parametrize("query", SHOWING, ids=str)
def test_a_query_of_the_dashboard_finds_what_the_monitors_brought(query: str, watched: Monitored):
    assert watched.query(filled(query))


def test_the_dashboard_offers_the_namespace_and_the_model_of_the_services(watched: Monitored):
    offered = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            vector, label = variable["query"]["query"].removeprefix("label_values(")[:-1].rsplit(", ", 1)
            offered[variable["name"]] = watched.ask(f"label/{label}/values", **{"match[]": filled(vector)})
    assert offered == {"namespace": [TEAM], "model": [MODEL]}


def test_the_commands_of_the_page_bring_the_dashboard_to_a_grafana_that_collects_by_label(watched: Monitored):
    page = (ROOT / "docs/kubernetes/monitoring.md").read_text()
    (commands,) = re.findall(r"^```sh\n(kubectl apply .*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = run_in(watched.plane)("bash", "-euc", f"cd {ROOT}\n{commands}")
    assert done.returncode == 0, done.stderr
    found = watched.plane.kubectl("get", "configmap", "-A", "--selector=grafana_dashboard=1", "-o", "json")
    (collected,) = json.loads(found)["items"]
    assert json.loads(collected["data"]["dashboard.json"]) == dashboard()


def test_the_variable_for_all_matches_series_without_the_label(watched: Monitored):
    assert watched.query('vllm:num_requests_running{no_such_label=~".*"}')


def test_the_rules_are_those_of_the_applied_object_and_run(watched: Monitored):
    until(lambda: all(rule["health"] != "unknown" for rule in watched.rules()), "every rule has run")
    assert {rule["name"]: (rule["health"], rule.get("lastError")) for rule in watched.rules()} == {
        alert.name: ("ok", None) for alert in ALERTS
    }


def test_the_one_alert_that_waits_is_of_the_service_that_is_not_ready(watched: Monitored):
    def active() -> list[tuple[str, str, str | None]]:
        alerts = watched.ask("alerts")["alerts"]
        return [(one["labels"]["alertname"], one["state"], one["labels"].get("resource")) for one in alerts]

    until(
        lambda: active() == [("SlipwayNotReady", "pending", SHOWN)], lambda: f"that alert alone: {active()}"
    )


def test_counts_are_those_of_the_requests_that_were_sent(watched: Monitored):
    for name in SPECS:
        (tokens,) = watched.query(f'vllm:generation_tokens_total{{job="{name}"}}')
        assert float(tokens["value"][1]) == TOKENS * COMPLETIONS
