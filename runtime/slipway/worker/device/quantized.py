"""Quantized matrices as tensors: those of the host's arrays, and plain ones rounded on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.arrays import Array
from slipway.load.cut import ALL, Part, numbered, regrouped
from slipway.load.quantized.form import ScaledForm
from slipway.load.quantized.tensors import Grouped, Quantized, Scaled, Unquantized
from slipway.load.torch_arrays import tensor, torch_type

E4M3_LARGEST = 448.0
PIECE = 1 << 16
"""Weights that are converted at once on the host: in fp32 they fit the second-level cache."""


@dataclass(frozen=True, slots=True)
class GroupedTensors:
    """As `Grouped`."""

    bits: int
    group: int
    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None
    order: Tensor | None = None

    def dequantized(self) -> Tensor:
        """[n, k] fp32, its columns in the original order."""
        weights = self.codes.float()
        if self.minimums is None and self.bits == 4:
            weights -= 8
        weights *= self.scales.float().repeat_interleave(self.group, dim=1)
        if self.minimums is not None:
            weights += self.minimums.float().repeat_interleave(self.group, dim=1)
        return weights if self.order is None else weights[:, torch.argsort(self.order)]

    def cut(self, columns: Part) -> GroupedTensors:
        """These columns."""
        group, groups = regrouped(numbered(columns, self.codes.shape[1]) // self.group)
        minimums = None if self.minimums is None else self.minimums[:, groups]
        return GroupedTensors(self.bits, group, self.codes[:, columns], self.scales[:, groups], minimums)


@dataclass(frozen=True, slots=True)
class ScaledTensors:
    """As `Scaled`, without a scale of activations."""

    values: Tensor
    scales: Tensor
    block: tuple[int, int] | None = None

    def dequantized(self) -> Tensor:
        """[n, k] fp32"""
        n, k = self.values.shape
        if self.block is None:
            return self.values.float() * self.scales.float().reshape(-1, 1)
        rows, columns = self.block
        scales = self.scales.float().repeat_interleave(rows, dim=0)[:n]
        return self.values.float() * scales.repeat_interleave(columns, dim=1)[:, :k]

    def cut(self, columns: Part) -> ScaledTensors:
        """These columns, of a matrix whose scales are its rows'."""
        return ScaledTensors(self.values[:, columns], self.scales)


def as_tensors(matrix: Array | Tensor | Quantized) -> Tensor | GroupedTensors | ScaledTensors:
    """Over the same memory; what is to be quantized is, where it lies."""
    if isinstance(matrix, Unquantized):
        plain, form = _plain(matrix.matrix).to(torch_type(matrix.through)), matrix.form
        made: GroupedTensors | ScaledTensors = (
            fp8_by_row(plain) if isinstance(form, ScaledForm) else by_group(plain, form.bits, form.group)
        )
        return made if matrix.columns is ALL else made.cut(matrix.columns)
    if isinstance(matrix, Grouped):
        minimums = None if matrix.minimums is None else tensor(matrix.minimums)
        order = None if matrix.order is None else tensor(matrix.order)
        return GroupedTensors(
            matrix.bits, matrix.group, tensor(matrix.codes), tensor(matrix.scales), minimums, order
        )
    if isinstance(matrix, Scaled):
        return ScaledTensors(tensor(matrix.values), tensor(matrix.scales), matrix.block)
    return _plain(matrix)


def _plain(matrix: Array | Tensor) -> Tensor:
    return matrix if isinstance(matrix, Tensor) else tensor(matrix)


def fp8_by_row(matrix: Tensor) -> ScaledTensors:
    """e4m3 with a scale for each row; activations are to be scaled token by token."""
    values = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn, device=matrix.device)
    scales = torch.empty(len(matrix), device=matrix.device)  # [n]
    for rows, part in _pieces(matrix):
        scales[rows] = _positive(part.abs().amax(1) / E4M3_LARGEST)
        part /= scales[rows, None]
        values[rows] = part.clamp_(-E4M3_LARGEST, E4M3_LARGEST).to(values.dtype)
    return ScaledTensors(values, scales)


def by_group(matrix: Tensor, bits: int, group: int) -> GroupedTensors:
    """Eight bits: symmetric, -127 to 127; four: from the least to the largest of each group in 15 steps."""
    n, k = matrix.shape
    kind, largest = (torch.uint8, 15) if bits == 4 else (torch.int8, 127)
    codes = torch.empty(n, k // group, group, dtype=kind, device=matrix.device)
    scales = torch.empty(n, k // group, device=matrix.device)
    minimums = torch.empty_like(scales) if bits == 4 else None
    for rows, piece in _pieces(matrix):
        part = piece.view(-1, k // group, group)
        if minimums is None:
            scales[rows] = _positive(part.abs().amax(2) / largest)
        else:
            minimums[rows] = part.amin(2)
            scales[rows] = _positive((part.amax(2) - minimums[rows]) / largest)
            part -= minimums[rows, :, None]
        part /= scales[rows, :, None]
        codes[rows] = part.round_().clamp_(-largest, largest).to(kind)
    return GroupedTensors(bits, group, codes.view(n, k), scales, minimums)


def _pieces(matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some rows at a time, in fp32 and to be written to: on CPU what is made of them stays in its caches."""
    count = max(1, PIECE // matrix.shape[1]) if matrix.device.type == "cpu" else max(1, len(matrix))
    for first in range(0, len(matrix), count):
        rows = slice(first, min(first + count, len(matrix)))
        yield rows, matrix[rows].to(torch.float32, copy=True)


def _positive(scales: Tensor) -> Tensor:
    """Where all weights are equal any scale will do, but 0."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))
