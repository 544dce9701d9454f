"""A program that goes on from rows of another."""

from __future__ import annotations

from slipway_kernels.cpu.binding import ACTIVATIONS, Floats
from slipway_kernels.cpu.program import Buffer, Program


class LinkedProgram(Program):
    """As its base, with what guesses from the hidden states of another model computes beside layers."""

    def activate(
        self,
        x: Buffer,
        out: Buffer,
        activation: str | None = None,
        bias: Floats | None = None,
        accumulate: bool = False,
    ) -> None:
        """out = (or +=) activation(x + bias), number by number.   x fp32; out fp32 where accumulated"""
        self._expect("activate", x, "fp32", out.width)
        self._expect("activate", out, "fp32" if accumulate else out.dtype, x.width)
        kind = ACTIVATIONS[activation] if activation else 0
        shift = self._floats(bias, x.width)
        self._add("activate", x.index, shift, kind, self._written(out), accumulate)
