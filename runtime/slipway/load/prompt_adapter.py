"""The rows of prompt adapters, as PEFT saves them: `prompt_embeddings` in safetensors or `.bin`.

Methods: prompt tuning, Lester et al. 2021, https://arxiv.org/abs/2104.08691; p-tuning, Liu et al. 2021,
https://arxiv.org/abs/2103.10385, of which what its network gave is saved.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipway.load.arrays import FP32, DType, is_float
from slipway.load.own_tokens import open_tensors
from slipway.load.quantized.tensors import in_type
from slipway.load.virtual_tokens import count_virtual_tokens, unfit

TENSOR = "prompt_embeddings"


@dataclass(frozen=True, slots=True)
class PromptAdapterLimits:
    """What a server takes of prompt adapters: `--max-prompt-adapters`, `--max-prompt-adapter-token`."""

    places: int
    """Of them in memory."""
    max_tokens: int
    """Of each."""


def read_prompt_adapter(
    name: str, folder: Path, count: int, limits: PromptAdapterLimits, hidden: int, dtype: DType
) -> bytes:
    """What enters the first layer before each prompt: fp32 [count, hidden], rounded to `dtype`.

    Raises LoadError, with the name of what is wrong, for what is no such adapter or more than we take.
    """
    if (stated := count_virtual_tokens(name, folder)) != count:
        why = f"has {stated} virtual tokens, and had {count} when the server found it"
        raise unfit(name, folder, why, "Restart the server.")
    if count > limits.max_tokens:
        why = f"has {count} virtual tokens, and --max-prompt-adapter-token is {limits.max_tokens}"
        raise unfit(name, folder, why, f"Serve it with --max-prompt-adapter-token {count}.")
    weights = open_tensors(folder)
    if weights is None:
        raise unfit(name, folder, "has no adapter_model.safetensors")
    with closing(weights):
        entries = weights.entries
        if others := sorted(entries.keys() - {TENSOR}):
            raise unfit(name, folder, f"has a tensor {others[0]}; only {TENSOR} are put before a prompt")
        if TENSOR not in entries or not is_float(entries[TENSOR].dtype):
            raise unfit(name, folder, f"has no numbers {TENSOR}")
        rows = in_type(in_type(weights.view(TENSOR), dtype), FP32)
        if rows.shape != (count, hidden):
            why = f"has {TENSOR} of shape {list(rows.shape)}; this model takes [{count}, {hidden}]"
            raise unfit(name, folder, why, "Serve the model that it was trained for.")
        if not np.isfinite(rows).all():
            raise unfit(name, folder, f"has {TENSOR} that are infinite, or no numbers")
        return rows.tobytes()
