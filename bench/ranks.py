"""What sharing a step among ranks costs and brings, in the worker alone. Prints a line a shape.

    python bench/ranks.py --model FOLDER [--size 2] 1x1@128 8x1@128

Ranks of one thread each, over one piece of memory, against one rank with as many threads: they take turns in
processes of their own, so that both meet the same pace of the machine; a ratio above 1 is in favour of ranks.
`collective` is a meeting of all ranks and the sum of what each has, as a step has two a layer and one for the
embedding. `weights` is what a rank holds of the bytes of the whole model.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import IO

import numpy as np
from step import Model, Shape, shape

from slipway_kernels.cpu import PageMemory, Program, Ranks, Slots, Threads, shared_memory

STEPS, ROUNDS, COLLECTIVES = 20, 15, 60


def collective(ranks: Ranks, width: int, rows: int) -> float:
    """Seconds of each, in a program of nothing else."""
    slots = Slots(rows, 2, 1, 1)
    slots.block_table[:] = np.arange(rows).reshape(1, rows, 1)
    program = Program(slots, rows, "fp32", Threads(1), 1000, 1, PageMemory(rows, 64), [16], "fp32")
    program.join(ranks)
    parts, out = [program.buffer_of_ranks(width) for _ in range(2)], program.buffer(width)
    for number in range(COLLECTIVES):
        program.from_ranks(parts[number % 2], out)
    program.finish()
    slots.num_tokens[:] = slots.prompt_len[:] = 1
    taken = []
    for _ in range(10 * STEPS):
        slots.num_computed[:] = 0
        begun = time.perf_counter()
        program.step(np.arange(rows, dtype=np.int32), np.ones(rows, np.int32))
        taken.append((time.perf_counter() - begun) / COLLECTIVES)
    return statistics.median(taken)


def serve(arguments: argparse.Namespace) -> None:
    """One process: for each line that it reads it computes the steps of a shape, and says what one takes."""
    size, rank = arguments.size, arguments.rank
    ranks = Ranks(rank, size, size, arguments.memory) if rank >= 0 else None
    fields = {"tensor_parallel_size": size, "rank": rank, "threads": 1} if ranks else {"threads": size}
    model = Model(arguments.model, arguments.shapes, ranks=ranks, dtype=arguments.dtype, **fields)
    print(model.weight_bytes, model.hidden, flush=True)
    for line in sys.stdin:
        kind, number = line.split()
        one = arguments.shapes[int(number)]
        if kind == "step":
            print(statistics.median(model.step(*one) for _ in range(STEPS)), flush=True)
        elif ranks is not None:
            print(collective(ranks, model.hidden, one[0] * one[1]), flush=True)


class Process:
    """A rank, or the one rank that has all."""

    def __init__(self, arguments: argparse.Namespace, rank: int, memory: int) -> None:
        shapes = [f"{n}x{new}@{context}" for n, new, context in arguments.shapes]
        words = ("--model", arguments.model, "--dtype", arguments.dtype, "--size", str(arguments.size))
        self._process = subprocess.Popen(
            [sys.executable, __file__, *words, "--rank", str(rank), "--memory", str(memory), *shapes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[memory],
        )

    def ask(self, line: str) -> None:
        to = self._pipe(self._process.stdin)
        to.write(line + "\n")
        to.flush()

    def heard(self) -> list[float]:
        return [float(word) for word in self._pipe(self._process.stdout).readline().split()]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def asked(processes: list[Process], kind: str, number: int) -> float:
    """What all of them take together: ranks begin and end as one."""
    for process in processes:
        process.ask(f"{kind} {number}")
    return max(process.heard()[0] for process in processes)


def compare(arguments: argparse.Namespace) -> None:
    memory = shared_memory()
    team = [Process(arguments, rank, memory) for rank in range(arguments.size)]
    alone = Process(arguments, -1, memory)
    try:
        held, whole = [process.heard()[0] for process in team], alone.heard()[0]
        print("weights " + ", ".join(f"{part / whole:.3f}" for part in held))
        for number, one in enumerate(arguments.shapes):
            print(line(team, alone, number, one), flush=True)
    finally:
        for process in (*team, alone):
            process.close()


def line(team: list[Process], alone: Process, number: int, one: Shape) -> str:
    pairs = [(asked(team, "step", number), asked([alone], "step", number)) for _ in range(ROUNDS)]
    ratios = sorted(single / several for several, single in pairs)
    several, single = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    each = 1e6 * asked(team, "collective", number)
    requests, new, context = one
    return (
        f"{requests}x{new}@{context}: ranks {several:.2f} ms, one rank {single:.2f} ms, ratio "
        f"{statistics.median(ratios):.3f} [{ratios[3]:.3f}, {ratios[-4]:.3f}], collective {each:.1f} µs"
    )


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--model", required=True, help="a folder, or a .gguf file")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--size", type=int, default=2, help="ranks, and threads of one rank")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("shapes", nargs="+", type=shape, metavar="REQUESTSxNEW@CONTEXT")
    arguments = parser.parse_args()
    (compare if arguments.rank is None else serve)(arguments)


if __name__ == "__main__":
    main()
