"""What `--quantization` makes of the linear layers of a plain checkpoint, by rounding to nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipway.load.arrays import E4M3, FP32
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm

GROUP = 32
"""Columns that share a scale: the products on CPU quantize activations by as many."""

_LEFT_ALONE = frozenset(("embedding", "head", "router", "shared_scale"))
"""Matrices whose few numbers decide much."""


@dataclass(frozen=True, slots=True)
class OnTheFly:
    """What `--quantization` asks for by a name of `ON_THE_FLY`."""

    name: str
    bits: int
    floats: bool = False
    experts_only: bool = False

    def form(self, role: str, shape: tuple[int, ...]) -> Form | None:
        """How a matrix [n, k] of this role is held; None where it stays plain."""
        if len(shape) != 2 or role in _LEFT_ALONE or (self.experts_only and "expert" not in role):
            return None
        if self.floats:
            return ScaledForm(E4M3)
        if self.experts_only:
            return GroupedForm(self.bits, shape[1], scales=FP32)
        if shape[1] % GROUP:
            return None
        return GroupedForm(self.bits, GROUP, minimums=self.bits == 4, scales=FP32)


ON_THE_FLY: Mapping[str, OnTheFly] = {
    made.name: made
    for made in (
        OnTheFly("fp8", 8, floats=True),
        OnTheFly("ptpc_fp8", 8, floats=True),
        OnTheFly("int8", 8),
        OnTheFly("int4", 4),
        OnTheFly("experts_int8", 8, experts_only=True),
    )
}
"""What plain weights can be made by name; fp8 has a scale for each row, as ptpc_fp8 says in full."""
