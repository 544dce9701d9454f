"""An engine's process before it has a configuration."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slipway.engine.launch import Engine, EngineProcess, EngineThread
from slipway.exits import ENGINE_DIED


@pytest.mark.parametrize("kind", [EngineProcess, EngineThread])
def test_one_that_is_never_configured_ends_without_a_word(
    kind: type[Engine], capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    engine = kind()
    folder = Path(engine.socket_path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    engine.stop(patience=60)
    message, cause = engine.post_mortem()
    assert cause is ENGINE_DIED
    assert kind is EngineThread or "status 0" in message
    assert not folder.exists()
    assert threading.active_count() == before
    assert capfd.readouterr() == ("", "")
    engine.stop()  # as often as one likes


def test_the_process_starts_before_its_parent_imports_what_takes_time() -> None:
    script = (
        "import sys\n"
        "import slipway.cli.serve, slipway.api.server\n"
        "print(*sorted({'asyncio', 'msgspec', 'numpy', 'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", script]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == ""
