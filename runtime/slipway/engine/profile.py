"""Traces of steps, for chrome://tracing and Perfetto: where the time of an engine goes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from slipway.engine.executor import Steps
from slipway.engine.plan import Masks, StepOutput, StepPlan

log = logging.getLogger("slipway.engine")

MOST_EVENTS = 500_000
"""Of one trace, 100 bytes of its file each. Later ones are counted and left out."""
_NOTHING = nullcontext()


class Recorder(Protocol):
    """Collects what happens from `begin` to `write`, each called once in turn."""

    def begin(self) -> None: ...
    def write(self, path: Path) -> None:
        """End, and write all of it. Raises OSError."""

    def span(self, name: str) -> AbstractContextManager[object]:
        """Shows what is done within it, on the thread that does it."""

    def step(self, began: float, ended: float, requests: int, tokens: int) -> None:
        """A whole step, from its plan to its results, on `time.monotonic()`."""


class ProfileError(Exception):
    """A trace was begun or ended out of turn."""


class Profiler:
    """One trace at a time, each a new file of a folder. Costs next to nothing while none is recorded."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._folder = folder
        self._recorder = recorder
        self._recording = False

    def start(self) -> None:
        """Raises ProfileError, and OSError where there can be no such folder."""
        if self._recording:
            raise ProfileError("A trace is being recorded already: stop it first.")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._recorder.begin()
        self._recording = True

    def stop(self) -> Path:
        """The trace's file. Raises ProfileError, and OSError where it cannot be written."""
        if not self._recording:
            raise ProfileError("No trace is being recorded: start one first.")
        self._recording = False
        path = self._folder / f"slipway-{os.getpid()}-{time.time_ns()}.trace.json"
        self._recorder.write(path)
        return path

    def span(self, name: str) -> AbstractContextManager[object]:
        return self._recorder.span(name) if self._recording else _NOTHING

    def step(self, began: float, ended: float, requests: int, tokens: int) -> None:
        if self._recording:
            self._recorder.step(began, ended, requests, tokens)


class StepRecorder:
    """Our own: steps with their requests and tokens, and what the engine's threads do meanwhile."""

    def __init__(self) -> None:
        self._events: list[dict[str, object]] = []
        self._left_out = 0
        self._num_steps = 0

    def begin(self) -> None:
        self._events, self._left_out, self._num_steps = [], 0, 0

    def write(self, path: Path) -> None:
        events, self._events = self._events, []
        events += [
            {
                "ph": "M",
                "name": "thread_name",
                "pid": os.getpid(),
                "tid": thread.native_id,
                "args": {"name": thread.name},
            }
            for thread in threading.enumerate()
        ]
        data = {"traceEvents": events, "otherData": {"events left out": self._left_out}}
        path.write_bytes(msgspec.json.encode(data))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            duration = _microseconds(time.monotonic() - began)
            self._add({"ph": "X", "name": name, "ts": _microseconds(began), "dur": duration})

    def step(self, began: float, ended: float, requests: int, tokens: int) -> None:
        """As an asynchronous event: steps that are under way at the same time overlap."""
        self._num_steps += 1
        name = f"step of {tokens} tokens"
        event: dict[str, object] = {"cat": "step", "id": self._num_steps, "name": name}
        counts = {"requests": requests, "tokens": tokens}
        self._add(event | {"ph": "b", "ts": _microseconds(began), "args": counts})
        self._add(event | {"ph": "e", "ts": _microseconds(ended)})

    def _add(self, event: dict[str, object]) -> None:
        if len(self._events) >= MOST_EVENTS:
            self._left_out += 1
            return
        self._events.append(event | {"pid": os.getpid(), "tid": threading.get_native_id()})


class ProfiledWorker:
    """A worker whose parts of a step are shown.

    in_turn  whether all of a step is computed as its tokens are drawn
    """

    def __init__(self, worker: Steps, profiler: Profiler, *, in_turn: bool) -> None:
        self._worker = worker
        self._profiler = profiler
        self._in_turn = in_turn

    def launch(self, plan: StepPlan) -> None:
        with _NOTHING if self._in_turn else self._profiler.span("forward"):
            self._worker.launch(plan)

    def draw(self, masks: Masks | None = None) -> None:
        with self._profiler.span("forward and draw" if self._in_turn else "draw"):
            self._worker.draw(masks)

    def collect(self) -> StepOutput:
        with _NOTHING if self._in_turn else self._profiler.span("wait for results"):
            return self._worker.collect()

    def close(self) -> None:
        self._worker.close()


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def profiled(profiler: Profiler, method: str) -> str:
    """The answer to a call that starts or stops a trace: `ok`, with the trace's file, or what prevents it."""
    try:
        if method == "start_profile":
            profiler.start()
            return "ok"
        return f"ok {profiler.stop()}"
    except ProfileError as error:
        return str(error)
    except Exception as error:  # the disk's or torch's; steps go on
        log.exception("no trace was made")
        return f"failed: no trace was made: {error}"
