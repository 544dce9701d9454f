"""What a step of a model takes in the worker alone, whole and by kind of operation. Prints tables.

    python bench/step.py --model FOLDER 1x1@128 8x1@128 32x1@128 1x256@0

A step is REQUESTSxNEW@CONTEXT: so many requests compute so many tokens each, behind a context that is there.
Medians over steps; neither scheduler nor wire nor HTTP is in them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections import defaultdict

import numpy as np

from slipway.engine.config import EngineConfig
from slipway.engine.params import SamplingParams
from slipway.load.checkpoint import open_checkpoint
from slipway.worker.planning import plan_model
from slipway_kernels.cpu import PageMemory, Program, Ranks, Slots, Threads

Shape = tuple[int, int, int]


def shape(text: str) -> Shape:
    found = re.fullmatch(r"(\d+)x(\d+)@(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not REQUESTSxNEW@CONTEXT, such as 8x1@128")
    return int(found[1]), int(found[2]), int(found[3])


class Model:
    """A model with room for the largest of the shapes."""

    def __init__(
        self, folder: str, shapes: list[Shape], ranks: Ranks | None = None, **settings: object
    ) -> None:
        config = EngineConfig(model=folder, use_tqdm_on_load=False, **settings)  # type: ignore[arg-type]
        plan = plan_model(open_checkpoint(config, lambda *_: None), config)
        requests = max(n for n, _, _ in shapes)
        length = max(new + context for _, new, context in shapes) + 1
        blocks, groups = -(-length // config.block_size), len(plan.kv.groups)
        self.slots = Slots(requests, length, groups, blocks)
        pages = np.arange(groups * requests * blocks, dtype=np.int32)
        self.slots.block_table[:] = pages.reshape(groups, requests, blocks)
        self.slots.tokens[:] = np.random.default_rng(0).integers(1000, size=(requests, length))
        for slot in range(requests):
            self.slots.set_sampling(slot, SamplingParams(1, temperature=0.0))
        pool = PageMemory(len(pages), plan.kv.page_bytes)
        largest = max(n * new for n, new, _ in shapes)
        threads = config.threads or len(os.sched_getaffinity(0))
        program, _ = plan.read(Threads(threads), lambda *_: None, ranks)(self.slots, pool, largest, 1)
        if not isinstance(program, Program):
            raise SystemExit(
                f"{plan.route.architecture} runs by transformers' code; only native models have steps."
            )
        self.hidden = plan.hidden_size
        self.program = program
        self.weight_bytes = program.weight_bytes
        self.seconds = program.measure()

    def step(self, requests: int, new: int, context: int) -> float:
        """Seconds."""
        self.slots.num_computed[:requests] = context
        self.slots.num_tokens[:requests] = self.slots.prompt_len[:requests] = context + new
        slots, counts = np.arange(requests, dtype=np.int32), np.full(requests, new, np.int32)
        started = time.perf_counter()
        self.program.step(slots, counts)
        return time.perf_counter() - started

    def table(self, shape: Shape, least: float) -> str:
        """Milliseconds of steps that take `least` seconds together, after two that do not count."""
        whole: list[float] = []
        kinds: dict[str, list[float]] = defaultdict(list)
        for turn in range(1_000_000):
            for _, seconds in self.seconds:
                seconds[:] = 0.0
            taken = self.step(*shape)
            if turn < 2:
                continue
            whole.append(taken)
            sums: dict[str, float] = defaultdict(float)
            for name, seconds in self.seconds:
                sums[name] += float(seconds[0])
            for name, value in sums.items():
                kinds[name].append(value)
            if sum(whole) > least and len(whole) >= 5:
                break
        parts = ", ".join(f"{name} {1e3 * statistics.median(values):.2f}" for name, values in kinds.items())
        requests, new, context = shape
        return f"{requests}x{new}@{context}: {1e3 * statistics.median(whole):.2f} ms = {parts}"


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--model", required=True, help="a folder, or a .gguf file")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each shape")
    parser.add_argument("shapes", nargs="+", type=shape, metavar="REQUESTSxNEW@CONTEXT")
    arguments = parser.parse_args()
    model = Model(arguments.model, arguments.shapes, dtype=arguments.dtype)
    for one in arguments.shapes:
        print(model.table(one, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
