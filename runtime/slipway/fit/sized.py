"""Matrices that are counted and not made, as a device would hold them. Imports no torch."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from slipway.load.arrays import FP32, Array, DType, Floats, Ints
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Quantized
from slipway.schemes.scheme import NewScheme, Rows, Scheme
from slipway.worker.device.forms import Arch, kept, kept_of_experts

_WORDS = 16
"""Words of 32 bits that a row of packed codes has in each block of columns."""


class SizedMatrix(Scheme):
    """Adds what a matrix takes to a count."""

    def __init__(self, form: Form | None, dtype: DType, counted: list[int]) -> None:
        self._form, self._dtype, self._counted = form, dtype, counted

    def create(self, shape: tuple[int, int]) -> None:
        match self._form:
            case None:
                size = prod(shape) * self._dtype.itemsize
            case ScaledForm():
                size = prod(shape) + FP32.itemsize * _scales(self._form, *shape)
            case GroupedForm():
                size = packed_bytes(self._form, *shape)
        self._counted.append(size)

    def load(self, rows: Ints, matrix: Array | Quantized) -> None:
        raise NotImplementedError("a matrix that is counted has no numbers")

    def apply(self, x: Rows, bias: Rows | None = None) -> Rows:
        raise NotImplementedError("a matrix that is counted has no numbers")

    def rows(self, ids: Rows) -> Rows:
        raise NotImplementedError("a matrix that is counted has no numbers")


class SizedSchemes:
    """In the place of a device's schemes: as `DeviceSchemes` they hold what `forms` keeps as it is stored.

    counted  bytes of each matrix that was made
    """

    gates_alternate = False

    def __init__(self, dtype: DType, arch: Arch) -> None:
        self.dtype = dtype
        self.counted: list[int] = []
        self._arch = arch
        self._made: dict[Form | None, NewScheme] = {}

    def placed(self, bias: Floats) -> Floats:
        return bias

    def drawn(self, shape: tuple[int, ...], seed: int) -> Any:
        raise NotImplementedError("a matrix that is counted has no numbers")

    def in_layer(self, number: int) -> SizedSchemes:
        return self

    def of(self, form: Form | None, *, row: int = 0, expert: bool = False) -> NewScheme:
        held = form if form is not None and self._keeps(form, row, expert) else None
        make = partial(SizedMatrix, held, self.dtype, self.counted)
        fuses = held is None or row % held.steps[0] == 0
        return self._made.setdefault(held, make) if fuses else make

    def _keeps(self, form: Form, row: int, expert: bool) -> bool:
        if expert:
            return kept_of_experts(form, self.dtype, row, self._arch)
        return kept(form, self.dtype, self._arch)


def _scales(form: ScaledForm, n: int, k: int) -> int:
    """Of a matrix [n, k]: one for each row, or for each block."""
    if form.block is None:
        return n
    high, wide = form.block
    return -(-n // high) * -(-k // wide)


def packed_bytes(form: GroupedForm, n: int, k: int) -> int:
    """Of codes in words, and a word for each group of columns: `linear_w4a16.layout` has them."""
    width = _WORDS * 32 // form.bits
    blocks, groups = -(-k // width), -(-k // form.group)
    if groups > 1 and form.group < width:
        groups = blocks * width // form.group
    order = 4 * k if form.order else 0
    return 4 * (blocks * n * _WORDS + groups * n + 1) + order
