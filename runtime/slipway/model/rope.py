"""Rotary embeddings: from `config.json` to the table of cosines and sines that the kernels read."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from slipway.load.arrays import Floats
from slipway.load.config import (
    Config,
    flag,
    integer,
    number,
    positive,
    rope_kind,
    rope_settings,
    table,
)
from slipway.load.errors import LoadError
from slipway.model.spec import Rope

_CHUNK = 1024
"""Positions whose angles are computed at once: in fp64 they still fit a cache."""


def rope(
    config: Config,
    head_dim: int,
    layer_type: str = "full_attention",
    *,
    theta_field: str = "rope_theta",
    default_theta: float = 10_000.0,
) -> Rope:
    """The rotation of a model, or of its layers of one type.

    Reads transformers 5's `rope_parameters` (flat, or one set for each layer type) and the older
    `rope_theta` beside `rope_scaling`, which never concerned sliding layers. Raises LoadError for a kind
    of scaling that is not known.
    """
    nested = isinstance(table(config, "rope_parameters").get(layer_type), dict)
    local = layer_type == "sliding_attention" and not nested
    settings = {} if local else rope_settings(config, layer_type)
    theta = number(settings, "rope_theta", number(config, theta_field, default_theta))
    share = number(settings, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    max_position = positive(config, "max_position_embeddings", 2048)
    kind = rope_kind(settings)
    if kind == "default":
        return Rope(theta, int(head_dim * share), {}, max_position)
    if settings.get("mixed_b") is not None:
        kind += " with mixed_b"
    if kind not in _SCALED:
        raise LoadError(
            "UnsupportedModel",
            f"The rotary embedding's scaling {kind!r} is not supported.",
            hint=f"Supported are {', '.join(_SCALED)}; or use --model-impl transformers.",
            argument="rope_scaling",
        )
    own = ("rope_theta", "partial_rotary_factor", "type", "rope_type")
    scaling = {name: value for name, value in settings.items() if name not in own and value is not None}
    if kind in ("llama3", "yarn", "longrope"):
        scaling["original_max_position_embeddings"] = _original_length(config, settings)
    return Rope(theta, int(head_dim * share), {"rope_type": kind, **scaling}, max_position)


def cos_sin(rope: Rope, max_len: int) -> Floats:
    """The table [max_len, rotary_dim / 2, 2] in fp32: cosine and sine, attention factor included.

    A table is made once for the longest request that is served, so that no result depends on how far a
    request has come: where `dynamic` and `longrope` choose by length, that length counts.

    Angles are products in fp32, as models were trained with them; their cosines and sines are exact but for
    the last rounding, so that no library's approximation is in the table.
    """
    frequencies, factor = inverse_frequencies(rope, max_len)  # [rotary_dim / 2]
    values = np.empty((max_len, len(frequencies), 2), np.float32)
    for start in range(0, max_len, _CHUNK):
        part = values[start : start + _CHUNK]
        positions = np.arange(start, start + len(part), dtype=np.float32)
        angles = np.outer(positions, frequencies).astype(np.float64)
        part[..., 0], part[..., 1] = np.cos(angles), np.sin(angles)
    values *= np.float32(factor)
    return values


def inverse_frequencies(rope: Rope, max_len: int) -> tuple[Floats, float]:
    """Frequencies [rotary_dim / 2] in fp32, and the factor of cosine and sine."""
    kind = rope.scaling.get("rope_type", "default")
    return _SCALED[str(kind)](rope, max_len)


def _periods(rope: Rope, theta: float | None = None) -> Floats:
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    exact = np.power(rope.theta if theta is None else theta, exponents.astype(np.float64))
    return exact.astype(np.float32)


def _default(rope: Rope, max_len: int) -> tuple[Floats, float]:
    return 1.0 / _periods(rope), 1.0


def _linear(rope: Rope, max_len: int) -> tuple[Floats, float]:
    return 1.0 / _periods(rope) / number(rope.scaling, "factor"), 1.0


def _dynamic(rope: Rope, max_len: int) -> tuple[Floats, float]:
    """NTK scaling: the base grows with the length, here the longest that is served."""
    factor, dim = number(rope.scaling, "factor"), rope.rotary_dim
    stretch = factor * max(max_len, rope.max_position) / rope.max_position - (factor - 1)
    return 1.0 / _periods(rope, rope.theta * stretch ** (dim / (dim - 2))), 1.0


def _ntk(rope: Rope, max_len: int) -> tuple[Floats, float]:
    """NTK scaling by a fixed factor: the base and the slowest turns grow by it (Su 2023, rotation of GTE)."""
    factor = number(rope.scaling, "factor")
    frequencies = 1.0 / _periods(rope, rope.theta * factor) / np.float32(factor ** (2 / rope.rotary_dim))
    return frequencies, 1.0


def _yarn(rope: Rope, max_len: int) -> tuple[Floats, float]:
    """Peng et al. 2023: fast pairs keep their frequency, slow ones are interpolated, a ramp between."""
    original = positive(rope.scaling, "original_max_position_embeddings")
    factor = number(rope.scaling, "factor", rope.max_position / original)
    dim = rope.rotary_dim

    def pair_turning(rotations: float) -> float:
        """The pair that turns so many times over the original length."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = pair_turning(number(rope.scaling, "beta_fast", 32.0))
    high = pair_turning(number(rope.scaling, "beta_slow", 1.0))
    if flag(rope.scaling, "truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    interpolated = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / width, 0, 1)
    fast, slow = 1.0 / _periods(rope), 1.0 / (factor * _periods(rope))
    frequencies = slow * interpolated + fast * (1 - interpolated)
    return frequencies, number(rope.scaling, "attention_factor", _yarn_attention(rope, factor))


def _yarn_attention(rope: Rope, factor: float) -> float:
    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    weight = number(rope.scaling, "mscale", 0.0)
    weight_all = number(rope.scaling, "mscale_all_dim", 0.0)
    if weight and weight_all:
        return temperature(weight) / temperature(weight_all)
    return temperature(1.0)


def _longrope(rope: Rope, max_len: int) -> tuple[Floats, float]:
    """Ding et al. 2024: a divisor for each pair, one set for short requests and one for long."""
    original = positive(rope.scaling, "original_max_position_embeddings")
    factor = number(rope.scaling, "factor", rope.max_position / original)
    name = "long_factor" if max_len > original else "short_factor"
    divisors = rope.scaling.get(name)
    if not isinstance(divisors, (list, tuple)) or len(divisors) != rope.rotary_dim // 2:
        raise LoadError(
            "BadCheckpoint",
            f"longrope needs {rope.rotary_dim // 2} numbers in {name}, and config.json has "
            f"{len(divisors) if isinstance(divisors, (list, tuple)) else 'none'}.",
            hint="Correct rope_scaling in the file, or lay a right one over it by --rope-scaling.",
            argument="rope_scaling",
        )
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    frequencies = 1.0 / (np.array(divisors, np.float32) * _periods(rope))
    return frequencies, number(rope.scaling, "attention_factor", attention)


def _llama3(rope: Rope, max_len: int) -> tuple[Floats, float]:
    """Llama 3.1: wavelengths beyond the original length are stretched, with a ramp below it."""
    factor = number(rope.scaling, "factor")
    low, high = number(rope.scaling, "low_freq_factor"), number(rope.scaling, "high_freq_factor")
    original = integer(rope.scaling, "original_max_position_embeddings")
    frequencies = 1.0 / _periods(rope)
    kept: Floats = np.clip((original * frequencies / (2 * math.pi) - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / factor), 1.0


_SCALED: dict[str, Callable[[Rope, int], tuple[Floats, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "ntk": _ntk,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


def length_warning(config: Config, max_len: int) -> str:
    """A sentence where the length that is served changes what short requests compute; else empty."""
    settings = rope_settings(config)
    limits = {
        "longrope": _original_length(config, settings),
        "dynamic": positive(config, "max_position_embeddings", 2048),
    }
    limit = limits.get(rope_kind(settings), max_len)
    if max_len <= limit:
        return ""
    return (
        f"The model's rotary embedding has one form up to {limit} tokens and another beyond. With "
        f"--max-model-len {max_len} all requests use the long one; {limit} or less gives the short one."
    )


def _original_length(config: Config, settings: Config) -> int:
    """Tokens that the model was trained for before its rotation was scaled."""
    name, trained = "original_max_position_embeddings", positive(config, "max_position_embeddings", 2048)
    return positive(config, name, positive(settings, name, trained))
