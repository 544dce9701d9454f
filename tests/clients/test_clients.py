"""Clients as people use them, each in a script against a real server on the demo model."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import minilm
import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from slipway.load.demo import MODEL_NAME

SCRIPTS = Path(__file__).parent / "scripts"
POOLING = Path(__file__).parent / "pooling"
MINILM = "all-MiniLM-L6-v2"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[LiveServer]:
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    arguments = (
        "--max-model-len",
        "2048",
        "--enable-tokenizer-info-endpoint",
        "--disable-log-requests",
        *tools,
    )
    with live_server(demo_model, "--served-model-name", MODEL_NAME, *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def embeds() -> Iterator[LiveServer]:
    with live_server(minilm.fetch(), "--served-model-name", MINILM, "--dtype", "float32") as running:
        yield running


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_of_a_client_runs_to_its_end(server: LiveServer, script: Path, tmp_path: Path) -> None:
    run(server, script, MODEL_NAME, tmp_path)


@pytest.mark.parametrize("script", sorted(POOLING.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_of_what_pools_runs_to_its_end(embeds: LiveServer, script: Path, tmp_path: Path) -> None:
    run(embeds, script, MINILM, tmp_path)


def run(server: LiveServer, script: Path, model: str, home: Path) -> None:
    # The clients' packages disagree with development's, so they have an environment of their own.
    python = os.environ["CLIENTS_PYTHON"]
    own = {
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
    }
    ended = subprocess.run(
        [python, script, server.url, model],
        cwd=home,
        env={"PATH": os.environ["PATH"], **own},
        capture_output=True,
        text=True,
        timeout=scaled(300),
    )
    assert ended.returncode == 0, ended.stderr[-4000:] + "".join(server.lines[-20:])
