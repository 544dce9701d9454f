"""Whether a request's output depends on how it was computed: the stage `invariance`.

In fp32 a token may differ only where the base run's own two best are within 1e-3; else, at the first
difference, each side's token must be among the other's five best. Graphs and launching ahead change no batch
shape, so that they must not change a bit. On a machine without a GPU the same runs in the interpreter.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from answers import Said, unlike
from device import CUDA
from in_process import Engine, Request
from shapes import written
from stage import Part, run
from table import Rows

from slipway.engine.params import SamplingParams

SLOTS = 8
LENGTH = 128 if CUDA else 32
"""So short that attention never splits: a graph has the splits of the longest context that it covers."""
PROMPTS = (9, 32) if CUDA else (14, 16)
"""Lengths: an answer needs a block more than its prompt."""
BASE: dict[str, object] = {
    "max_num_seqs": SLOTS,
    "max_model_len": LENGTH,
    "num_blocks": 64,
    "enable_prefix_caching": False,
    "graph_sizes": list(range(1, SLOTS + 1)) if CUDA else [],  # no step is padded, as none is without graphs
    "max_num_batched_tokens": 256 if CUDA else 32,
}
KINDS: dict[str, dict[str, object]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "fp8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
FEW_BLOCKS = LENGTH // 16
"""As many as the longest request needs: several that grow do not fit."""
AXES: dict[str, dict[str, object]] = {
    "chunks of 5": {"max_num_batched_tokens": 5},
    "chunks of 64": {"max_num_batched_tokens": 64},
    "blocks of 8": {"block_size": 8, "num_blocks": 128},
    "blocks of 128": {"block_size": 128, "num_blocks": 16},
    "prefix cache": {"enable_prefix_caching": True, "block_size": 8, "num_blocks": 128},
    "preemption": {"num_blocks": FEW_BLOCKS},
    "torch's attention": {"attention_backend": "TORCH_SDPA"},
    "in turn": {"overlap": False},
    "without graphs": {"graph_sizes": []},
}
EXACT = ("in turn", "without graphs")
TIED = 1e-3


def check(kind: str, rows: Rows) -> bool:
    """One kind of numbers along all axes."""
    torch.backends.cuda.matmul.allow_tf32 = False
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    count, output = (SLOTS, 24) if CUDA else (3, 4)
    right = True
    with tempfile.TemporaryDirectory() as folder:
        model = written("small" if CUDA else "tiny", Path(folder))
        work = requests(500, count, output)
        base = answers(model, work, KINDS[kind])
        for axis in axes(kind):
            if rows.late:
                return False
            found = answers(model, work, KINDS[kind] | AXES[axis])
            wrong = differences(found, base, tied=TIED if kind == "float32" else None, exact=axis in EXACT)
            right &= not wrong
            rows.add(kind=kind, axis=axis, correct=not wrong, wrong="; ".join(wrong) or None)
    return right


def axes(kind: str) -> list[str]:
    """All of them on a GPU. The interpreter has no graphs, and knows of quantization by the steps' sizes."""
    if CUDA:
        return list(AXES)
    if kind in ("fp8", "int4"):
        return ["chunks of 5", "in turn"]
    return [axis for axis in AXES if axis != "without graphs"]


def answers(model: Path, work: Sequence[Request], settings: Mapping[str, object]) -> list[list[Said]]:
    """What an engine of these settings says; with a prefix cache, at its second time."""
    engine = Engine(model, **(BASE | dict(settings)))
    said = engine.run(work)
    if settings.get("enable_prefix_caching"):
        said = engine.run(work)
        if not engine.hub.prefix_hits:
            raise RuntimeError("the same prompts came again, and the prefix cache spared nothing")
    if settings.get("num_blocks") == FEW_BLOCKS and not engine.hub.preemptions:
        raise RuntimeError("no request was preempted: the pool is too large for this axis")
    engine.close()
    return said


def requests(vocab: int, count: int, output: int) -> list[Request]:
    """Every other one is sampled, from fewer tokens than are told of: rounding brings none from afar."""
    rng = random.Random(5)
    made: list[Request] = []
    for number in range(count):
        prompt = [rng.randrange(2, vocab) for _ in range(rng.randint(*PROMPTS))]
        sampled = {"temperature": 0.9, "top_k": 4, "top_p": 0.95} if number % 2 else {"temperature": 0.0}
        made.append((prompt, SamplingParams(output, seed=number, num_logprobs=5, **sampled)))  # type: ignore[arg-type]
    return made


def differences(
    found: Sequence[Sequence[Said]], base: Sequence[Sequence[Said]], *, tied: float | None, exact: bool
) -> list[str]:
    """What is not as it must be, one sentence for each request."""
    wrong = []
    for number, (ours, theirs) in enumerate(zip(found, base, strict=True)):
        if exact:
            why = "" if ours == theirs else "not the same to the bit"
        else:
            why = unlike(ours, theirs, tied=tied)
        if why:
            wrong.append(f"request {number}: {why}")
    return wrong


def parts() -> dict[str, Part]:
    return {kind: partial(check, kind) for kind in KINDS}


if __name__ == "__main__":
    raise SystemExit(run("invariance", parts(), __doc__))
