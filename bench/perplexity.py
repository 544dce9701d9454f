"""What each way of holding weights does to a model: perplexity on this repository's own manual.

    python bench/perplexity.py > table.md

The demo model is dequantized to a bfloat16 checkpoint, that is quantized by bench/quantize.py into each
format, and each is served by the engine. Windows of the text overlap by half, and tokens count in the second
half only, so that each is predicted from at least half a window. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from quantize import quantize, recipe
from safetensors.torch import save_file

from slipway.engine.config import EngineConfig
from slipway.engine.params import SamplingParams
from slipway.load.arrays import BF16
from slipway.load.checkpoint import open_checkpoint
from slipway.load.demo import fetch
from slipway.load.quantized.tensors import in_type
from slipway.load.torch_arrays import tensor
from slipway.text.gguf import load as load_tokenizer
from slipway.worker.planning import plan_model
from slipway_kernels.cpu import PageMemory, Slots, Threads

DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: how the checkpoint is made, and the engine's settings."""

    name: str
    method: str = "plain"
    bits: int = 4
    group: int = 64
    act_order: bool = False
    settings: dict[str, object] = field(default_factory=dict)


ROWS = (
    Row("bfloat16"),
    Row("float32", settings={"dtype": "float32"}),
    Row("GGUF Q4_1, packed", "gguf"),
    Row("AWQ, groups of 64", "awq"),
    Row("AWQ, groups of 32", "awq", group=32),
    Row("GPTQ, 4 bits, groups of 64", "gptq"),
    Row("GPTQ, 4 bits, groups of 32", "gptq", group=32),
    Row("GPTQ, 4 bits, groups of 32, act-order", "gptq", group=32, act_order=True),
    Row("GPTQ, 4 bits, zero points, groups of 32", "gptq-asym", group=32),
    Row("GPTQ, 8 bits, groups of 64", "gptq", bits=8),
    Row("compressed-tensors W4A16, groups of 64", "w4a16"),
    Row("compressed-tensors W8A16, groups of 64", "w4a16", bits=8),
    Row("compressed-tensors W8A8, by row", "w8a8"),
    Row("fp8, one scale", "fp8"),
    Row("fp8, blocks of 128 × 128", "fp8-block"),
    Row("`--quantization fp8`", settings={"quantization": "fp8"}),
    Row("`--quantization int8`", settings={"quantization": "int8"}),
    Row("`--quantization int4`", settings={"quantization": "int4"}),
    Row("`--kv-cache-dtype fp8`", settings={"kv_cache_dtype": "fp8"}),
    Row("`--kv-cache-dtype fp8_e5m2`", settings={"kv_cache_dtype": "fp8_e5m2"}),
    Row("`--kv-cache-dtype int8_per_token_head`", settings={"kv_cache_dtype": "int8_per_token_head"}),
)


def text_tokens(model: Path, count: int) -> list[int]:
    """The manual's first `count` tokens, and on standard error what they are."""
    text = "\n\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    tokens = load_tokenizer(model).encode(text, add_special_tokens=False)[:count]
    digest = hashlib.sha256(np.asarray(tokens, np.int32).tobytes()).hexdigest()[:12]
    print(f"{len(tokens)} tokens of docs/*.md, SHA-256 {digest}", file=sys.stderr)
    return tokens


def dequantized(model: Path, folder: Path) -> Path:
    """The model as a folder of bfloat16 weights."""
    folder.mkdir()
    config = EngineConfig(model=str(model), use_tqdm_on_load=False)
    checkpoint = open_checkpoint(config, lambda *_: None)
    stored = ((name, in_type(one.read(), BF16)) for name, one in checkpoint.stored(BF16))
    tensors = {name: tensor(weights).clone() for name, weights in stored}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**checkpoint.config, "dtype": "bfloat16"}))
    return folder


class Judge:
    """A served model that says how probable each token of a window is."""

    def __init__(self, model: Path, window: int, chunk: int, **settings: object) -> None:
        fields: dict[str, object] = {"dtype": "bfloat16", "use_tqdm_on_load": False, **settings}
        config = EngineConfig(model=str(model), **fields)  # type: ignore[arg-type]
        plan = plan_model(open_checkpoint(config, lambda *_: None), config)
        self.warnings = plan.warnings
        blocks, groups = -(-window // config.block_size) + 1, len(plan.kv.groups)
        self.slots = Slots(1, window + 1, groups, blocks)
        pages = np.arange(groups * blocks, dtype=np.int32)
        self.slots.block_table[:] = pages.reshape(groups, 1, blocks)
        pool = PageMemory(len(pages), plan.kv.page_bytes)
        threads = len(os.sched_getaffinity(0))
        self._chunk = chunk
        self._model, _ = plan.read(Threads(threads), lambda *_: None)(self.slots, pool, chunk, 1)

    def logprobs(self, tokens: list[int]) -> list[float]:
        """Of every token but the first."""
        self.slots.start(0, tokens)
        self.slots.set_sampling(0, SamplingParams(1, temperature=0.0, num_prompt_logprobs=0))
        found: list[float] = []
        while self.slots.num_computed[0] < len(tokens):
            count = min(self._chunk, len(tokens) - int(self.slots.num_computed[0]))
            result = self._model.step(np.zeros(1, np.int32), np.array([count], np.int32))
            known = result.rows[: result.requests["first_drawn"][0]]
            found += known["logprob"][known["token"] >= 0].tolist()
        return found


def windows(tokens: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(tokens) - size + 1, size // 2):
        yield tokens[start : start + size]


def log_losses(judge: Judge, tokens: list[int], size: int) -> list[float]:
    """Of the second half of every window, nats."""
    return [-one for window in windows(tokens, size) for one in judge.logprobs(window)[size // 2 - 1 :]]


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--only", default="", help="rows whose name holds this, beside the first")
    arguments = parser.parse_args()
    gguf = fetch()
    tokens = text_tokens(gguf, arguments.tokens)
    base = 0.0
    print("| weights | perplexity | against bfloat16 | held as stored |\n| --- | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as place:
        source = dequantized(gguf, Path(place) / "plain")
        for number, row in enumerate(ROWS):
            if number and arguments.only not in row.name:
                continue
            model = gguf if row.method == "gguf" else source
            if row.method not in ("plain", "gguf"):
                how = recipe(row.method, row.bits, row.group, act_order=row.act_order)
                model = quantize(source, Path(place) / str(number), how)
            judge = Judge(model, arguments.window, 256, **row.settings)
            losses = log_losses(judge, tokens, arguments.window)
            perplexity = math.exp(sum(losses) / len(losses))
            base = base or perplexity
            held = "no" if any("are held in" in text for text in judge.warnings) else "yes"
            print(f"| {row.name} | {perplexity:.3f} | {perplexity / base - 1:+.2%} | {held} |", flush=True)


if __name__ == "__main__":
    main()
