"""A program that goes on from rows of another."""

from __future__ import annotations

import numpy as np

from slipway_kernels.cpu.binding import ACTIVATIONS, Floats, address
from slipway_kernels.cpu.program import Buffer, Program


class LinkedProgram(Program):
    """As its base, with rows that come from outside: what guesses from the hidden states of another model."""

    def given(self, out: Buffer) -> Floats:
        """out = the rows of an array [max_tokens, width], which the caller fills before a step.   out fp32"""
        self._expect("given", out, "fp32")
        rows = np.zeros((self.max_tokens, out.width), np.float32)
        self._keep(rows)
        self._add("given", address(rows), self._written(out))
        return rows

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
