"""Traces by torch's profiler, which sees every kernel on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

MOST_STEPS = 1000
"""Of one trace: torch keeps thousands of events of a step in memory. Later steps are left out."""


class TorchRecorder:
    """Begun and ended on the thread that runs steps."""

    def __init__(self) -> None:
        self._profile: profile | None = None
        self._steps_left = 0

    def begin(self) -> None:
        on_device = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *on_device])
        self._profile.start()
        self._steps_left = MOST_STEPS

    def write(self, path: Path) -> None:
        recorded, self._profile = self._profile, None
        assert recorded is not None, "write is called once after begin"
        if self._steps_left:
            recorded.stop()
        recorded.export_chrome_trace(str(path))

    def span(self, name: str) -> AbstractContextManager[object]:
        return record_function(name)

    def step(self, began: float, ended: float, requests: int, tokens: int) -> None:
        if self._profile is None or not self._steps_left:
            return
        with record_function(f"step of {tokens} tokens, {requests} requests, ends"):
            self._steps_left -= 1
        if not self._steps_left:
            self._profile.stop()
