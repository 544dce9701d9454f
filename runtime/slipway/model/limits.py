"""What a model is served with: its element type and its longest request."""

from __future__ import annotations

import torch

from slipway.load.errors import LoadError
from slipway.model.config import Config, number, rope_kind, rope_settings

_REQUESTED = {
    "auto": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "half": torch.float16,
    "float16": torch.float16,
    "float": torch.float32,
    "float32": torch.float32,
}
_LENGTH_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
)
_TRAINED_LONG = ("longrope", "llama3", "default")
"""Kinds of rotary scaling whose `max_position_embeddings` counts the scaled length already."""
_UNKNOWN_LENGTH = 2048


def resolve_dtype(requested: str, stored: str) -> tuple[torch.dtype, str]:
    """The type of weights and KV cache on CPU, and a warning where it is not what was asked for.

    requested  `--dtype`
    stored     type of the checkpoint
    `auto` is bfloat16 whatever is stored: float32 is narrowed as vLLM does, and float16 has no products
    on CPU. Raises LoadError for an unknown name.
    """
    if requested not in _REQUESTED:
        raise LoadError(
            "UnsupportedFormat",
            f"--dtype {requested} is not a type that weights can have here.",
            hint=f"Use {', '.join(_REQUESTED)}.",
            argument="dtype",
        )
    dtype = _REQUESTED[requested]
    if dtype is torch.float16:
        return torch.bfloat16, (
            f"--dtype {requested} has no fast products on CPU: serving bfloat16, which has the range of "
            "float32 and 8 bits of precision. Use --dtype float32 for more."
        )
    if requested == "auto" and stored == "float16":
        return dtype, (
            "The checkpoint is float16, which has no fast products on CPU: serving bfloat16. "
            "Use --dtype float32 to keep all of its precision."
        )
    return dtype, ""


def trained_length(config: Config) -> int:
    """Tokens that the model was made for, rotary scaling included."""
    lengths = [value for name in _LENGTH_FIELDS if isinstance(value := config.get(name), int)]
    length = float(min(lengths, default=_UNKNOWN_LENGTH))
    parameters = rope_settings(config)
    kind = rope_kind(parameters)
    if kind not in _TRAINED_LONG:
        if kind == "yarn":
            length = number(parameters, "original_max_position_embeddings", length)
        length *= number(parameters, "factor", 1.0)
    return int(length)


def max_model_len(
    asked: int | None, config: Config, smallest_window: int, *, allow_long: bool
) -> tuple[int, str]:
    """The longest request, prompt and output together, and a warning where it is beyond the model's own.

    asked            `--max-model-len`; None takes the model's length
    smallest_window  caps the length, as `--disable-sliding-window` promises; 0 where nothing does
    allow_long       `VLLM_ALLOW_LONG_MAX_MODEL_LEN`
    Raises LoadError where more is asked for than the model was made for.
    """
    length = trained_length(config)
    cause = f"the model was made for {length} tokens"
    if 0 < smallest_window < length:
        length = smallest_window
        cause = f"without its sliding window, which holds {length} tokens, the model knows no more"
    if asked is None or asked <= 0:
        return length, ""
    if asked <= length:
        return asked, ""
    if allow_long:
        return asked, (
            f"--max-model-len {asked}, but {cause}: beyond that, output may be wrong or not a number. "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN permits it."
        )
    raise LoadError(
        "UnsupportedModel",
        f"--max-model-len {asked} is too long: {cause}, and longer requests may give wrong output.",
        hint=f"Set {length} or less, stretch the model by --rope-scaling, or set "
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 to take the risk.",
        argument="max_model_len",
    )
