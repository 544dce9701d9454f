"""Recording a run and playing it back (`SLIPWAY_RECORD`).

A record is frames of msgspec arrays, as on the wire: the engine's configuration, then each step's plan
and the output that came of it. Plans and slots hold all that a worker needs, so a replay needs no
scheduler, no API and no clock, and on CPU its tokens are the same to the bit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slipway.engine.config import EngineConfig
from slipway.engine.executor import Worker
from slipway.engine.plan import StepOutput, StepPlan
from slipway.engine.wire import split_frames

_encoder = msgspec.msgpack.Encoder()


class RecordingWorker:
    """Writes each plan and its output to a file on their way."""

    def __init__(self, worker: Worker, path: str, config: EngineConfig) -> None:
        self._worker = worker
        self._file = Path(path).expanduser().open("wb")
        self._write(config)

    def step(self, plan: StepPlan) -> StepOutput:
        output = self._worker.step(plan)
        self._write(plan)
        self._write(output)
        self._file.flush()
        return output

    def _write(self, message: object) -> None:
        body = _encoder.encode(message)
        self._file.write(len(body).to_bytes(4) + body)


def read_record(path: Path) -> tuple[EngineConfig, list[tuple[StepPlan, StepOutput]]]:
    """The configuration, without its order to record, and the steps; one that was cut off is left out."""
    frames: Iterator[bytes] = split_frames(bytearray(path.read_bytes()))
    config = msgspec.msgpack.decode(next(frames), type=EngineConfig)
    plans = msgspec.msgpack.Decoder(StepPlan)
    outputs = msgspec.msgpack.Decoder(StepOutput)
    steps = [
        (plans.decode(plan), outputs.decode(output)) for plan, output in zip(frames, frames, strict=False)
    ]
    return msgspec.structs.replace(config, record=None), steps


def replay(worker: Worker, steps: list[tuple[StepPlan, StepOutput]]) -> int | None:
    """Run the plans again. The first step whose output differs, or None where all are the same."""
    for index, (plan, recorded) in enumerate(steps):
        if worker.step(plan) != recorded:
            return index
    return None


def main() -> int:
    """`python -m slipway.engine.record FILE`: play it back and say whether every output is the same."""
    from slipway.engine.start import Start

    config, steps = read_record(Path(sys.argv[1]))
    different = replay(Start(config).worker(), steps)
    if different is None:
        print(f"{len(steps)} steps of {config.model}: every output is the same")
        return 0
    print(f"step {different} of {len(steps)} gave another output than the record has")
    return 1


if __name__ == "__main__":
    sys.exit(main())
