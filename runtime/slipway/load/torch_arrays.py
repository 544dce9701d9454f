"""Between the host's arrays and torch: the same memory on both sides."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from slipway.load.arrays import (
    BF16,
    E4M3,
    E5M2,
    E8M0,
    FP16,
    FP32,
    INT8,
    INT32,
    INT64,
    NARROW,
    UINT8,
    Array,
    DType,
)
from slipway.load.errors import LoadError

_TYPES = {
    FP32: torch.float32,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
    E8M0: torch.float8_e8m0fnu,
    INT8: torch.int8,
    UINT8: torch.uint8,
    INT32: torch.int32,
    INT64: torch.int64,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.bool_): torch.bool,
}
_ARRAYS = {kind: dtype for dtype, kind in _TYPES.items()}
_WORDS = {1: (np.dtype(np.uint8), torch.uint8), 2: (np.dtype(np.int16), torch.int16)}
"""What types that only one side knows pass as, by their size."""


def torch_type(dtype: DType) -> torch.dtype:
    return _TYPES[dtype]


def array_type(kind: torch.dtype) -> DType:
    """Raises LoadError for types that no host array has."""
    if kind not in _ARRAYS:
        raise LoadError(
            "UnsupportedFormat",
            f"A tensor is stored as {str(kind).removeprefix('torch.')}, which is not supported.",
            hint="Use a checkpoint in bfloat16, float16 or float32.",
            argument="model",
        )
    return _ARRAYS[kind]


def tensor(array: Array) -> Tensor:
    """The array as a tensor over the same memory; nobody writes to what was read from a file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if array.dtype not in NARROW:
            return torch.from_numpy(array)
        words, _ = _WORDS[array.dtype.itemsize]
        return torch.from_numpy(array.view(words)).view(_TYPES[array.dtype])


def array(given: Tensor) -> Array:
    """A tensor on the host as an array over the same memory."""
    given = given.detach()
    dtype = _ARRAYS.get(given.dtype, FP32)
    if dtype not in NARROW:
        plain: Array = given.numpy()
        return plain
    _, words = _WORDS[dtype.itemsize]
    return given.view(words).numpy().view(dtype)
