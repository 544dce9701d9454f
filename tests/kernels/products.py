"""The kernels' products over tensors."""

from __future__ import annotations

from torch import Tensor

from slipway.load.torch_arrays import array, tensor
from slipway_kernels import cpu
from slipway_kernels.cpu import Threads, Weight


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, threads: Threads | None = None) -> Tensor:
    return tensor(cpu.linear(array(x), weight, None if bias is None else array(bias), threads))
