"""Whether a request's output depends on how it was computed: the stage `invariance`.

One run of each kind of numbers generates. The runs along all axes are forced to its tokens, and the error of
every step's logits must be within what rounding explains (`forced.py`). Graphs of decodes and launching ahead
change no batch shape: on these axes every bit must be the same, in tokens that were drawn freely, too. Faults
put in on purpose must be found. Without a GPU the same runs in the interpreter.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from answers import Said
from device import CUDA
from faults import FAULTS
from forced import Apart, Logits, apart, apart_as_prompt, explained, forced
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
    "processors": True,
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
    "prompts as graphs": {},
    "in turn": {"overlap": False},
    "without graphs": {"graph_sizes": []},
}
EXACT = ("in turn", "without graphs")


def check(kind: str, rows: Rows, only: Sequence[str] = ()) -> bool:
    """One kind of numbers along all axes, or some."""
    torch.backends.cuda.matmul.allow_tf32 = False
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    count, output = (SLOTS, 24) if CUDA else (3, 4)
    right = True

    def add(axis: str, found: Apart, bound: float, *, correct: bool, wrong: str = "") -> None:
        nonlocal right
        right &= correct
        figures = {"error": found.error, "bound": bound, "median": found.median}
        place = {"request": found.request, "step": found.step}
        rows.add(kind=kind, axis=axis, **figures, **place, correct=correct, wrong=wrong or None)

    with tempfile.TemporaryDirectory() as folder:
        model = written("small" if CUDA else "tiny", Path(folder))
        work = requests(500, count, output)
        engine = engine_of(model, KINDS[kind])
        bound = explained(engine)
        free = engine.run(work)
        tokens = [[said.token for said in answer] for answer in free]
        base = forced(engine, work, tokens)
        found = apart_as_prompt(engine, work, tokens, base)
        add("as a prompt", found, bound, correct=found.error <= bound)
        for name, fault in FAULTS.items():
            with fault(engine):
                found = apart(forced(engine, work, tokens), base)
            add(name, found, bound, correct=found.error > bound)
        engine.close()
        for axis in only or axes(kind):
            if rows.late:
                return False
            exact = axis in EXACT
            engine = engine_of(model, KINDS[kind] | AXES[axis], prompt_graphs=axis == "prompts as graphs")
            wrong = "; ".join(differences(engine.run(work), free)) if exact else ""
            found = apart(along(axis, engine, work, tokens), base)
            engine.close()
            limit = 0.0 if exact else bound
            add(axis, found, limit, correct=found.error <= limit and not wrong, wrong=wrong)
    return right


def engine_of(model: Path, settings: Mapping[str, object], *, prompt_graphs: bool = False) -> Engine:
    """Graphs of steps with prompts have rows of padding, by which products choose their tiles."""
    engine = Engine(model, **(BASE | dict(settings)))
    if not prompt_graphs:
        engine.worker.graph_sizes.mixed = ()
        engine.worker.forget_graphs()
        while engine.worker.idle():
            pass
    return engine


def axes(kind: str) -> list[str]:
    """All of them on a GPU. The interpreter has no graphs, and knows of quantization by the steps' sizes."""
    if CUDA:
        return list(AXES)
    if kind in ("fp8", "int4"):
        return ["chunks of 5", "in turn"]
    return [axis for axis in AXES if "graphs" not in axis]


def along(axis: str, engine: Engine, work: Sequence[Request], tokens: Sequence[Sequence[int]]) -> Logits:
    """What an engine of this axis makes of the tokens. Raises RuntimeError if its axis was not taken."""
    found = forced(engine, work, tokens)
    if AXES[axis].get("enable_prefix_caching"):
        found = forced(engine, work, tokens)
        if not engine.hub.prefix_hits:
            raise RuntimeError("the same prompts came again, and the prefix cache spared nothing")
    if AXES[axis].get("num_blocks") == FEW_BLOCKS and not engine.hub.preemptions:
        raise RuntimeError("no request was preempted: the pool is too large for this axis")
    return found


def requests(vocab: int, count: int, output: int) -> list[Request]:
    """Every other one is sampled."""
    rng = random.Random(5)
    made: list[Request] = []
    for number in range(count):
        prompt = [rng.randrange(2, vocab) for _ in range(rng.randint(*PROMPTS))]
        sampled = {"temperature": 0.9, "top_k": 50, "top_p": 0.95} if number % 2 else {"temperature": 0.0}
        made.append((prompt, SamplingParams(output, seed=number, num_logprobs=5, **sampled)))  # type: ignore[arg-type]
    return made


def differences(found: Sequence[Sequence[Said]], base: Sequence[Sequence[Said]]) -> list[str]:
    """The requests whose outputs differ in a token or in a bit of a log-probability."""
    pairs = enumerate(zip(found, base, strict=True))
    return [f"request {number}: not the same to the bit" for number, (one, other) in pairs if one != other]


def parts() -> dict[str, Part]:
    return {kind: partial(check, kind) for kind in KINDS}


if __name__ == "__main__":
    raise SystemExit(run("invariance", parts(), __doc__))
