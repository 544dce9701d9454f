"""Matrices that multiply the same input, laid beneath each other so that few products do it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from slipway.load.quantized.tensors import Quantized
from slipway.schemes.scheme import NewScheme, PackedScheme, Scheme
from slipway_kernels.cpu import Weight

GATE_ROWS = 16
"""Gate and up alternate in runs of this many rows, so that a product finishes both halves of an output."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One matrix of the checkpoint and its rows of the fused one.

    rows  [n]  int32
    """

    name: str
    rows: Tensor
    scheme: NewScheme


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring segments of one scheme, which are one product. `column`: of its first output."""

    scheme: Scheme
    column: int

    @property
    def packed(self) -> Weight:
        """What a lowered program multiplies by, on CPU."""
        return cast(PackedScheme, self.scheme).packed


class FusedLinear:
    """[n, k], made of segments that are loaded by name; `bias` is one fp32 vector [n] over all of them.

    Segments of one scheme share a matrix from the start: fusing them after loading would hold them twice.
    """

    def __init__(self, k: int, segments: Sequence[Segment], *, n: int = 0, bias: bool = False) -> None:
        self.k = k
        self.n = n or sum(len(segment.rows) for segment in segments)
        self.bias = torch.zeros(self.n) if bias else None  # [n]
        self.segments = {segment.name: segment for segment in segments}
        self._part_of: dict[str, Part] = {}
        parts: list[Part] = []
        for place, segment in enumerate(segments):
            if place == 0 or segment.scheme != segments[place - 1].scheme:
                parts.append(Part(segment.scheme(), int(segment.rows[0])))
            self._part_of[segment.name] = parts[-1]
        self.parts = tuple(parts)
        ends = [*(part.column for part in parts[1:]), self.n]
        for part, end in zip(parts, ends, strict=True):
            part.scheme.create((end - part.column, k))

    def load(self, name: str, tensor: Tensor | Quantized) -> None:
        """Place the weight [rows, k] or the bias [rows] of a segment."""
        rows = self.segments[name].rows
        if isinstance(tensor, Tensor) and tensor.ndim == 1 and self.bias is not None:
            self.bias[rows.long()] = tensor.float()
        else:
            part = self._part_of[name]
            part.scheme.load(rows - part.column, tensor)

    def finish(self, device: torch.device, bias_dtype: torch.dtype = torch.float32) -> None:
        """All segments are loaded; the bias goes to `device`, in the type in which it is added there."""
        if self.bias is not None:
            self.bias = self.bias.to(device, bias_dtype)
        for part in self.parts:
            part.scheme.finish(device)

    def products(self) -> Iterator[tuple[Part, Tensor | None]]:
        """Each part with its piece of the bias."""
        ends = [*(part.column for part in self.parts[1:]), self.n]
        for part, end in zip(self.parts, ends, strict=True):
            yield part, None if self.bias is None else self.bias[part.column : end]

    @property
    def whole(self) -> Weight:
        """The matrix of a layer whose segments have one scheme. Raises ValueError where there are several."""
        if len(self.parts) != 1:
            raise ValueError(
                f"{', '.join(self.segments)} lie in {len(self.parts)} matrices, where one product is wanted: "
                "give them one scheme."
            )
        return self.parts[0].packed

    def apply(self, x: Tensor) -> Tensor:
        """x [m, k] → [m, n]."""
        return self.side_by_side(lambda scheme, bias: scheme.apply(x, bias))

    def side_by_side(self, product: Callable[[Scheme, Tensor | None], Tensor]) -> Tensor:
        """Each part's product, given its scheme and its bias: [m, n]."""
        results = [product(part.scheme, bias) for part, bias in self.products()]
        return results[0] if len(results) == 1 else torch.cat(results, dim=-1)


def stacked(
    k: int, sizes: Mapping[str, int], scheme: NewScheme | Mapping[str, NewScheme], *, bias: bool = False
) -> FusedLinear:
    """Segments of these numbers of rows, one after another, of one scheme or each of its own."""
    segments, start = [], 0
    for name, size in sizes.items():
        own = scheme[name] if isinstance(scheme, Mapping) else scheme
        segments.append(Segment(name, torch.arange(start, start + size, dtype=torch.int32), own))
        start += size
    return FusedLinear(k, segments, bias=bias)


def gated(
    k: int, intermediate: int, scheme: NewScheme, *, gate: str = "gate", up: str = "up", bias: bool = False
) -> FusedLinear:
    """Gate and up, alternating in runs of 16 rows; each is padded with zeros to whole runs.

    They are one matrix, so they have one scheme.
    """
    row = torch.arange(intermediate, dtype=torch.int32)
    place = row // GATE_ROWS * (2 * GATE_ROWS) + row % GATE_ROWS
    segments = [Segment(gate, place, scheme), Segment(up, place + GATE_ROWS, scheme)]
    return FusedLinear(k, segments, n=-(-intermediate // GATE_ROWS) * 2 * GATE_ROWS, bias=bias)
