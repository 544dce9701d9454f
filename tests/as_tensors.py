"""What a checkpoint gives, as tensors: for tests that compare it with torch's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from slipway.load.arrays import FP32, Array, DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.quantized.tensors import in_type
from slipway.load.torch_arrays import array, tensor


def numbers_of(checkpoint: Checkpoint, dtype: DType = FP32) -> Iterator[tuple[str, Array]]:
    """Name and plain weights of a type, one after another; integers keep theirs."""
    return ((name, in_type(stored.read(), dtype)) for name, stored in checkpoint.stored(dtype))


def tensors_of(checkpoint: Checkpoint, dtype: DType = FP32) -> dict[str, Tensor]:
    """By name, in that type."""
    return {name: tensor(weights) for name, weights in numbers_of(checkpoint, dtype)}


def arrays(pieces: Mapping[str, Tensor]) -> dict[str, Array]:
    """The same memory."""
    return {name: array(piece) for name, piece in pieces.items()}
