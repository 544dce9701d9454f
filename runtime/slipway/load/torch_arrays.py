"""Between the host's arrays and torch: the same memory on both sides. Both call a type by one name."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import torch
from torch import Tensor

from slipway.load.arrays import NARROW, Array, DType
from slipway.load.errors import LoadError
from slipway.load.safetensors import DTYPES

_KNOWN = {str(dtype) for dtype in DTYPES.values()}
_WORDS = {1: torch.uint8, 2: torch.int16}
"""What types that only one side knows pass as, by their size."""


@cache
def torch_type(dtype: DType) -> torch.dtype:
    kind: torch.dtype = getattr(torch, str(dtype))
    return kind


def array_type(kind: torch.dtype) -> DType:
    """Raises LoadError for types that no host array has."""
    name = str(kind).removeprefix("torch.")
    if name not in _KNOWN:
        raise LoadError(
            "UnsupportedFormat",
            f"A tensor is stored as {name}, which is not supported.",
            hint="Use a checkpoint in bfloat16, float16 or float32.",
        )
    return np.dtype(name)


def tensor(array: Array) -> Tensor:
    """The array as a tensor over the same memory; nobody writes to what was read from a file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if array.dtype not in NARROW:
            return torch.from_numpy(array)
        words = array_type(_WORDS[array.dtype.itemsize])
        return torch.from_numpy(array.view(words)).view(torch_type(array.dtype))


def array(given: Tensor) -> Array:
    """A tensor on the host as an array over the same memory."""
    given, dtype = given.detach(), array_type(given.dtype)
    words = given.view(_WORDS[given.itemsize]) if dtype in NARROW else given
    numbers: Array = words.numpy()
    return numbers.view(dtype)
