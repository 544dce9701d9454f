"""What is known of a quantized matrix before it is read: enough to choose its scheme."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeGuard

import numpy as np

from slipway.load.arrays import FP16, DType, Ints
from slipway.load.cut import ALL, Part, numbered, regrouped
from slipway_kernels.cpu import BLOCK_TYPES


@dataclass(frozen=True, slots=True)
class GroupedForm:
    """Of a `Grouped`.

    bits, group  as there; a scale for the whole row has the row's length as its group
    minimums     whether there are any
    scales       their type
    order        bytes of `Grouped.order` (act-order); none: the columns stand in order
    blocks       the block type of GGUF in which they come
    """

    bits: int
    group: int
    minimums: bool = False
    scales: DType = FP16
    order: bytes = b""
    blocks: str = ""
    steps: ClassVar = (1, 1)
    """Rows and columns that a cut must not part."""

    @property
    def columns(self) -> Part:
        """The columns as they are stored, from left to right."""
        return np.frombuffer(self.order, np.int32) if self.order else ALL

    def groups_of(self, columns: Ints) -> Ints:
        """The group of each column."""
        places = np.argsort(np.frombuffer(self.order, np.int32))[columns] if self.order else columns
        return (places // self.group).astype(np.int32)

    def in_order(self) -> Self:
        """Once it has been dequantized nothing is left of the order."""
        return replace(self, order=b"")

    def cut(self, columns: Part) -> Self:
        """Of a matrix that is read with these columns."""
        if columns is ALL:
            return self
        end = columns.stop if isinstance(columns, slice) else columns.max() + 1
        group, _ = regrouped(self.groups_of(numbered(columns, end)))
        blocks = self.blocks if self.blocks and whole_blocks(columns, self.blocks) else ""
        return replace(self, group=group, order=b"", blocks=blocks)


def whole_blocks(columns: Part, name: str) -> TypeGuard[slice]:
    """Whether these columns of a matrix are whole blocks of a type of GGUF, one after another."""
    if not isinstance(columns, slice):
        return False
    size = BLOCK_TYPES[name].columns
    return columns.step in (None, 1) and not (columns.start or 0) % size and not (columns.stop or 0) % size


@dataclass(frozen=True, slots=True)
class ScaledForm:
    """Of a `Scaled`: type of the values, and rows and columns that share a scale.

    block   None where a scale is for a row or for the whole matrix
    static  whether one scale of all activations was measured beforehand
    """

    values: DType
    block: tuple[int, int] | None = None
    static: bool = False
    bits: ClassVar = 8
    columns: ClassVar[Part] = ALL

    @property
    def steps(self) -> tuple[int, int]:
        return self.block or (1, 1)

    def in_order(self) -> Self:
        return self

    def cut(self, columns: Part) -> Self:
        return self


Form = GroupedForm | ScaledForm
