"""Of a model on the hub the configuration is fetched, and no weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import serve

REPOSITORY = "acme/tiny"
PUBLISHED = Path(__file__).parents[1] / "fit" / "published" / "llama-3-8b-h100.json"


@pytest.mark.slow
def test_weights_stay_on_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / REPOSITORY
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(json.loads(PUBLISHED.read_text())["config"]))
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    with serve(tmp_path / "hub") as hub:
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-m", "slipway", "fit", REPOSITORY, "--device", "L4", "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        asked = list(hub.requests)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"][0]["weights"] > 14 << 30
    assert any(path.endswith("config.json") for path in asked)
    assert not any(path.endswith(".safetensors") for path in asked)
