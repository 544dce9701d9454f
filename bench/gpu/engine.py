"""The engine on models of real shapes with random weights: the stage `engine`.

A request's tokens are counted as they come out. On a machine without a GPU a tiny model goes through the
interpreter: that the stage runs is known then, and no rate is written.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from answers import decode_rate, throughput
from checkpoints import write_awq
from device import CUDA, DEVICE
from in_process import INTERPRETED, Engine, Work
from shapes import written
from stage import Part, run
from table import Rows


@dataclass(frozen=True, slots=True)
class Setup:
    """A part of the stage: a model, how it is served, and what is measured of it.

    batches   sizes at which it decodes
    prefill   lengths of prompts
    requests  of a thousand tokens that each become two thousand; 0: none
    awq       weights of four bits from a checkpoint, instead of random ones made as they are loaded
    """

    shape: str
    batches: tuple[int, ...]
    prefill: tuple[int, ...] = ()
    requests: int = 0
    awq: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)


FP8 = {"quantization": "fp8", "kv_cache_dtype": "fp8"}
SETUPS = {
    "llama-8b": Setup("llama-8b", (1, 8, 64, 256), (2048, 8192), 1024),
    "llama-8b-fp8": Setup("llama-8b", (1, 8, 64, 256), (2048, 8192), 1024, settings=FP8),
    "llama-8b-awq": Setup("llama-8b", (1, 8, 64), (2048,), 512, awq=True),
    "qwen3-0.6b": Setup("qwen3-0.6b", (1, 64, 256), (2048,)),
    "qwen3-4b": Setup("qwen3-4b", (1, 64), (2048,)),
    "mixtral-8-layers": Setup("mixtral-8-layers", (1, 64), (2048,)),
}
TINY = {
    "tiny": Setup("tiny", (1, 3), (32,), 3),
    "tiny-fp8": Setup("tiny", (2,), (), 0, settings=FP8),
    "tiny-awq": Setup("tiny", (2,), (), 0, awq=True),
}


def bounds() -> dict[str, object]:
    return {"max_num_seqs": 512, "max_model_len": 16384} if CUDA else dict(INTERPRETED)


def settings_of(setup: Setup) -> dict[str, object]:
    return bounds() | dict(setup.settings) | ({"load_format": "safetensors"} if setup.awq else {})


def started(setup: Setup, name: str, folder: Path, rows: Rows) -> Engine:
    """An engine of a model in this folder: a row of what is begun, and one of the start."""
    rows.add(model=name, what="settings", shape=setup.shape, settings=json.dumps(settings_of(setup)))
    model = written(setup.shape, folder)
    if setup.awq:
        write_awq(model, DEVICE)
    engine = Engine(model, **settings_of(setup))
    phases = {f"{phase}_s": took for phase, took in engine.start.seconds.items()} if CUDA else {}
    rows.add(model=name, what="start", **phases, **engine.memory())
    return engine


def measure(setup: Setup, name: str, rows: Rows) -> bool:
    """Start-up, decode by batch, prefill, and many requests at once."""
    with tempfile.TemporaryDirectory() as folder:
        engine = started(setup, name, Path(folder), rows)
        decode(engine, setup.batches, name, rows)
        prefill(engine, setup.prefill, name, rows)
        if setup.requests:
            many(engine, Work(setup.requests, 1000, 1000), name, rows)
        engine.close()
    return True


def decode(engine: Engine, batches: Sequence[int], name: str, rows: Rows, **more: object) -> None:
    for batch in batches:
        if rows.late:
            return
        rate = decoded(engine, batch)
        rows.add(
            model=name, what="decode", batch=batch, tok_s=rate, itl_ms=rate and batch / rate * 1e3, **more
        )


def decoded(engine: Engine, batch: int, seed: int = 0) -> float | None:
    """Tokens a second of so many requests, the second time; None without a GPU."""
    work = Work(batch, 512, 192) if CUDA else Work(batch, 8, 4)
    engine.run(work.of(engine, 2 * batch + 1000 * seed))
    answers = engine.run(work.of(engine, 2 * batch + 1000 * seed + 1))
    return decode_rate(answers) if CUDA else None


def prefill(engine: Engine, lengths: Sequence[int], name: str, rows: Rows) -> None:
    for length in lengths:
        if rows.late:
            return
        rows.add(model=name, what="prefill", input=length, tok_s=prefilled(engine, length))


def prefilled(engine: Engine, length: int, seed: int = 0, requests: int = 4) -> float | None:
    """Prompt tokens a second, the second time; None without a GPU."""
    work = Work(requests if CUDA else 1, length, 1)
    engine.run(work.of(engine, length + 100_000 * seed))
    last = max(answer[-1].at for answer in engine.run(work.of(engine, length + 100_000 * seed + 1)))
    return work.requests * length / last if CUDA else None


def many(engine: Engine, work: Work, name: str, rows: Rows) -> None:
    """Requests that are sent at once."""
    if rows.late:
        return
    what = f"{work.input_len}/{work.output_len}"
    work = work if CUDA else Work(3, 10, 5)
    answers = engine.run(work.of(engine, 5 + work.input_len))
    if (counted := sum(map(len, answers))) != work.tokens:
        raise RuntimeError(f"{counted} tokens came of {work.tokens}")
    rate = throughput(answers) if CUDA else None
    rows.add(model=name, what=what, requests=work.requests, tok_s=rate)


def parts() -> dict[str, Part]:
    setups = SETUPS if CUDA else TINY
    return {name: partial(measure, setup, name) for name, setup in setups.items()}


if __name__ == "__main__":
    raise SystemExit(run("engine", parts(), __doc__))
