"""The engine on models of real shapes with random weights: the stage `engine`.

A request's tokens are counted as they come out. On a machine without a GPU a tiny model goes through the
interpreter: that the stage runs is known then, and no rate is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
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


def measure(setup: Setup, name: str, rows: Rows) -> bool:
    """Start-up, decode by batch, prefill, and many requests at once."""
    with tempfile.TemporaryDirectory() as folder:
        model = written(setup.shape, Path(folder))
        settings = bounds() | dict(setup.settings)
        if setup.awq:
            write_awq(model, DEVICE)
            settings["load_format"] = "safetensors"
        engine = Engine(model, **settings)
        phases = {f"{phase}_s": took for phase, took in engine.start.seconds.items()} if CUDA else {}
        rows.add(model=name, what="start", **phases, **engine.memory())
        _decode(engine, setup, name, rows)
        _prefill(engine, setup, name, rows)
        _many(engine, setup, name, rows)
        engine.close()
    return True


def _decode(engine: Engine, setup: Setup, name: str, rows: Rows) -> None:
    input_len, output_len = (512, 192) if CUDA else (8, 4)
    for batch in setup.batches:
        if rows.late:
            return
        work = Work(batch, input_len, output_len)
        engine.run(work.of(engine, 2 * batch))
        answers = engine.run(work.of(engine, 2 * batch + 1))
        rate = decode_rate(answers) if CUDA else None
        rows.add(model=name, what="decode", batch=batch, tok_s=rate, itl_ms=rate and batch / rate * 1e3)


def _prefill(engine: Engine, setup: Setup, name: str, rows: Rows) -> None:
    for length in setup.prefill:
        if rows.late:
            return
        work = Work(4 if CUDA else 1, length, 1)
        engine.run(work.of(engine, length))
        last = max(answer[-1].at for answer in engine.run(work.of(engine, length + 1)))
        rate = work.requests * length / last if CUDA else None
        rows.add(model=name, what="prefill", input=length, tok_s=rate)


def _many(engine: Engine, setup: Setup, name: str, rows: Rows) -> None:
    if not setup.requests or rows.late:
        return
    work = Work(setup.requests, 1000, 1000) if CUDA else Work(setup.requests, 10, 5)
    answers = engine.run(work.of(engine, 5))
    if (counted := sum(map(len, answers))) != work.tokens:
        raise RuntimeError(f"{counted} tokens came of {work.tokens}")
    rate = throughput(answers) if CUDA else None
    what = f"{work.input_len}/{work.output_len}"
    rows.add(model=name, what=what, requests=work.requests, tok_s=rate)


def parts() -> dict[str, Part]:
    setups = SETUPS if CUDA else TINY
    return {name: partial(measure, setup, name) for name, setup in setups.items()}


if __name__ == "__main__":
    raise SystemExit(run("engine", parts(), __doc__))
