"""What lowering decoders and encoders have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipway.load.arrays import Floats
from slipway.model.rope import cos_sin
from slipway.model.spec import Attention, Rope
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import Buffer, Program


class Buffers:
    """Where the operations of layers meet: the residual stream, its normed rows, and buffers that all layers
    share, one for each use and width; and the angles of each rotation.
    """

    def __init__(self, program: Program, hidden: int, layers: Iterable[Attention]) -> None:
        self._program = program
        self.residual = program.buffer(hidden)
        self.normed = program.buffer(hidden, "act")
        self._made: dict[tuple[str, int], Buffer] = {}
        ropes = {layer.rope for layer in layers}
        self.angles: dict[Rope | None, Floats] = {
            rope: cos_sin(rope, program.slots.max_len) for rope in ropes if rope
        }

    def of(self, use: str, width: int, dtype: str = "fp32") -> Buffer:
        """[rows, width]"""
        if (use, width) not in self._made:
            self._made[use, width] = self._program.buffer(width, dtype)
        return self._made[use, width]


def lower_gated(
    program: Program,
    x: Buffer,
    weights: FusedLinear,
    out: Buffer,
    activation: str,
    sums: Callable[[int], Buffer],
    adapt: Callable[[int, int], None] = lambda column, end: None,
) -> None:
    """out = activation(gate(x)) · up(x).   x act, out act

    sums   makes a buffer in fp32 of a width, for gate and up that are two products
    adapt  is called after each product, with the first column and the end of its outputs
    """
    if len(weights.parts) == 1:
        program.linear_gated(x, weights.whole, out, activation, weights.bias)
        adapt(0, weights.n)
        return
    both = sums(weights.n)
    for part, bias in weights.products():
        program.linear(x, part.packed, both, bias, column=part.column)
        adapt(part.column, part.end)
    program.gate(both, out, activation)
