"""Low-rank adapters as an operation of the program reads them: packed, without the zeros between segments."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

import numpy as np

from slipway_kernels.cpu.arrays import BF16, FP32, Array
from slipway_kernels.cpu.binding import AdapterStruct, Floats, Ints
from slipway_kernels.cpu.memory import Memory

SPAN = np.dtype([("at", "i4"), ("first", "i4"), ("steps", "i4")])
"""`sw_span` of slipway.h."""
_LINE = 64


class Piece(NamedTuple):
    """What one matrix adds to some outputs of a product: b · (a · x).

    a     [r, k], or the rows of it that are dealt to a rank; of an embedding [tokens, r], the rows that stand
          for a · x
    b     [outputs, r], which has the scaling
    rows  [outputs]  of the product
    """

    a: Array
    b: Array
    rows: Ints


class LowRank:
    """What an adapter adds to one product [*, n] of rows [*, k], or to an embedding [*, n].

    Pieces have their columns of A · x beside each other, and sixteen outputs multiply those of their own
    pieces alone. Made in any thread; `together` gives it memory for the kernels.
    """

    def __init__(
        self,
        n: int,
        dtype: str,
        pieces: Sequence[Piece],
        bias: Floats | None = None,
        *,
        embedding: bool = False,
        dealt: tuple[int, int] = (0, 1),
    ) -> None:
        """bias: [n], added to the outputs. dealt: the first row of each A that is here, and to how many ranks
        rows go in turn. Raises ValueError for pieces that do not fit each other."""
        self.n = n
        self.k = 0 if embedding or not pieces else pieces[0].a.shape[1]
        element, step = (BF16, 2) if dtype == "bf16" else (FP32, 1)
        first, each = dealt
        ranks = [piece.b.shape[1] for piece in pieces]
        for piece, rank in zip(pieces, ranks, strict=True):
            own = len(range(first, rank, each))
            wanted = (piece.a.shape[0], rank) if embedding else (own, self.k)
            if piece.a.shape != wanted or len(piece.b) != len(piece.rows):
                raise ValueError(
                    f"An adapter's factors of shape {piece.a.shape} and {piece.b.shape} do not fit each "
                    f"other, {len(piece.rows)} outputs and rows of {self.k}."
                )
        together = lcm(step, each)  # so that column c of A · x is column c // each of rank c % each
        starts = np.cumsum([0, *(-(-rank // together) * together for rank in ranks)])
        self.width, self.part = (int(-(-one // 16) * 16) for one in (starts[-1], starts[-1] // each))
        columns = [(int(start), int(start) + rank) for start, rank in zip(starts, ranks, strict=False)]
        self._spans = np.zeros(-(-n // 16), SPAN)
        self._arrays: dict[str, Array] = {"spans": self._spans}
        if embedding:
            self._arrays["a"] = _table(pieces, columns, self.width, element)
        else:
            here = [int(start) // each for start in starts]
            self._arrays["a"] = _shrinking(pieces, here, self.part, self.k, element, step)
        self._arrays["b"] = self._expanding(pieces, columns, element, step)
        if bias is not None:
            self._arrays["bias"] = np.zeros(len(self._spans) * 16, np.float32)
            self._arrays["bias"][:n] = bias
        self.nbytes = sum(_lines(array.nbytes) for array in self._arrays.values())
        """In whole cache lines."""
        self._struct = AdapterStruct(width=self.width, part=self.part)
        self._memory: Memory | None = None

    @property
    def placed(self) -> AdapterStruct:
        """What the kernels read. Raises ValueError before `together` has given it memory."""
        if self._memory is None:
            raise ValueError("An adapter has no memory yet: `together` gives it some.")
        return self._struct

    def move_to(self, memory: Memory, at: int) -> None:
        """Lie there from now on."""
        self._memory = memory
        for name, array in self._arrays.items():
            ctypes.memmove(at, array.ctypes.data, array.nbytes)
            setattr(self._struct, name, at)
            at += _lines(array.nbytes)
        self._arrays.clear()

    def _expanding(
        self, pieces: Sequence[Piece], columns: Sequence[tuple[int, int]], element: np.dtype, step: int
    ) -> Array:
        """B, and which of its steps each sixteen outputs have."""
        members: dict[int, int] = {}  # by sixteen outputs, a bit for each piece that has some of them
        touched = [np.unique(piece.rows // 16) for piece in pieces]
        for bit, groups in enumerate(touched):
            for group in groups.tolist():
                members[group] = members.get(group, 0) | 1 << bit
        blocks, at = [], 0
        for member in sorted(set(members.values())):
            own = [index for index in range(len(pieces)) if member >> index & 1]
            groups = np.array(sorted(group for group, bits in members.items() if bits == member))
            first = columns[own[0]][0]
            steps = -(-(columns[own[-1]][1] - first) // step)
            block = np.zeros((len(groups), 16, steps * step), element)
            for index in own:
                rows, (begin, end) = pieces[index].rows, columns[index]
                inside = np.isin(rows // 16, groups)
                place = np.searchsorted(groups, rows[inside] // 16)
                block[place, rows[inside] % 16, begin - first : end - first] = pieces[index].b[inside]
            blocks.append(_by_steps(block, step))
            spans = np.empty(len(groups), SPAN)
            spans["at"], spans["first"], spans["steps"] = at + np.arange(len(groups)) * steps, first, steps
            self._spans[groups] = spans
            at += len(groups) * steps
        return np.concatenate(blocks) if blocks else np.zeros(0, element)


def together(adapters: Sequence[LowRank]) -> Memory:
    """Give all of them one piece of memory: a mapping for each adapter, and not for each of its products."""
    memory = Memory(sum(adapter.nbytes for adapter in adapters))
    at = memory.address
    for adapter in adapters:
        adapter.move_to(memory, at)
        at += adapter.nbytes
    return memory


def _shrinking(
    pieces: Sequence[Piece],
    starts: Sequence[int],
    width: int,
    k: int,
    element: np.dtype,
    step: int,
) -> Array:
    low = np.zeros((width, -(-k // step) * step), element)
    for piece, start in zip(pieces, starts, strict=False):
        low[start : start + len(piece.a), :k] = piece.a
    return _by_steps(low.reshape(width // 16, 16, low.shape[1]), step)


def _table(
    pieces: Sequence[Piece], columns: Sequence[tuple[int, int]], width: int, element: np.dtype
) -> Array:
    table = np.zeros((len(pieces[0].a) if pieces else 0, width), element)
    for piece, (begin, end) in zip(pieces, columns, strict=True):
        table[:, begin:end] = piece.a
    return table.ravel()


def _by_steps(blocks: Array, step: int) -> Array:
    """[blocks, 16, k] → [blocks][k / step][16][step]"""
    count, lanes, k = blocks.shape
    # Moved as words: numpy copies the narrow types of ml_dtypes one by one.
    words = blocks.view(np.uint32).reshape(count, lanes, k // step)
    return np.ascontiguousarray(words.transpose(0, 2, 1)).view(blocks.dtype).ravel()


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE
