"""transformers' continuous batching beside ours, same shape and work, in one run: the stage `peers`."""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path

import torch
from device import CUDA
from shapes import written
from table import Rows

from engine import INTERPRETED_BOUNDS, Engine, Work, throughput

WORKS = (Work(1, 512, 128), Work(64, 512, 128), Work(256, 512, 128)) if CUDA else (Work(2, 8, 3),)


def theirs(folder: Path, works: tuple[Work, ...], rows: Rows, shape: str) -> None:
    """Random weights, greedy, no end of sequence; torch's SDPA over pages."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(written(shape, folder))
    with torch.device("cuda" if CUDA else "cpu"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="paged|sdpa" if CUDA else "paged|eager"
        ).eval()
    for work in works:
        if rows.late:
            return
        settings = GenerationConfig(
            max_new_tokens=work.output_len, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        prompts = list(work.prompts(config.vocab_size, 1))
        begun = time.perf_counter()
        outputs = model.generate_batch(inputs=prompts, generation_config=settings)
        took = time.perf_counter() - begun
        counted = sum(len(one.generated_tokens) for one in outputs.values())
        rows.add(
            model=shape,
            what=f"{work.requests} of {work.input_len}/{work.output_len}",
            engine="transformers",
            tokens=counted,
            tok_s=counted / took if CUDA else None,
        )
    del model
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def ours(folder: Path, works: tuple[Work, ...], rows: Rows, shape: str) -> None:
    bounds = {"max_num_seqs": 256, "max_model_len": 8192} if CUDA else INTERPRETED_BOUNDS
    engine = Engine(shape, folder, **bounds)
    for work in works:
        if rows.late:
            return
        engine.run(work)
        times = engine.run(work)
        rows.add(
            model=shape,
            what=f"{work.requests} of {work.input_len}/{work.output_len}",
            engine="slipway",
            tokens=sum(map(len, times.values())),
            tok_s=throughput(times) if CUDA else None,
        )
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=500, help="seconds after which nothing is begun")
    parser.add_argument("--shape", default="llama-8b" if CUDA else "tiny")
    arguments = parser.parse_args()
    rows = Rows(arguments.out, "peers", arguments.deadline)
    with tempfile.TemporaryDirectory() as folder:
        ours(Path(folder), WORKS, rows, arguments.shape)
        theirs(Path(folder), WORKS, rows, arguments.shape)


if __name__ == "__main__":
    main()
