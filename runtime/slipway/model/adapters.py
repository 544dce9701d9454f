"""Which of a model's matrices an adapter adds to, and by what: cut as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from slipway.load.adapter import Adapter
from slipway.load.arrays import FP32, Floats
from slipway.load.cut import WHOLE, Cut
from slipway.load.quantized.tensors import in_type
from slipway.model.registry import Family
from slipway.model.roles import Place, expected, usual
from slipway.model.spec import DecoderSpec
from slipway.schemes.fused import FusedLinear

ADAPTED = frozenset(("q", "k", "v", "out", "gate", "up", "down", "shared_gate", "shared_up", "shared_down"))
"""Roles to which adapters may add."""
Factors = dict[str, tuple[Floats, Floats]]
"""By role A [r, k], which has the scaling, and B [n, r]."""


def factors_of(
    adapter: Adapter,
    spec: DecoderSpec,
    family: Family,
    owners: Mapping[Place, object],
    cuts: Mapping[Place, Cut],
) -> Iterable[tuple[FusedLinear, Factors]]:
    """What the adapter adds to each layer. Raises LoadError, with the name, for what it is not for.

    owners  what holds each matrix
    cuts    of the matrices: A has their columns, and B their rows
    """
    known, found = expected(spec, family), dict[int, tuple[FusedLinear, Factors]]()
    for module, (a, b) in adapter.factors.items():
        entry = known.get(f"{usual(module, family)}.weight")
        if entry is None or entry.role not in ADAPTED:
            raise adapter.wrong(f"is for {module}, and adapters add to attention and to feed-forward layers")
        if (b.shape[0], a.shape[1]) != entry.shape:
            shape = [b.shape[0], a.shape[1]]
            raise adapter.wrong(f"is for {module} of {shape} rows and columns, which has {list(entry.shape)}")
        cut, linear = cuts.get(entry.place, WHOLE), owners[entry.place]
        assert isinstance(linear, FusedLinear)
        low = in_type(a, FP32)[:, cut.columns] * np.float32(adapter.scaling)
        found.setdefault(id(linear), (linear, {}))[1][entry.role] = low, in_type(b, FP32)[cut.rows]
    return found.values()
