"""Matrices that multiply the same input, laid beneath each other so that few products do it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import numpy as np

from slipway.load.arrays import Array, Floats, Ints
from slipway.load.quantized.tensors import Quantized
from slipway.schemes.packed import CpuScheme
from slipway.schemes.scheme import NewScheme, Rows, Scheme
from slipway_kernels.cpu import Weight

GATE_ROWS = 16
"""Gate and up alternate in runs of this many rows, so that a product finishes both halves of an output."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One matrix of the checkpoint and its rows of the fused one.

    rows  [n]  int32
    """

    name: str
    rows: Ints
    scheme: NewScheme


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring segments of one scheme, which are one product: of outputs `column` to `end`."""

    scheme: Scheme
    column: int
    end: int

    @property
    def packed(self) -> Weight:
        """What a lowered program multiplies by, on CPU."""
        return cast(CpuScheme, self.scheme).packed


class FusedLinear:
    """[n, k], made of segments that are loaded by name; `bias` is one fp32 vector [n] over all of them.

    Segments of one scheme share a matrix from the start: fusing them after loading would hold them twice.
    """

    def __init__(self, k: int, segments: Sequence[Segment], *, n: int = 0, bias: bool = False) -> None:
        self.k = k
        self.n = n or sum(len(segment.rows) for segment in segments)
        self.bias: Any = np.zeros(self.n, np.float32) if bias else None  # [n]
        self.segments = {segment.name: segment for segment in segments}
        self.parts: list[Part] = []
        self._part_of: dict[str, Part] = {}
        runs = [list(run) for _, run in groupby(segments, key=lambda segment: segment.scheme)]
        starts = [int(run[0].rows[0]) for run in runs]
        for run, start, end in zip(runs, starts, [*starts, self.n][1:], strict=True):
            part = Part(run[0].scheme(), start, end)
            part.scheme.create((end - start, k))
            self.parts.append(part)
            self._part_of |= {segment.name: part for segment in run}

    def load(self, name: str, given: Array | Quantized) -> None:
        """Place the weight [rows, k] or the bias [rows] of a segment."""
        rows = self.segments[name].rows
        if not isinstance(given, Quantized) and given.ndim == 1 and self.bias is not None:
            self.bias[rows] = given
        else:
            part = self._part_of[name]
            part.scheme.load(rows - part.column, given)

    def finish(self, placed: Callable[[Floats], Any]) -> None:
        """All segments are loaded; the bias becomes what `placed` makes of it."""
        if self.bias is not None:
            self.bias = placed(self.bias)
        for part in self.parts:
            part.scheme.finish()

    def products(self) -> Iterator[tuple[Part, Rows | None]]:
        """Each part with its piece of the bias."""
        for part in self.parts:
            yield part, None if self.bias is None else self.bias[part.column : part.end]

    @property
    def whole(self) -> Weight:
        """The matrix of a layer whose segments have one scheme. Raises ValueError where there are several."""
        if len(self.parts) != 1:
            raise ValueError(
                f"{', '.join(self.segments)} lie in {len(self.parts)} matrices, where one product is wanted: "
                "give them one scheme."
            )
        return self.parts[0].packed


def stacked(
    k: int, sizes: Mapping[str, int], schemes: Mapping[str, NewScheme], *, bias: bool = False
) -> FusedLinear:
    """Segments of these numbers of rows, one after another, each of its own scheme."""
    segments, start = [], 0
    for name, size in sizes.items():
        segments.append(Segment(name, np.arange(start, start + size, dtype=np.int32), schemes[name]))
        start += size
    return FusedLinear(k, segments, bias=bias)


def gated(
    k: int, sizes: Mapping[str, int], schemes: Mapping[str, NewScheme], *, bias: bool = False
) -> FusedLinear:
    """Gate and up, of one size, alternating in runs of 16 rows; each is padded with zeros to whole runs.

    Of two schemes they are two matrices, one above the other.
    """
    (gate, up), intermediate = sizes, max(sizes.values())
    scheme = schemes[gate]
    if schemes[up] is not scheme:
        return stacked(k, sizes, schemes, bias=bias)
    row = np.arange(intermediate, dtype=np.int32)
    place = row // GATE_ROWS * (2 * GATE_ROWS) + row % GATE_ROWS
    segments = [Segment(gate, place, scheme), Segment(up, place + GATE_ROWS, scheme)]
    return FusedLinear(k, segments, n=-(-intermediate // GATE_ROWS) * 2 * GATE_ROWS, bias=bias)
