"""An engine as what starts it sees it, before any client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

from slipway.engine.config import EngineConfig
from slipway.engine.launch import EngineProcess
from slipway.exits import WORKER_KILLED, signal_name
from slipway.processes import start_module


def test_one_that_is_still_starting_is_killed_and_leaves_nothing() -> None:
    engine = EngineProcess(EngineConfig(model="/nowhere"))
    folder = Path(engine.address.socket_path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    engine.stop(patience=0)
    assert engine.post_mortem() == ("The engine process was killed (SIGKILL).", WORKER_KILLED)
    assert not folder.exists()
    engine.stop()  # as often as one likes


def test_the_process_starts_before_its_parent_imports_what_takes_time() -> None:
    script = (
        "import sys\n"
        "import slipway.cli.serve, slipway.api.server\n"
        "print(*sorted({'asyncio', 'numpy', 'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", script]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == ""


def test_a_child_is_told_keys_and_paths_that_are_no_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(
        "import os, sys\n"
        "from slipway.engine.config import EngineConfig\n"
        "from slipway.processes import told\n"
        "config = told(int(sys.argv[1]), EngineConfig)\n"
        "sys.exit(os.fsencode(config.model) + os.fsencode(config.hf_token) != b'/\\xff\\xfe')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    config = EngineConfig(model=os.fsdecode(b"/\xff"), hf_token=os.fsdecode(b"\xfe"))
    assert start_module("child", config, ()).wait(scaled(60)) == 0


def test_every_signal_has_a_name() -> None:
    assert [signal_name(9), signal_name(40)] == ["SIGKILL", "signal 40"]
