"""Recording a run (`SLIPWAY_RECORD`); `replay.py` plays it back.

A record is frames of msgspec arrays, as on the wire: the engine's configuration, then each step's plan
and the output that came of it.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec

from slipway.engine.config import EngineConfig
from slipway.engine.executor import Worker
from slipway.engine.plan import StepOutput, StepPlan

_encoder = msgspec.msgpack.Encoder()


class RecordingWorker:
    """Writes each plan and its output to a file when the step is collected; what overlaps does so still."""

    def __init__(self, worker: Worker, path: str, config: EngineConfig) -> None:
        self._worker = worker
        self._under_way: deque[StepPlan] = deque()
        self._file = Path(path).expanduser().open("wb")
        # A record may be shown to others.
        self._write(msgspec.structs.replace(config, hf_token=None, prefix_hash_secret=""))

    def launch(self, plan: StepPlan) -> None:
        self._under_way.append(plan)
        self._worker.launch(plan)

    def draw(self) -> None:
        self._worker.draw()

    def collect(self) -> StepOutput:
        output = self._worker.collect()
        self._write(self._under_way.popleft())
        self._write(output)
        self._file.flush()
        return output

    def _write(self, message: object) -> None:
        body = _encoder.encode(message)
        self._file.write(len(body).to_bytes(4) + body)
