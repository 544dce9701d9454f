"""Recording a run (`SLIPWAY_RECORD`); `replay.py` plays it back.

A record is frames of msgspec arrays, as on the wire: the engine's configuration, then each step's plan, its
masks as bytes, and the output that came of it. A step in which many prompts of embeddings start may have more
bytes than the wire takes.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from pathlib import Path

import msgspec

from slipway.dist.frames import FrameTooLarge, encode_frame
from slipway.engine.config import EngineConfig
from slipway.engine.executor import Steps
from slipway.engine.plan import Masks, StepOutput, StepPlan, written_masks

log = logging.getLogger("slipway.engine")

MAX_RECORDED_BYTES = (1 << 32) - 1
"""Of a frame, whose length has four bytes."""


def timeless(output: StepOutput) -> StepOutput:
    """What computing the step again gives again."""
    return msgspec.structs.replace(output, forward_seconds=0.0, proposing_seconds=0.0)


class RecordingWorker:
    """Writes each plan and its output to a file when the step is collected; what overlaps does so still.

    A record that cannot go on ends, and the run goes on.
    """

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
        self._under_way.append(written_masks(masks))
        self._worker.draw(masks)

    def collect(self) -> StepOutput:
        output = self._worker.collect()
        plan, masks = self._under_way.popleft(), self._under_way.popleft()
        if not self._file.closed:
            self._write(plan, masks, timeless(output))
        return output

    def _write(self, *step: object) -> None:
        try:
            self._file.write(b"".join(encode_frame(part, MAX_RECORDED_BYTES) for part in step))
            self._file.flush()
        except (OSError, FrameTooLarge) as error:
            log.error("The record %s ends here: %s", self._file.name, error)
            with contextlib.suppress(OSError):  # of what it had not written yet
                self._file.close()

    def close(self) -> None:
        self._worker.close()
        with contextlib.suppress(OSError):
            self._file.close()
