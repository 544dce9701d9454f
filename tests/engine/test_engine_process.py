"""An engine as what starts it sees it, before any client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slipway.engine.config import EngineConfig
from slipway.engine.launch import EngineProcess
from slipway.exits import WORKER_KILLED


def test_one_that_is_still_starting_is_killed_and_leaves_nothing() -> None:
    engine = EngineProcess(EngineConfig(model="/nowhere"))
    folder = Path(engine.socket_path).parent
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
