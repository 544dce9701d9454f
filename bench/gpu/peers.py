"""transformers' continuous batching beside ours, same shape and work, in one run: the stage `peers`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from answers import throughput
from device import CUDA, DEVICE
from in_process import INTERPRETED, Engine, Work
from shapes import written
from stage import run
from table import Rows

SHAPE = "llama-8b" if CUDA else "tiny"
WORKS = (Work(1, 512, 128), Work(64, 512, 128), Work(256, 512, 128)) if CUDA else (Work(2, 8, 3),)
WARM = 1
"""Runs of each work before the one that counts: of theirs and of ours."""


def theirs(rows: Rows) -> bool:
    """Random weights, greedy, no end of sequence; torch's SDPA over pages."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with tempfile.TemporaryDirectory() as folder:
        config = AutoConfig.from_pretrained(written(SHAPE, Path(folder)))
    with DEVICE:
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.bfloat16, attn_implementation="paged|sdpa" if CUDA else "paged|eager"
        ).eval()
    for work in WORKS:
        settings = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=work.output_len, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        for turn in range(WARM + 1):
            if rows.late:
                return False
            prompts = list(work.prompts(config.vocab_size, turn))
            begun = time.perf_counter()
            outputs = model.generate_batch(inputs=prompts, generation_config=settings)
            took = time.perf_counter() - begun
        counted = sum(len(one.generated_tokens) for one in outputs.values())
        _add(rows, work, "transformers", counted, counted / took)
    return True


def ours(rows: Rows) -> bool:
    bounds = {"max_num_seqs": 256, "max_model_len": 8192} if CUDA else INTERPRETED
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(written(SHAPE, Path(folder)), **bounds)
        for work in WORKS:
            for turn in range(WARM + 1):
                if rows.late:
                    return False
                answers = engine.run(work.of(engine, turn))
            _add(rows, work, "slipway", sum(map(len, answers)), throughput(answers))
        engine.close()
    return True


def _add(rows: Rows, work: Work, engine: str, tokens: int, rate: float) -> None:
    """Raises RuntimeError where an engine gave other than was asked of it."""
    if tokens != work.tokens:
        raise RuntimeError(f"{tokens} tokens came from {engine} where {work.tokens} were asked for")
    rows.add(model=SHAPE, what=work.name, engine=engine, tokens=tokens, tok_s=rate if CUDA else None)


if __name__ == "__main__":
    raise SystemExit(run("peers", {"slipway": ours, "transformers": theirs}, __doc__))
