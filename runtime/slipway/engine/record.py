"""Recording a run (`SLIPWAY_RECORD`); `replay.py` plays it back.

A record is frames of msgspec arrays, as on the wire: the engine's configuration, then each step's plan, its
masks as bytes, and the output that came of it.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec

from slipway.engine.config import EngineConfig
from slipway.engine.executor import Steps
from slipway.engine.plan import Masks, StepOutput, StepPlan
from slipway.engine.wire import encode_frame


class RecordingWorker:
    """Writes each plan and its output to a file when the step is collected; what overlaps does so still."""

    def __init__(self, worker: Steps, path: str, config: EngineConfig) -> None:
        self._worker = worker
        self._under_way: deque[object] = deque()
        """Plans and masks of steps, in turn."""
        self._file = Path(path).expanduser().open("wb")
        # A record may be shown to others, and no time is ever the same again.
        shown = msgspec.structs.replace(config, hf_token=None, prefix_hash_secret="", timed=False)
        self._file.write(encode_frame(shown))

    def launch(self, plan: StepPlan) -> None:
        self._under_way.append(plan)
        self._worker.launch(plan)

    def draw(self, masks: Masks | None = None) -> None:
        self._under_way.append({index: mask.tobytes() for index, mask in (masks or {}).items()})
        self._worker.draw(masks)

    def collect(self) -> StepOutput:
        output = self._worker.collect()
        kept = msgspec.structs.replace(output, forward_seconds=0.0)
        for part in (self._under_way.popleft(), self._under_way.popleft(), kept):
            self._file.write(encode_frame(part))
        self._file.flush()
        return output

    def close(self) -> None:
        self._worker.close()
        self._file.close()
