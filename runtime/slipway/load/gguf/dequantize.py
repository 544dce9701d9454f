"""From the bytes of a GGUF tensor to weights, exactly as ggml does it and in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slipway.load.arrays import BF16, FP16, FP32, Array, DType, cast
from slipway.load.errors import LoadError
from slipway.load.gguf import iq_types, k_types, simple
from slipway.load.gguf.blocks import Blocks, Bytes, Floats
from slipway.load.gguf.types import GgmlType

CHUNK = 1 << 15
"""Weights decoded at once: they stay in the L2 cache."""

_PLAIN: dict[str, DType] = {"F32": FP32, "F16": FP16, "BF16": BF16, "F64": np.dtype(np.float64)}

Field = tuple[str, str] | tuple[str, str, int]
_DECODERS: dict[str, tuple[list[Field], Callable[[Blocks], Floats]]] = {
    "Q4_0": ([("d", "<f2"), ("qs", "u1", 16)], simple.q4_0),
    "Q4_1": ([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)], simple.q4_1),
    "Q5_0": ([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)], simple.q5_0),
    "Q5_1": ([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)], simple.q5_1),
    "Q8_0": ([("d", "<f2"), ("qs", "i1", 32)], simple.q8_0),
    "MXFP4": ([("e", "u1"), ("qs", "u1", 16)], simple.mxfp4),
    "NVFP4": ([("e", "u1", 4), ("qs", "u1", 32)], simple.nvfp4),
    "TQ1_0": ([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")], simple.tq1_0),
    "TQ2_0": ([("qs", "u1", 64), ("d", "<f2")], simple.tq2_0),
    "Q2_K": (
        [("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")],
        k_types.q2_k,
    ),
    "Q3_K": (
        [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")],
        k_types.q3_k,
    ),
    "Q4_K": (
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)],
        k_types.q4_k,
    ),
    "Q5_K": (
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)],
        k_types.q5_k,
    ),
    "Q6_K": (
        [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")],
        k_types.q6_k,
    ),
    "IQ1_S": ([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)], iq_types.iq1_s),
    "IQ1_M": ([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)], iq_types.iq1_m),
    "IQ2_XXS": ([("d", "<f2"), ("qs", "<u4", 16)], iq_types.iq2_xxs),
    "IQ2_XS": ([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)], iq_types.iq2_xs),
    "IQ2_S": (
        [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)],
        iq_types.iq2_s,
    ),
    "IQ3_XXS": ([("d", "<f2"), ("qs", "u1", 64), ("scales", "<u4", 8)], iq_types.iq3_xxs),
    "IQ3_S": (
        [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)],
        iq_types.iq3_s,
    ),
    "IQ4_NL": ([("d", "<f2"), ("qs", "u1", 16)], iq_types.iq4_nl),
    "IQ4_XS": (
        [("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)],
        iq_types.iq4_xs,
    ),
}
RECORDS = {name: np.dtype(fields) for name, (fields, _) in _DECODERS.items()}
"""The layout of each type's block."""

SUPPORTED = frozenset(_PLAIN) | frozenset(_DECODERS)


def decode(kind: GgmlType, raw: Bytes) -> Floats:
    """Weights in fp32, flat, of whole blocks: raw [n · block_bytes] → [n · block_size]."""
    blocks = raw.view(RECORDS[kind.name])
    return _DECODERS[kind.name][1](blocks).reshape(-1)


def dequantize(kind: GgmlType, raw: Bytes, shape: tuple[int, ...], dtype: DType) -> Array:
    """A tensor's weights: those of block types in `dtype`, rounded once from fp32, others in their own type.

    raw      [n · block_bytes]
    Returns  [*shape]; a view of `raw` where nothing is decoded.
    Raises LoadError for a type that holds no weights, or none that anybody decodes.
    """
    if kind.name in _PLAIN:
        return raw.view(_PLAIN[kind.name]).reshape(shape)
    if kind.name not in _DECODERS:
        raise LoadError(
            "UnsupportedFormat",
            f"Weights of the GGUF type {kind.name} cannot be read.",
            hint=f"Quantize the model to one of {', '.join(sorted(SUPPORTED))}.",
            argument="model",
        )
    out = np.empty(shape, dtype)
    flat = out.reshape(-1)
    step = CHUNK // kind.block_size
    for first in range(0, len(flat) // kind.block_size, step):
        weights = decode(kind, raw[first * kind.block_bytes : (first + step) * kind.block_bytes])
        start = first * kind.block_size
        flat[start : start + len(weights)] = cast(weights, dtype)
    return out
