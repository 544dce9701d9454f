"""Weights as they are: bf16 or fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway.load.quantized.tensors import Quantized
from slipway_kernels.cpu import Packed, Threads, linear

KERNEL_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
"""What the kernels call the types that they compute in."""


class DenseScheme:
    """A bf16 or fp32 matrix, packed for products on CPU row by row as it is read.

    What the checkpoint has quantized is dequantized on the way.
    `threads` pack the weights and compute what `apply` is asked for; None leaves it to the caller's own.
    """

    packed: Packed

    def __init__(self, dtype: torch.dtype, threads: Threads | None = None) -> None:
        self._dtype = dtype
        self._threads = threads

    def create(self, shape: tuple[int, int]) -> None:
        self.packed = Packed(*shape, KERNEL_NAMES[self._dtype])

    def load(self, rows: Tensor, tensor: Tensor | Quantized) -> None:
        weights = tensor if isinstance(tensor, Tensor) else tensor.dequantized(self._dtype)
        self.packed.load_rows(weights, rows.numpy(), self._threads)

    def finish(self, device: torch.device) -> None:
        if device.type != "cpu":
            raise ValueError(f"dense weights are packed for CPU and cannot be finished for {device}")

    def apply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, self.packed, bias, self._threads)

    def rows(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.packed.rows(ids.to(torch.int32).numpy()))
