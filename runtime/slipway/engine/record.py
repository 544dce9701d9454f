"""Recording a run (`SLIPWAY_RECORD`); `replay.py` plays it back.

A record is frames of msgspec arrays, as on the wire: the engine's configuration, then each step's plan
and the output that came of it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from slipway.engine.config import EngineConfig
from slipway.engine.executor import Worker
from slipway.engine.plan import StepOutput, StepPlan

_encoder = msgspec.msgpack.Encoder()


class RecordingWorker:
    """Writes each plan and its output to a file on their way."""

    def __init__(self, worker: Worker, path: str, config: EngineConfig) -> None:
        self._worker = worker
        self._file = Path(path).expanduser().open("wb")
        self._write(msgspec.structs.replace(config, hf_token=None))  # a record may be shown to others

    def step(self, plan: StepPlan) -> StepOutput:
        output = self._worker.step(plan)
        self._write(plan)
        self._write(output)
        self._file.flush()
        return output

    def _write(self, message: object) -> None:
        body = _encoder.encode(message)
        self._file.write(len(body).to_bytes(4) + body)
