"""Clients as people use them, each in a script against a real server on the demo model."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from live_server import LiveServer, live_server
from slipway.load.demo import MODEL_NAME

SCRIPTS = Path(__file__).parent / "scripts"
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


@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_a_script_of_a_client_runs_to_its_end(server: LiveServer, script: str, tmp_path: Path) -> None:
    # The clients' packages disagree with development's, so they have an environment of their own.
    python = os.environ["CLIENTS_PYTHON"]
    own = {
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
    }
    ended = subprocess.run(
        [python, SCRIPTS / f"{script}.py", server.url, MODEL_NAME],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **own},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-4000:] + "".join(server.lines[-20:])
