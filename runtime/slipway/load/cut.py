"""Which part of a matrix is read: a rank's shard, or its columns in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway.load.arrays import Array, Ints

if TYPE_CHECKING:
    from slipway.load.quantized.tensors import Quantized

Part = slice | Ints
"""Rows, or columns, by their number in the whole matrix."""
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is read of a matrix; of a vector, which has no columns, `rows` alone, and of one number that."""

    rows: Part = field(default_factory=lambda: ALL)
    columns: Part = field(default_factory=lambda: ALL)

    def of(self, numbers: Any) -> Any:
        """These of plain numbers, an array or a tensor [n, ...]."""
        part = numbers[self.rows] if numbers.ndim else numbers
        return part if part.ndim < 2 else part[:, self.columns]


WHOLE = Cut()


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint that is read when it is asked for, its cut and no more of it.

    shape  of the whole
    """

    shape: tuple[int, ...]
    of: Callable[[Cut], Array | Quantized]

    def read(self, cut: Cut = WHOLE) -> Array | Quantized:
        return self.of(cut)

    @classmethod
    def plain(cls, numbers: Any) -> Stored:
        """Of an array, or of a tensor where a device has drawn it."""
        return cls(tuple(numbers.shape), lambda cut: cut.of(numbers))


def numbered(part: Part, count: int) -> Ints:
    """The part of `count` rows or columns, one by one."""
    return np.arange(count, dtype=np.int32)[part]


def words_of(part: Part, count: int, each: int) -> tuple[slice, Part]:
    """Where a part of `count` numbers lies in words of `each`: those words, and the part counted in them."""
    if isinstance(part, slice):
        begin, end, _ = part.indices(count)
    else:
        begin, end = int(part.min()), int(part.max()) + 1
    first = begin // each * each
    inside = slice(begin - first, end - first) if isinstance(part, slice) else part - np.int32(first)
    return slice(begin // each, -(-end // each)), inside


def regrouped(groups: Ints) -> tuple[int, Ints]:
    """Columns that share scales, once they have been cut or stand in another order.

    groups  [k]  the group of each column
    Returns the most neighbours that share a group throughout, and the group of each of these runs.
    """
    borders = np.flatnonzero(np.diff(groups)) + 1
    size = int(np.gcd.reduce(np.append(borders, len(groups))))
    return size, groups[::size]
