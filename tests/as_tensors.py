"""What a checkpoint gives, as tensors: for tests that compare it with torch's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from slipway.load.arrays import FP32, Array, DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.torch_arrays import array, tensor


def tensors_of(checkpoint: Checkpoint, dtype: DType = FP32) -> dict[str, Tensor]:
    """By name, in that type."""
    return {name: tensor(weights) for name, weights in checkpoint.tensors(dtype)}


def arrays(pieces: Mapping[str, Tensor]) -> dict[str, Array]:
    """The same memory."""
    return {name: array(piece) for name, piece in pieces.items()}
