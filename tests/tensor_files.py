"""Tensors by name as arrays, those of bfloat16 and fp8 too: in files, and as a checkpoint reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from slipway.load.arrays import FP32, Array, DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.quantized.tensors import in_type
from slipway.load.safetensors import DTYPES

Tensors = dict[str, np.ndarray]


def load(file: Path) -> Tensors:
    """Of safetensors; the library's own function knows no fp8."""
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    table = json.loads(content[8:begin])
    table.pop("__metadata__", None)
    found: Tensors = {}
    for name, entry in table.items():
        first, end = entry["data_offsets"]
        octets = np.frombuffer(bytearray(content[begin + first : begin + end]), np.uint8)
        found[name] = octets.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return found


def save(tensors: Mapping[str, np.ndarray], file: Path) -> None:
    """As safetensors, in the order of rows whatever an array's own: the library writes memory as it lies."""
    save_file({name: np.asarray(one, order="C") for name, one in tensors.items()}, file, {"format": "pt"})


def pickle(tensors: Mapping[str, np.ndarray], file: Path) -> None:
    """As PyTorch's own file, which needs torch."""
    import torch

    from slipway.load.torch_arrays import tensor

    torch.save({name: tensor(np.asarray(one, order="C")) for name, one in tensors.items()}, file)


def numbers_of(checkpoint: Checkpoint, dtype: DType = FP32) -> Iterator[tuple[str, Array]]:
    """Name and plain weights of a type, one after another; integers keep theirs."""
    return ((name, in_type(stored.read(), dtype)) for name, stored in checkpoint.stored(dtype))


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Of one type, and every number equal."""
    return one.dtype == other.dtype and np.array_equal(one, other)
