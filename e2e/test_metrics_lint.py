"""What a server exposes before promtool: it finds what documented names force, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest

from e2e.ground.build import Binaries
from e2e.ground.patience import scaled
from e2e.operators import ROOT
from slipway.metrics import METRICS

sys.path.insert(0, str(ROOT / "tests"))

from factory import make_model
from live_server import live_server

COLON = "metric names should not contain ':'"
FORCED = {f"{metric.exposed_name} {COLON}" for metric in METRICS if not metric.own} | {
    'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix',
    'vllm:model_execute_time_milliseconds use base unit "seconds" instead of "milliseconds"',
    'vllm:model_forward_time_milliseconds use base unit "seconds" instead of "milliseconds"',
}
"""By the names of vLLM; of a metric that has no series yet nothing is said."""
WITHOUT_SERIES = {metric.exposed_name for metric in METRICS if metric.since}


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a server that shows hidden metrics too, after a completion."""
    model = make_model("llama", tmp_path_factory.mktemp("model"))
    with live_server(model, "--show-hidden-metrics-for-version", "0.8") as server:
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{server.url}/v1/completions", b'{"prompt": "a"}', headers)
        with urllib.request.urlopen(asked, timeout=scaled(30)):
            return server.get("/metrics")[1]


def test_promtool_finds_what_documented_names_force_and_nothing_else(binaries: Binaries, scrape: str):
    done = subprocess.run(
        [binaries["promtool"], "check", "metrics"],
        input=scrape,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )
    found = set((done.stdout + done.stderr).splitlines())
    assert found == {line for line in FORCED if line.split()[0] not in WITHOUT_SERIES}
