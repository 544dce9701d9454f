"""Playing a record back: `python -m slipway.engine.replay FILE`.

Plans and slots hold all that a worker needs, so a replay needs no scheduler, no API and no clock, and on
CPU its outputs are the same to the bit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slipway.dist.frames import split_frames
from slipway.engine.config import EngineConfig
from slipway.engine.executor import Steps
from slipway.engine.plan import Masks, StepOutput, StepPlan, read_masks
from slipway.engine.record import MAX_RECORDED_BYTES, timeless
from slipway.engine.start import Start

Step = tuple[StepPlan, Masks, StepOutput]


def read_record(path: Path) -> tuple[EngineConfig, list[Step]]:
    """The configuration, without its order to record, and the steps; one that was cut off is left out."""
    frames: Iterator[bytes] = split_frames(bytearray(path.read_bytes()), MAX_RECORDED_BYTES)
    config = msgspec.msgpack.decode(next(frames), type=EngineConfig)
    plans = msgspec.msgpack.Decoder(StepPlan)
    masks = msgspec.msgpack.Decoder(dict[int, bytes])
    outputs = msgspec.msgpack.Decoder(StepOutput)
    steps = []
    for plan_frame, mask_frame, output_frame in zip(frames, frames, frames, strict=False):
        plan = plans.decode(plan_frame)
        rows = read_masks(masks.decode(mask_frame), plan)
        steps.append((plan, rows, outputs.decode(output_frame)))
    return msgspec.structs.replace(config, record=None), steps


def replay(worker: Steps, steps: list[Step]) -> int | None:
    """Run the plans again. The first step whose output differs, or None where all are the same."""
    for index, (plan, masks, recorded) in enumerate(steps):
        worker.launch(plan)
        worker.draw(masks)
        if timeless(worker.collect()) != recorded:
            return index
    return None


def main() -> int:
    """Say whether every output is the same; status 1 where one is not."""
    config, steps = read_record(Path(sys.argv[1]))
    different = replay(Start.of(config).worker, steps)
    if different is None:
        print(f"{len(steps)} steps of {config.model}: every output is the same")
        return 0
    print(f"step {different} of {len(steps)} gave another output than the record has")
    return 1


if __name__ == "__main__":
    sys.exit(main())
