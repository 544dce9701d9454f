"""Products, and rows in the form that they want: what makes rows quantizes them on the way, in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway.model.spec import Activation
from slipway.schemes.fused import FusedLinear
from slipway.schemes.scheme import Scheme
from slipway.worker.device.schemes import DeviceScaled
from slipway_kernels.activation import gated
from slipway_kernels.quantize import QuantizedRows
from slipway_kernels.rms_norm import rms_norm

Rows = Tensor | QuantizedRows


def product(linear: FusedLinear, x: Rows) -> Tensor:
    """x [rows, k], plain or in the form that `linear` wants → [rows, n]"""
    results: list[Tensor] = []
    for part, bias in linear.products():
        if isinstance(x, Tensor):
            results.append(part.scheme.apply(x, bias))
        else:
            assert isinstance(part.scheme, DeviceScaled)
            results.append(part.scheme.multiply(x, bias))
    return results[0] if len(results) == 1 else torch.cat(results, dim=-1)


def normed_for(
    linear: FusedLinear | None,
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    add_one: bool = False,
) -> Rows:
    """`rms_norm` of x [rows, width], as `linear` wants it; plain for None."""
    out = _room_for(linear, x)
    values, scales, group = _parts(out)
    rms_norm(x, weight, eps, values, residual=residual, add_one=add_one, scales=scales, group=group)
    return out


def gated_for(linear: FusedLinear, both: Tensor, kind: Activation) -> Rows:
    """kind(gate) · up of both [rows, 2 · width], the gate's columns first, as `linear` wants it."""
    out = _room_for(linear, both[:, : both.shape[1] // 2])
    values, scales, group = _parts(out)
    gated(both, values, kind, scales=scales, group=group)
    return out


def _room_for(linear: FusedLinear | None, like: Tensor) -> Rows:
    """Where rows of the shape and the place of like [rows, k] are written that `linear` will multiply."""
    forms = set() if linear is None else {_form_of(part.scheme) for part in linear.parts}
    form = forms.pop() if len(forms) == 1 else None
    if form is None:
        return like.new_empty(like.shape)
    return QuantizedRows.empty(*form, like)


def _form_of(scheme: Scheme) -> tuple[torch.dtype, int] | None:
    return scheme.operand if isinstance(scheme, DeviceScaled) else None


def _parts(rows: Rows) -> tuple[Tensor, Tensor | None, int]:
    return (rows, None, 0) if isinstance(rows, Tensor) else (rows.values, rows.scales, rows.group)
