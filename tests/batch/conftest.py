"""Batches that end with their test."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batches import Command, Web, begin


@pytest.fixture
def batch(tiny_models: Callable[[str], Path]) -> Iterator[Callable[..., Command]]:
    """Starts batches on a tiny random model."""
    begun: list[Command] = []

    def start(*arguments: Any, **options: Any) -> Command:
        begun.append(begin(tiny_models("llama"), *arguments, **options))
        return begun[-1]

    yield start
    for command in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.process.pid, signal.SIGKILL)
        command.process.wait()
        command.process.close()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Web().running() as running:
        yield running
