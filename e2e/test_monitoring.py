"""Metrics end to end without a cluster: a real server, a real Prometheus, every name and every query."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.metrics import METRICS, Metric
from slipway.metrics.alerts import ALERTS, prometheus_rule
from slipway.metrics.dashboard import queries
from slipway.metrics.operator import OPERATOR_METRICS
from slipway.metrics.promql import metrics_in

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from factory import make_model
from live_server import LiveServer, free_port, live_server

COMPLETIONS = 5
OPERATORS = {metric.exposed_name for metric in OPERATOR_METRICS}
WITHOUT_SERIES = {m.name for m in METRICS if "without a series" in m.reason}
SERVERS = {"shown": (), "revealing": ("--show-hidden-metrics-for-version", "0.8")}
"""Name of the scrape job → arguments of its server."""
PATIENCE = 60.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus of its own on loopback."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of the answer. Raises AssertionError with Prometheus' own sentence."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with DIRECT.open(url, timeout=30) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            answer = json.load(error)
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        assert not answer.get("warnings"), answer["warnings"]
        return answer["data"]

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Samples of an instant vector, now."""
        samples: list[dict[str, Any]] = self.ask("query", query=promql)["result"]
        return samples

    def await_that(self, told: Callable[[], bool], what: str) -> None:
        """Ask until it is told. Raises AssertionError with the log where it never is."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if told():
                    return
            # A pause between two looks, bounded by the deadline: the scrape's own interval.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
        raise AssertionError(f"{what}\n" + self.log.read_text()[-4000:])


def needed(tool: str) -> str:
    """Path of a tool. Without it the test is skipped, and fails where CI=true asks for all of them."""
    found = shutil.which(tool)
    if found is None:
        sentence = f"{tool} is not installed: the metrics are not proved here. apt-get install prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return found


def rules_file(folder: Path) -> Path:
    """The groups of the PrometheusRule as the Prometheus Operator hands them to Prometheus."""
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(prometheus_rule()["spec"]))
    return path


@contextlib.contextmanager
def running_prometheus(folder: Path, targets: dict[str, LiveServer]) -> Iterator[Prometheus]:
    """Scrapes the servers every second, with the labels that a ServiceMonitor would give them."""
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules_file(folder))],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {
                        "targets": [server.url.removeprefix("http://")],
                        "labels": {"namespace": "e2e", "pod": f"{job}-0"},
                    }
                ],
            }
            for job, server in targets.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    port, log = free_port(), folder / "prometheus.log"
    command = [
        *("setpriv", "--pdeathsig", "KILL", needed("prometheus")),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    prometheus = Prometheus(f"http://127.0.0.1:{port}", process, log)
    try:
        prometheus.await_that(
            lambda: len(prometheus.query("up == 1")) == len(targets), "The targets are not up."
        )
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def complete(server: LiveServer) -> None:
    """One completion of four tokens, as a client asks for it."""
    body = json.dumps({"model": "tiny", "prompt": "the ship", "max_tokens": 4, "ignore_eos": True})
    request = urllib.request.Request(
        f"{server.url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    with DIRECT.open(request, timeout=60) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 4


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen `COMPLETIONS` of each server, and the time before them."""
    needed("prometheus")
    folder = tmp_path_factory.mktemp("monitoring")
    model = make_model("llama", folder / "model")
    with contextlib.ExitStack() as stack:
        servers = {
            job: stack.enter_context(live_server(model, "--served-model-name", "tiny", *arguments))
            for job, arguments in SERVERS.items()
        }
        told = stack.enter_context(running_prometheus(folder, servers))
        for server in servers.values():
            for _ in range(COMPLETIONS):
                complete(server)
        ended = f"sum by (job) (vllm:request_success_total) == {COMPLETIONS}"
        told.await_that(lambda: len(told.query(ended)) == len(servers), "The requests are not counted.")
        yield told


def names_of_series(metric: Metric) -> list[str]:
    """What a query says to read the metric."""
    if metric.type == "histogram":
        return [metric.name + suffix for suffix in ("_bucket", "_sum", "_count")]
    return [metric.exposed_name]


def jobs_with(prometheus: Prometheus, name: str) -> set[str]:
    return {sample["metric"]["job"] for sample in prometheus.query(f'{{__name__="{name}"}}')}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_documented_metric_is_queryable_by_the_name_it_is_exposed_under(
    metric: Metric, prometheus: Prometheus
):
    shown_by = {"revealing"} if metric.deprecated_in else set(SERVERS)
    for name in names_of_series(metric):
        expected = set() if metric.name in WITHOUT_SERIES else shown_by
        assert jobs_with(prometheus, name) == expected, name


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_prometheus_knows_the_type_and_the_summary_that_are_declared(metric: Metric, prometheus: Prometheus):
    told = prometheus.ask("targets/metadata", match_target='{job="revealing"}', metric=metric.exposed_name)
    assert [(entry["type"], entry["help"]) for entry in told] == [(metric.type, metric.summary)]


@pytest.mark.parametrize("query", queries(), ids=str)
def test_a_query_of_the_dashboard_runs_and_finds_what_the_server_exposes(query: str, prometheus: Prometheus):
    asked = query.replace("$namespace", "e2e").replace("$model", "tiny").replace("$__rate_interval", "1m")
    found = prometheus.query(asked)
    assert bool(found) == (not metrics_in(query) & OPERATORS)


def test_the_variable_for_all_matches_series_without_the_label(prometheus: Prometheus):
    assert prometheus.query('vllm:num_requests_running{no_such_label=~".*"}')


def test_every_rule_is_evaluated_without_an_error(prometheus: Prometheus):
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    prometheus.await_that(
        lambda: all(rule["health"] != "unknown" for rule in rules()), "A rule was never evaluated."
    )
    assert {rule["name"]: (rule["health"], rule.get("lastError")) for rule in rules()} == {
        alert.name: ("ok", None) for alert in ALERTS
    }


def test_an_idle_server_raises_no_alert_of_a_server(prometheus: Prometheus):
    active = {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}
    assert active <= {"SlipwayOperatorWithoutLeader"}, "only the operator is missing here"


def test_counts_are_those_of_the_requests_that_were_sent(prometheus: Prometheus):
    (tokens,) = prometheus.query('vllm:generation_tokens_total{job="shown"}')
    assert float(tokens["value"][1]) == 4 * COMPLETIONS
    assert tokens["metric"]["model_name"] == "tiny"
