"""Eight-bit numbers with a scale for the matrix, each row or each block.

So transformers, AutoFP8, FBGEMM and compressed-tensors (`int-quantized`, `float-quantized`) store what is
multiplied by activations of the same type. Floats are e4m3: Micikevicius et al. 2022,
https://arxiv.org/abs/2209.05433. What is called `weight_scale_inv` is the factor that undoes the scaling, as
`weight_scale` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipway.load.arrays import E4M3, FP32, INT8, cast
from slipway.load.cut import WHOLE, Cut
from slipway.load.quantized.form import ScaledForm
from slipway.load.quantized.layout import Pieces, check_piece, matrix, unfit
from slipway.load.quantized.tensors import Scaled


@dataclass(frozen=True, slots=True)
class ScaledLayout:
    """w = weight_scale · weight.

    weight        [n, k]  int8, or e4m3 where `floats`
    weight_scale  [] or [1], [n] or [n, 1], or block by block [⌈n / rows⌉, ⌈k / columns⌉]
    input_scale   [] or [1]; where activations are quantized by a scale that was measured beforehand
    `scale` and `inputs` are what the file calls the last two. Zero points of symmetric weights are all 0 and
    not read, those of activations follow from each token, and FBGEMM's bound is for kernels that clip.
    """

    floats: bool = True
    static: bool = False
    block: tuple[int, int] | None = None
    scale: str = "weight_scale"
    inputs: str = "input_scale"

    @property
    def wanted(self) -> Mapping[str, bool]:
        unused = ("weight_zero_point", "input_zero_point", "input_scale_ub")
        return {"weight": True, self.scale: True, self.inputs: self.static, **dict.fromkeys(unused, False)}

    def form(self, name: str, pieces: Pieces) -> ScaledForm:
        n, k = self.shape(name, pieces)
        count, block = pieces[self.scale].size, self.block
        if block is None and count not in (1, n):
            raise unfit(
                name, f"has {self.scale} of {count} numbers, and needs one, or one for each of {n} rows"
            )
        blocks = (-(-n // block[0]), -(-k // block[1])) if block else pieces[self.scale].shape
        check_piece(name, self.scale, pieces, blocks)
        if self.static:
            if (count := pieces[self.inputs].size) != 1:
                raise unfit(name, f"has {self.inputs} of {count} numbers, and needs one for all activations")
            check_piece(name, self.inputs, pieces, pieces[self.inputs].shape)
        return ScaledForm(pieces["weight"].dtype, block, self.static)

    def promised(self, name: str, k: int) -> ScaledForm:
        return ScaledForm(E4M3 if self.floats else INT8, self.block, self.static)

    def shape(self, name: str, pieces: Pieces) -> tuple[int, int]:
        n, k = matrix(name, "weight", pieces, [E4M3 if self.floats else INT8]).shape
        return n, k

    def read(self, name: str, pieces: Pieces, cut: Cut = WHOLE) -> Scaled:
        self.form(name, pieces)
        factors = cast(pieces[self.scale], FP32)
        factors = factors if self.block else factors.reshape(-1)
        return Scaled(pieces["weight"], factors, self.block).cut(cut)
