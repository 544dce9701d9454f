"""From the bytes of a GGUF tensor to weights, exactly as ggml does it and in bounded memory."""

from __future__ import annotations

import numpy as np

from slipway.load.arrays import BF16, FP16, FP32, Array, DType, cast
from slipway.load.errors import LoadError
from slipway.load.gguf.types import GgmlType

CHUNK = 1 << 15
"""Weights decoded at once: they stay in the L2 cache."""
_PLAIN: dict[str, DType] = {"F32": FP32, "F16": FP16, "BF16": BF16, "F64": np.dtype(np.float64)}


def dequantize(kind: GgmlType, raw: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """A tensor's weights: those of block types in `dtype`, rounded once from fp32, others in their own type.

    raw      [n · block_bytes] uint8
    Returns  [*shape]; a view of `raw` where nothing is decoded.
    Raises LoadError for a type that holds no weights, or none that anybody decodes.
    """
    if kind.name in _PLAIN:
        return raw.view(_PLAIN[kind.name]).reshape(shape)
    import gguf  # 0.2 s, which files of plain and packed types never spend

    out = np.empty(shape, dtype)
    flat = out.reshape(-1)
    step = CHUNK // kind.block_size * kind.block_bytes
    try:
        for first in range(0, len(raw), step):
            weights = gguf.dequantize(raw[first : first + step], gguf.GGMLQuantizationType[kind.name])
            start = first // kind.block_bytes * kind.block_size
            flat[start : start + len(weights)] = cast(weights, dtype)
    except NotImplementedError:
        raise LoadError(
            "UnsupportedFormat",
            f"Weights of the GGUF type {kind.name} cannot be read.",
            hint="Quantize the model to a type that the gguf library decodes, such as Q4_K, Q6_K or Q8_0.",
        ) from None
    return out
