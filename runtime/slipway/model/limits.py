"""What a model is served with: its element type and its longest request."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.load.arrays import BF16, E4M3, E5M2, FP16, FP32, INT8, DType
from slipway.load.config import Config, number, rope_kind, rope_settings
from slipway.load.errors import LoadError

_REQUESTED = {
    "auto": BF16,
    "bfloat16": BF16,
    "half": FP16,
    "float16": FP16,
    "float": FP32,
    "float32": FP32,
}
_KV_CACHE = {
    "fp8": E4M3,
    "fp8_e4m3": E4M3,
    "fp8_e5m2": E5M2,
    "int8_per_token_head": INT8,
}
_LENGTH_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_target_positions",
)
_TRAINED_LONG = ("longrope", "llama3", "default")
"""Kinds of rotary scaling whose `max_position_embeddings` counts the scaled length already."""
_UNKNOWN_LENGTH = 2048


def resolve_dtype(requested: str, stored: str, device: str = "cpu") -> tuple[DType, str]:
    """The type of weights and activations, and a warning where it is not what was asked for.

    requested  `--dtype`
    stored     type of the checkpoint
    device     cpu or cuda
    On CUDA `auto` keeps bfloat16 and takes float16 for the rest, as vLLM does. On CPU it is bfloat16 whatever
    is stored: float16 has no products there. Raises LoadError for an unknown name.
    """
    dtype = _named(requested, _REQUESTED, "dtype", "weights can have here")
    if device == "cuda":
        narrowed = requested == "auto" and stored != "bfloat16"
        return FP16 if narrowed else dtype, ""
    if dtype == FP16:
        return BF16, (
            f"--dtype {requested} has no fast products on CPU: serving bfloat16, which has the range of "
            "float32 and 8 bits of precision. Use --dtype float32 for more."
        )
    if requested == "auto" and stored == "float16":
        return dtype, (
            "The checkpoint is float16, which has no fast products on CPU: serving bfloat16. "
            "Use --dtype float32 to keep all of its precision."
        )
    return dtype, ""


def kv_cache_dtype(requested: str, dtype: DType, device: str = "cpu") -> DType:
    """The type of the KV cache under `--kv-cache-dtype`; auto is the model's. Raises LoadError."""
    found = _named(requested, {"auto": dtype} | _KV_CACHE, "kv_cache_dtype", "the KV cache can have")
    if found == INT8 and device == "cuda":
        raise LoadError(
            "BadArguments",
            f"--kv-cache-dtype {requested} has kernels on CPU only.",
            hint="Use fp8, which takes as little memory.",
            argument="kv_cache_dtype",
        )
    return found


def _named(name: str, types: Mapping[str, DType], argument: str, use: str) -> DType:
    if name not in types:
        raise LoadError(
            "BadArguments",
            f"--{argument.replace('_', '-')} {name} is not a type that {use}.",
            hint=f"Use {', '.join(types)}.",
            argument=argument,
        )
    return types[name]


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
    asked: int | None,
    config: Config,
    smallest_window: int,
    *,
    allow_long: bool,
    stretch: float = 1.0,
    chunk: int = 0,
) -> tuple[int, str]:
    """The longest request, prompt and output together, and a warning where it is beyond the model's own.

    asked            `--max-model-len`; None takes the model's length
    smallest_window  caps the length, as `--disable-sliding-window` promises; 0 where nothing does
    allow_long       `VLLM_ALLOW_LONG_MAX_MODEL_LEN`
    stretch          the most by which adapters may stretch it
    chunk            caps the length whatever is allowed: layers attend in stretches of so many tokens, which
                     no kernel computes
    Raises LoadError where more is asked for than the model was made for.
    """
    length = trained_length(config)
    cause = f"the model was made for {length} tokens"
    if 0 < smallest_window < length:
        length = smallest_window
        cause = f"without its sliding window, which holds {length} tokens, the model knows no more"
    asked = None if asked is None or asked <= 0 else asked
    if 0 < chunk < (asked or length):
        if asked is None:
            return chunk, (
                f"Layers of the model attend in stretches of {chunk} tokens, which is not computed here: "
                f"--max-model-len is {chunk} instead of {length}."
            )
        raise LoadError(
            "BadArguments",
            f"--max-model-len {asked} is too long: layers of the model attend in stretches of {chunk} "
            "tokens, which is not computed here.",
            hint=f"Set {chunk} or less.",
            argument="max_model_len",
        )
    if asked is None:
        return length, ""
    if asked <= length * stretch:
        return asked, ""
    if allow_long:
        return asked, (
            f"--max-model-len {asked}, but {cause}: beyond that, output may be wrong or not a number. "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN permits it."
        )
    raise LoadError(
        "BadArguments",
        f"--max-model-len {asked} is too long: {cause}, and longer requests may give wrong output.",
        hint=f"Set {int(length * stretch)} or less, stretch the model by --rope-scaling, or set "
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 to take the risk.",
        argument="max_model_len",
    )
