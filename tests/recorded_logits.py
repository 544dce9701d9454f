"""What transformers computes in fp32 for the demo model and for a tiny model of each native architecture.

It is recorded in tests/data/logits, so that a run without torch compares with it, too. Written anew by

    PYTHONPATH=runtime:kernels:operator:tests python -m recorded_logits

of an environment with torch; tests/engine/test_recorded_logits.py derives it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from factory import make_model
from model.stepping import prompt
from tensor_files import Tensors, load, save

DATA = Path(__file__).parent / "data"
FOLDER = DATA / "logits"
NEAR_TIE = 1e-3
"""Two logits closer than this may come out in either order: fp32 sums differ in their last bits."""
TOLERANCE = 1e-3
"""Of log-probabilities, for the same reason."""
DEMO = "demo"
DEMO_PROMPTS = slice(0, 29, 3)
"""Of tests/data/prompts.json, whose last takes 1,861 tokens."""
DEMO_LENGTH, TINY_LENGTH = 64, 24
"""Tokens that are drawn after each prompt."""
BEST = 8
"""Log-probabilities that are kept of each of the demo model's steps."""
WHOLE = (0, 11)
"""Steps of which all log-probabilities of a tiny model are kept."""
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 24},
    "ministral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "gemma2": {"head_dim": 24, "query_pre_attn_scalar": 20},
    "gemma3_text": {"head_dim": 24, "query_pre_attn_scalar": 20},
    "mixtral": {},
    "qwen2_moe": {},
    "qwen3_moe": {"head_dim": 24},
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, overrides) for name, overrides in FAMILIES.items()},
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_odd_intermediate": ("llama", {"intermediate_size": 88, "tie_word_embeddings": True}),
    "llama_llama3_rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama_yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "qwen2_windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "gemma2_uncapped": (
        "gemma2",
        {"head_dim": 24, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3_one_to_three": (
        "gemma3_text",
        {
            "head_dim": 24,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "qwen2_moe_mixed": (
        "qwen2_moe",
        {"mlp_only_layers": [0], "norm_topk_prob": True, "moe_intermediate_size": 40},
    ),
    "qwen3_moe_step": ("qwen3_moe", {"head_dim": 24, "decoder_sparse_step": 2}),
}
"""Each native architecture, in a size that native code computes, and what its configuration may vary."""


class Recorded:
    """What is kept of one model: prompts, what they are greedily continued by, and how likely that is."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    @classmethod
    def read(cls, name: str) -> Recorded:
        return cls(load(FOLDER / f"{name}.safetensors"))

    def __len__(self) -> int:
        return sum(name.endswith(".prompt") for name in self.tensors)

    def prompt(self, number: int) -> list[int]:
        return self.tensors[f"{number}.prompt"].tolist()

    def drawn(self, number: int) -> list[int]:
        """The token with the largest logit at each step."""
        return self.tensors[f"{number}.drawn"].tolist()

    def gaps(self, number: int) -> list[float]:
        """The distance of the two largest logits at each step."""
        return self.tensors[f"{number}.gaps"].tolist()

    def logprobs(self, number: int) -> list[dict[int, float]]:
        """For each step log-probabilities by token: the largest, or in steps of WHOLE those of all tokens."""
        tokens, values = (self.tensors[f"{number}.{part}"] for part in ("tokens", "logprobs"))
        found = [dict(zip(*pair, strict=True)) for pair in zip(tokens.tolist(), values.tolist(), strict=True)]
        for step, row in zip(WHOLE, self.tensors.get(f"{number}.whole", ()), strict=False):
            found[step] = dict(enumerate(row.tolist()))
        return found


def derived(model: Any, prompts: Sequence[Sequence[int]], length: int, *, whole: bool) -> Recorded:
    """What transformers' model computes for these prompts."""
    import torch

    tensors: Tensors = {}
    model.generation_config.eos_token_id = None  # it does not end there
    for number, tokens in enumerate(prompts):
        ids = torch.tensor([list(tokens)])
        with torch.inference_mode():
            said = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False
            )
            logits = model(said).logits[0, len(tokens) - 1 : -1].float()  # [length, vocab]
        best, logprobs = logits.topk(2).values, logits.log_softmax(-1)
        likely = logprobs.topk(BEST)
        tensors |= {
            f"{number}.prompt": np.array(tokens, np.int32),
            f"{number}.drawn": logits.argmax(-1).numpy().astype(np.int32),
            f"{number}.gaps": (best[:, 0] - best[:, 1]).numpy(),
            f"{number}.tokens": likely.indices.numpy().astype(np.int32),
            f"{number}.logprobs": likely.values.numpy(),
        }
        if whole:
            tensors[f"{number}.whole"] = logprobs[list(WHOLE)].numpy()
    return Recorded(tensors)


def of_demo(path: Path) -> Recorded:
    from transformers import AutoModelForCausalLM

    from slipway.text.open import load as load_tokenizer

    tokenizer = load_tokenizer(path)
    texts = json.loads((DATA / "prompts.json").read_text())[DEMO_PROMPTS]
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype="float32").eval()
    return derived(model, [tokenizer.encode(text) for text in texts], DEMO_LENGTH, whole=False)


def of_tiny(name: str, folder: Path) -> Recorded:
    """Of a folder that tiny_model has made."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()
    return derived(model, [prompt(50), prompt(9, seed=1)], TINY_LENGTH, whole=True)


def tiny_model(name: str, folder: Path) -> Path:
    architecture, overrides = TINY[name]
    return make_model(architecture, folder, **overrides)


def all_derived() -> Iterator[tuple[str, Recorded]]:
    from slipway.load.demo import fetch

    yield DEMO, of_demo(fetch())
    with TemporaryDirectory() as place:
        for name in TINY:
            yield name, of_tiny(name, tiny_model(name, Path(place) / name))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, recorded in all_derived():
        save(recorded.tensors, FOLDER / f"{name}.safetensors")
        print(name, len(recorded), "prompts")
