"""A model whose keys and values are too large for an fp8 KV cache as they are."""

from __future__ import annotations

from pathlib import Path

from factory import make_model
from local_engine import Output
from tensor_files import load, save

FACTORS = {"q_proj": 2.0**-11, "k_proj": 2.0**11, "v_proj": 2.0**20, "o_proj": 2.0**-20}
"""Powers of two round nothing; queries stay within fp16, which devices multiply them with fp8 keys in."""


def make_outlying(place: Path, **sizes: object) -> tuple[Path, Path]:
    """A tiny Llama, and the same function of its tokens by much larger keys and values."""
    plain, outlying = (make_model("llama", place / name, **sizes) for name in ("plain", "outlying"))
    file = outlying / "model.safetensors"
    weights = load(file)
    for name in weights:
        for part, factor in FACTORS.items():
            if f".{part}." in name:
                weights[name] = weights[name] * factor
    save(weights, file)
    return plain, outlying


def distance(one: Output, other: Output) -> float:
    """Mean difference of the prompt's log-probabilities."""
    pairs = zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True)
    return sum(abs(a.logprob - b.logprob) for a, b in pairs if a and b) / (len(one.prompt_logprobs) - 1)
