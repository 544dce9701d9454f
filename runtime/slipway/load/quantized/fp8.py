"""Checkpoints of eight-bit floats, as transformers, AutoFP8 and FBGEMM write them.

Format: Micikevicius et al. 2022, https://arxiv.org/abs/2209.05433; weights are e4m3. What is called
`weight_scale_inv` is the factor that undoes the scaling, as `weight_scale` is.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipway.load.arrays import E4M3, FP32, Array, cast
from slipway.load.quantized.form import ScaledForm
from slipway.load.quantized.layout import Pieces, check_piece, matrix, unfit
from slipway.load.quantized.tensors import Scaled


@dataclass(frozen=True, slots=True)
class Fp8Layout:
    """w = weight_scale · weight, for one, each row, or each block of the matrix.

    weight        [n, k]  e4m3
    weight_scale  [] or [1], [n] or [n, 1], or block by block [⌈n / rows⌉, ⌈k / columns⌉]
    input_scale   [] or [1]; where activations are quantized by a scale that was measured beforehand
    """

    block: tuple[int, int] | None = None
    static: bool = False
    scale: str = "weight_scale"
    """What the file calls weight_scale."""
    input_scale: str = "input_scale"
    """What the file calls input_scale."""

    @property
    def required(self) -> tuple[str, ...]:
        return ("weight", self.scale, self.input_scale) if self.static else ("weight", self.scale)

    @property
    def optional(self) -> tuple[str, ...]:
        unused = ("input_scale_ub",)  # FBGEMM's bound, for kernels that clip
        return unused if self.static else (self.input_scale, *unused)

    def form(self, name: str, pieces: Pieces) -> ScaledForm:
        values = matrix(name, "weight", pieces, [E4M3])
        check_factors(name, self.scale, pieces, values, self.block)
        if self.static:
            check_single(name, self.input_scale, pieces)
        return ScaledForm(values.dtype, self.block, self.static)

    def read(self, name: str, pieces: Pieces) -> Scaled:
        self.form(name, pieces)
        input_scale = pieces[self.input_scale] if self.static else None
        return scaled(pieces["weight"], pieces[self.scale], input_scale, self.block)


def scaled(values: Array, scales: Array, input_scale: Array | None, block: tuple[int, int] | None) -> Scaled:
    """The neutral form, its scales in fp32 and without dimensions of 1."""
    single = None if input_scale is None else cast(input_scale, FP32).reshape(())
    factors = cast(scales, FP32)
    return Scaled(values, factors if block else factors.reshape(-1), single, block)


def check_factors(
    name: str, piece: str, pieces: Pieces, values: Array, block: tuple[int, int] | None
) -> None:
    """Raise LoadError unless `piece` scales values [n, k]: all, each row, or each block."""
    n, k = values.shape
    count = pieces[piece].size
    shape: tuple[int, ...] = tuple(pieces[piece].shape)
    if block is not None:
        shape = (-(-n // block[0]), -(-k // block[1]))
    elif count not in (1, n):
        raise unfit(name, f"has {piece} of {count} numbers, and needs one, or one for each of {n} rows")
    check_piece(name, piece, pieces, shape)


def check_single(name: str, piece: str, pieces: Pieces) -> None:
    """Raise LoadError unless a piece is one number."""
    count = pieces[piece].size
    if count != 1:
        raise unfit(name, f"has {piece} of {count} numbers, and needs one for all activations")
    check_piece(name, piece, pieces, pieces[piece].shape)
