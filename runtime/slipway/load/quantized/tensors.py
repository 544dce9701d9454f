"""A quantized matrix as its checkpoint gives it, before any scheme packs it for a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grouped:
    """Small integers with a scale for each group of columns: w = scale · code + minimum.

    codes     [n, k]           uint8 for 4 bits (0 to 15), int8 for 8 bits (-128 to 127)
    scales    [n, k / group]   fp16, bf16 or fp32
    minimums  as scales, or None where the form is symmetric: 4-bit codes then mean code - 8
    order     [k]  int32       original column of each stored one (act-order); None: they stand in order
    """

    bits: int
    group: int
    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def take(self, rows: Tensor | slice) -> Grouped:
        """The same form of some rows: a shard, or a permutation."""
        minimums = None if self.minimums is None else self.minimums[rows]
        return Grouped(self.bits, self.group, self.codes[rows], self.scales[rows], minimums, self.order)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """[n, k], its columns in the original order."""
        codes = self.codes.float()
        if self.minimums is None and self.bits == 4:
            codes -= 8
        weights = codes * self.scales.float().repeat_interleave(self.group, dim=1)
        if self.minimums is not None:
            weights += self.minimums.float().repeat_interleave(self.group, dim=1)
        if self.order is not None:
            weights = weights[:, torch.argsort(self.order)]
        return weights.to(dtype)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Eight-bit numbers that are multiplied as they are, by activations of the same type.

    values       [n, k]  float8_e4m3fn or int8
    scales       [1] or [n] or, block by block, [n / rows, k / columns]  fp32
    input_scale  []  fp32 of all activations, or None where each token brings its own
    block        rows and columns that share a scale, or None
    """

    values: Tensor
    scales: Tensor
    input_scale: Tensor | None = None
    block: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """[n, k]"""
        n, k = self.shape
        if self.block is None:
            return (self.values.float() * self.scales.float().reshape(-1, 1)).to(dtype)
        rows, columns = self.block
        scales = self.scales.float().repeat_interleave(rows, dim=0)[:n]
        return (self.values.float() * scales.repeat_interleave(columns, dim=1)[:, :k]).to(dtype)

    def grouped(self) -> Grouped:
        """Integers, not scaled by blocks, with each row as one group."""
        n, k = self.shape
        return Grouped(8, k, self.values, self.scales.expand(n)[:, None])


Quantized = Grouped | Scaled
