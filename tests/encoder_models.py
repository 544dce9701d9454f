"""Tiny random encoders of every family, and what transformers and this project make of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factory import VOCABULARY
from model.stepping import plan, quiet
from slipway_kernels.cpu import PageMemory, Slots, Threads

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 300,
    "initializer_range": 0.3,
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "bert_relu": ("bert", {"hidden_act": "relu", "intermediate_size": 100, "num_attention_heads": 8}),
    "roberta": ("roberta", {"type_vocab_size": 1}),
    "xlm_roberta": ("xlm-roberta", {"hidden_act": "gelu_new"}),
    "modernbert": ("modernbert", {"local_attention": 20, "num_hidden_layers": 5}),
    "modernbert_biases": (
        "modernbert",
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "local_attention": 8},
    ),
    "nomic_bert": ("nomic_bert", {}),
    "gte": ("gte", {}),
    "gte_without_types": ("gte", {"type_vocab_size": 0, "intermediate_size": 88}),
}
"""By variant: transformers' name of the family, and what differs from the usual sizes."""


def make_encoder(variant: str, folder: Path, head: str = "", seed: int = 0, **overrides: Any) -> Path:
    """Write a random model of the variant; `head` is `SequenceClassification`, `MaskedLM` or none."""
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    family, own = ENCODERS[variant]
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
    config = AutoConfig.for_model(family, **{**_SIZES, **special, **own, **overrides})
    classes = {"": AutoModel, "MaskedLM": AutoModelForMaskedLM}
    torch.manual_seed(seed)
    model = classes.get(head, AutoModelForSequenceClassification).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 1:  # norms at exactly 1 and biases at 0 would hide mistakes
                weights.add_(torch.randn(weights.shape) * 0.2)
            else:
                weights.copy_(torch.randn(weights.shape) * 0.15)
    model.save_pretrained(folder)
    return folder


def reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.inference_mode()
def reference_rows(folder: Path, tokens: Sequence[int], type_from: int | None = None) -> Tensor:
    """[tokens, hidden]  transformers' final rows."""
    types = {} if type_from is None else {"token_type_ids": torch.tensor([_types(len(tokens), type_from)])}
    rows: Tensor = reference(folder)(torch.tensor([list(tokens)]), **types).last_hidden_state[0]
    return rows


def _types(length: int, type_from: int) -> list[int]:
    return [int(place >= type_from) for place in range(length)]


class EncoderRun:
    """A model of a folder with four slots, computed without engine or scheduler."""

    def __init__(self, folder: Path, *, max_len: int = 256, threads: int = 2, **settings: Any) -> None:
        self.plan = plan(folder, **settings)
        self.slots = Slots(4, max_len, 0, 0)
        self.slots.pooled[:] = 1
        self.model, _ = self.plan.read(Threads(threads), quiet)(self.slots, PageMemory(0, 0), 4 * max_len, 1)

    def step(self, prompts: Mapping[int, Sequence[int]], type_from: int | None = None) -> dict[int, Tensor]:
        """By slot its final rows [tokens, hidden], all computed in one step."""
        for slot, tokens in prompts.items():
            self.slots.start(slot, tokens, type_from=type_from)
        result = self.model.step(np.array([*prompts]), np.array([len(one) for one in prompts.values()]))
        starts = result.requests["first_row"].tolist()
        return {
            slot: torch.from_numpy(result.hidden[start : start + len(tokens)].copy())
            for (slot, tokens), start in zip(prompts.items(), starts, strict=True)
        }


def text(length: int, seed: int = 0) -> list[int]:
    """Random tokens without special ones."""
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
