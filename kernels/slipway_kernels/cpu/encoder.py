"""A program whose requests are computed whole, each row seeing those after it, too."""

from __future__ import annotations

import numpy as np

from slipway_kernels.cpu.binding import ACTIVATIONS, Floats, address
from slipway_kernels.cpu.program import Buffer, Program
from slipway_kernels.cpu.weights import Weight

STEP_PAGES = (-1, 0)
"""In place of a layer's KV group and index: pages that last for the step, one layer's after another's.

There `attention` is not causal, and its window counts the positions that a row sees to each side, its own
included.
"""


class EncoderProgram(Program):
    """As its base, with what encoders have: places added to tokens, layer norm, attention both ways.

    It keeps no keys and values: a step computes a slot's whole prompt, or nothing of it. A decoder's
    operations over `STEP_PAGES` see both ways, too.
    """

    def embed_sum(
        self, table: Weight, out: Buffer, positions: Floats | None = None, types: Floats | None = None
    ) -> None:
        """out = table[token] + types[type] + positions[position].   out fp32 [*, k]

        positions  [at least max_len, k]
        types      [1 or 2, k]  a token's is 1 from the slot's `type_from` on, where there are two
        Raises ValueError where a shape does not fit.
        """
        self._expect("embed_sum", out, "fp32", table.k)
        if positions is not None and (
            positions.shape[1:] != (table.k,) or len(positions) < self.slots.max_len
        ):
            raise ValueError(
                f"embed_sum: positions of shape {positions.shape} stand where [at least "
                f"{self.slots.max_len}, {table.k}] belong."
            )
        if types is not None:
            if types.shape not in ((1, table.k), (2, table.k)):
                raise ValueError(
                    f"embed_sum: types of shape {types.shape}, which must be [1 or 2, {table.k}]."
                )
            types = types if len(types) == 2 else np.concatenate((types, types))
        self._add(
            "embed_sum",
            *(self._weight(table), self._written(out), 1.0, self._floats(positions), self._floats(types)),
            address(self.slots.type_from),
        )

    def layer_norm(
        self, x: Buffer, weight: Floats, bias: Floats | None, out: Buffer, eps: float, keep: bool = False
    ) -> None:
        """out = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias.   x fp32, out act

        keep  x becomes this, too: what layers that norm after adding go on with
        """
        self._expect("layer_norm", x, "fp32", out.width)
        self._expect("layer_norm", out, "act")
        factors, shift = self._floats(weight, x.width), self._floats(bias, x.width)
        if keep:
            self._written(x)
        self._add("layer_norm", x.index, factors, shift, self._written(out), eps, keep)

    def linear_activated(
        self, x: Buffer, weight: Weight, out: Buffer, activation: str, bias: Floats | None = None
    ) -> None:
        """out = activation(x · Wᵀ + bias).   x act [*, k], out [*, n]"""
        self._expect("linear_activated", x, "act", weight.k)
        if weight.n != out.width:
            raise ValueError(f"linear_activated: {weight.n} outputs for a buffer of width {out.width}.")
        self._linear(x, weight, out, bias, pointwise=ACTIVATIONS[activation])

    def attend_within(
        self,
        qkv: Buffer,
        queries: Buffer,
        out: Buffer,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cos_sin: Floats | None,
        rotary_dim: int,
        scale: float,
        window: int = 0,
    ) -> None:
        """out = softmax(scale · q · Kᵀ) · V over all rows of each request, queries and keys rotated before.

        qkv      fp32, out act, cos_sin: as of `rope_and_store` and `attention`
        queries  act [*, heads · head_dim], which is overwritten
        window   positions that a row sees to each side, its own included; 0: all
        """
        shape = heads, kv_heads, head_dim
        self.rope_and_store(qkv, queries, STEP_PAGES, *shape, cos_sin, rotary_dim)
        self.attention(queries, out, STEP_PAGES, *shape, scale, window)
