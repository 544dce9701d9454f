"""Quantizes the linear layers of a plain checkpoint as they are read, by rounding to nearest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Grouped, Quantized, Scaled

E4M3_LARGEST = 448.0
GROUP = 32
"""Columns that share a scale: the products on CPU quantize activations by as many."""

PIECE = 1 << 16
"""Weights that are converted at once: in fp32 they fit the second-level cache."""

_LEFT_ALONE = frozenset(("embedding", "head", "router", "shared_scale"))
"""Matrices whose few numbers decide much."""


@dataclass(frozen=True, slots=True)
class OnTheFly:
    """What `--quantization` asks for by a name of `ON_THE_FLY`."""

    name: str
    bits: int
    floats: bool = False
    experts_only: bool = False

    def form(self, role: str, shape: tuple[int, ...]) -> Form | None:
        """How a matrix [n, k] of this role is held; None where it stays plain."""
        if len(shape) != 2 or role in _LEFT_ALONE or (self.experts_only and "expert" not in role):
            return None
        if self.floats:
            return ScaledForm(torch.float8_e4m3fn)
        if self.experts_only:
            return GroupedForm(self.bits, shape[1], scales=torch.float32)
        if shape[1] % GROUP:
            return None
        return GroupedForm(self.bits, GROUP, minimums=self.bits == 4, scales=torch.float32)

    def quantized(self, matrix: Tensor, form: Form) -> Quantized:
        """matrix [n, k] of any float type, in the form that `form` gave."""
        if isinstance(form, ScaledForm):
            return fp8_by_row(matrix)
        return four_bits(matrix, form.group) if form.bits == 4 else eight_bits(matrix, form.group)


ON_THE_FLY: Mapping[str, OnTheFly] = {
    made.name: made
    for made in (
        OnTheFly("fp8", 8, floats=True),
        OnTheFly("ptpc_fp8", 8, floats=True),
        OnTheFly("int8", 8),
        OnTheFly("int4", 4),
        OnTheFly("experts_int8", 8, experts_only=True),
    )
}
"""What plain weights can be made by name; fp8 has a scale for each row, as ptpc_fp8 says in full."""


def fp8_by_row(matrix: Tensor) -> Scaled:
    """e4m3 with a scale for each row; activations are to be scaled token by token."""
    values = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn, device=matrix.device)
    scales = torch.empty(len(matrix), device=matrix.device)  # [n]
    for rows, part in _pieces(matrix):
        scales[rows] = _positive(part.abs().amax(1) / E4M3_LARGEST)
        part /= scales[rows, None]
        values[rows] = part.clamp_(-E4M3_LARGEST, E4M3_LARGEST).to(values.dtype)
    return Scaled(values, scales)


def eight_bits(matrix: Tensor, group: int) -> Grouped:
    """Symmetric, -127 to 127."""
    n, k = matrix.shape
    codes = torch.empty(n, k // group, group, dtype=torch.int8, device=matrix.device)
    scales = torch.empty(n, k // group, device=matrix.device)
    for rows, piece in _pieces(matrix):
        part = piece.view(-1, k // group, group)
        scales[rows] = _positive(part.abs().amax(2) / 127)
        part /= scales[rows, :, None]
        codes[rows] = part.round_().to(torch.int8)
    return Grouped(8, group, codes.view(n, k), scales)


def four_bits(matrix: Tensor, group: int) -> Grouped:
    """From the least to the largest weight of each group in fifteen steps."""
    n, k = matrix.shape
    codes = torch.empty(n, k // group, group, dtype=torch.uint8, device=matrix.device)
    scales = torch.empty(n, k // group, device=matrix.device)
    minimums = torch.empty_like(scales)
    for rows, piece in _pieces(matrix):
        part = piece.view(-1, k // group, group)
        minimums[rows] = part.amin(2)
        scales[rows] = _positive((part.amax(2) - minimums[rows]) / 15)
        part -= minimums[rows, :, None]
        part /= scales[rows, :, None]
        codes[rows] = part.round_().clamp_(0, 15).to(torch.uint8)
    return Grouped(4, group, codes.view(n, k), scales, minimums)


def _pieces(matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some rows at a time, in fp32 and to be written to: on CPU what is made of them stays in its caches."""
    count = max(1, PIECE // matrix.shape[1]) if matrix.device.type == "cpu" else max(1, len(matrix))
    for first in range(0, len(matrix), count):
        rows = slice(first, min(first + count, len(matrix)))
        yield rows, matrix[rows].to(torch.float32, copy=True)


def _positive(scales: Tensor) -> Tensor:
    """Where all weights are equal any scale will do, but 0."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))
