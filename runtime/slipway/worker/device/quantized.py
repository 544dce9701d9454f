"""Quantized matrices as tensors: those of the host's arrays, and plain ones rounded on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.arrays import Array
from slipway.load.cut import ALL, Part, numbered, regrouped
from slipway.load.quantized.form import ScaledForm
from slipway.load.quantized.tensors import Quantized, Unquantized
from slipway.load.torch_arrays import tensor, torch_type

LARGEST = {torch.uint8: 15, torch.int8: 127, torch.float8_e4m3fn: 448}
"""Of the numbers that each type holds here."""
PIECE = 1 << 16
"""Weights that are converted at once on the host: in fp32 they fit the second-level cache."""


@dataclass(frozen=True, slots=True)
class QuantizedTensors:
    """As the host's `Source`, field by field."""

    numbers: Tensor
    scales: Tensor
    minimums: Tensor | None
    block: tuple[int, int]
    order: Tensor | None = None

    def dequantized(self) -> Tensor:
        """[n, k] fp32, its columns in the original order."""
        weights = self.numbers.float()
        if self.minimums is None and self.numbers.dtype is torch.uint8:
            weights -= 8
        weights *= self._spread(self.scales)
        if self.minimums is not None:
            weights += self._spread(self.minimums)
        return weights if self.order is None else weights[:, torch.argsort(self.order)]

    def _spread(self, factors: Tensor) -> Tensor:
        """One for each number, but where one that all share does."""
        for axis, size in enumerate(self.block):
            if factors.shape[axis] > 1:
                factors = factors.repeat_interleave(size, axis).narrow(axis, 0, self.numbers.shape[axis])
        return factors

    def cut(self, columns: Part) -> QuantizedTensors:
        """These columns, of a matrix that has no order of its own and whose rows have scales of their own."""
        group, groups = regrouped(numbered(columns, self.numbers.shape[1]) // self.block[1])
        minimums = None if self.minimums is None else self.minimums[:, groups]
        return QuantizedTensors(self.numbers[:, columns], self.scales[:, groups], minimums, (1, group))


def as_tensors(matrix: Array | Tensor | Quantized) -> Tensor | QuantizedTensors:
    """Over the same memory, but for scales; what is to be quantized is, where it lies."""
    if isinstance(matrix, Unquantized):
        plain, form = _plain(matrix.matrix).to(torch_type(matrix.through)), matrix.form
        if isinstance(form, ScaledForm):
            made = rounded(plain, torch_type(form.values), plain.shape[1])
        else:
            made = rounded(plain, torch.uint8 if form.bits == 4 else torch.int8, form.group)
        return made if matrix.columns is ALL else made.cut(matrix.columns)
    if isinstance(matrix, Quantized):
        source = matrix.source()
        scales, minimums, order = (
            None if part is None else tensor(part) for part in (source.scales, source.minimums, source.order)
        )
        assert scales is not None
        return QuantizedTensors(tensor(source.numbers), scales, minimums, source.block, order)
    return _plain(matrix)


def _plain(matrix: Array | Tensor) -> Tensor:
    return matrix if isinstance(matrix, Tensor) else tensor(matrix)


def rounded(matrix: Tensor, kind: torch.dtype, group: int) -> QuantizedTensors:
    """To the nearest, with a scale for each `group` columns.

    kind  uint8: four bits, from the least to the largest of each group in 15 steps; int8 and e4m3: symmetric
    """
    (n, k), largest = matrix.shape, LARGEST[kind]
    numbers = torch.empty(n, k // group, group, dtype=kind, device=matrix.device)
    scales = torch.empty(n, k // group, device=matrix.device)
    minimums = torch.empty_like(scales) if kind is torch.uint8 else None
    for rows, piece in _pieces(matrix):
        part = piece.view(-1, k // group, group)
        if minimums is None:
            scales[rows] = _positive(part.abs().amax(2) / largest)
        else:
            minimums[rows] = part.amin(2)
            scales[rows] = _positive((part.amax(2) - minimums[rows]) / largest)
            part -= minimums[rows, :, None]
        part /= scales[rows, :, None]
        if not kind.is_floating_point:
            part.round_()
        numbers[rows] = part.clamp_(-largest, largest).to(kind)
    return QuantizedTensors(numbers.view(n, k), scales, minimums, (1, group))


def _pieces(matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some rows at a time, in fp32 and to be written to: on CPU what is made of them stays in its caches."""
    count = max(1, PIECE // matrix.shape[1]) if matrix.device.type == "cpu" else max(1, len(matrix))
    for first in range(0, len(matrix), count):
        rows = slice(first, min(first + count, len(matrix)))
        yield rows, matrix[rows].to(torch.float32, copy=True)


def _positive(scales: Tensor) -> Tensor:
    """Where all weights are equal any scale will do, but 0."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))
