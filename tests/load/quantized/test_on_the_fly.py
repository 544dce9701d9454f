"""Rounding plain matrices: the error of each form, and what stays as it is."""

from __future__ import annotations

import pytest
import torch

from slipway.load.quantized.form import GroupedForm, ScaledForm
from slipway.load.quantized.on_the_fly import ON_THE_FLY
from slipway.load.quantized.tensors import Grouped, Scaled


def matrix(n: int = 48, k: int = 96) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(n, k) * torch.logspace(-3, 3, n)[:, None]


@pytest.mark.parametrize("name", ["fp8", "ptpc_fp8"])
def test_fp8_errs_by_a_sixteenth_of_each_weight_at_most(name: str) -> None:
    weights = matrix()
    form = ON_THE_FLY[name].form("q", tuple(weights.shape))
    assert form == ScaledForm(torch.float8_e4m3fn)
    made = ON_THE_FLY[name].quantized(weights, form)
    assert isinstance(made, Scaled)
    assert made.input_scale is None
    assert made.scales.shape == (48,)
    # e4m3 has three bits after the point; below its smallest normal number steps stay 2⁻⁹ of the scale.
    bound = (weights.abs() / 16).maximum(made.scales[:, None] * 2**-10)
    assert ((made.dequantized(torch.float32) - weights).abs() <= bound * 1.0001).all()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_err_by_half_a_step_at_most(name: str) -> None:
    weights = matrix()
    form = ON_THE_FLY[name].form("down", tuple(weights.shape))
    made = ON_THE_FLY[name].quantized(weights, form)  # type: ignore[arg-type]
    assert isinstance(made, Grouped)
    assert isinstance(form, GroupedForm)
    assert (form.bits, form.group, form.minimums) == (made.bits, made.group, made.minimums is not None)
    assert (form.scales, form.ordered) == (made.scales.dtype, False)
    steps = made.scales.repeat_interleave(made.group, dim=1)
    assert ((made.dequantized(torch.float32) - weights).abs() <= steps * 0.5001).all()


def test_only_experts_are_converted_by_experts_int8() -> None:
    made = ON_THE_FLY["experts_int8"]
    assert made.form("expert_gate", (48, 96)) == GroupedForm(8, 96, scales=torch.float32)
    assert made.form("q", (48, 96)) is None
    grouped = made.quantized(matrix(), GroupedForm(8, 96))
    assert isinstance(grouped, Grouped)
    assert grouped.scales.shape == (48, 1)


@pytest.mark.parametrize("name", ON_THE_FLY)
def test_embedding_head_router_and_vectors_stay_as_they_are(name: str) -> None:
    for role in ("embedding", "head", "router", "shared_scale"):
        assert ON_THE_FLY[name].form(role, (64, 64)) is None
    assert ON_THE_FLY[name].form("attention_norm", (64,)) is None


def test_rows_that_groups_do_not_divide_stay_as_they_are() -> None:
    assert ON_THE_FLY["int4"].form("q", (64, 80)) is None
    assert ON_THE_FLY["fp8"].form("q", (64, 80)) is not None


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_equal_weights_are_kept(name: str, value: float) -> None:
    weights = torch.full((4, 32), value)
    form = ON_THE_FLY[name].form("q", (4, 32))
    made = ON_THE_FLY[name].quantized(weights, form)  # type: ignore[arg-type]
    assert torch.allclose(made.dequantized(torch.float32), weights, rtol=1e-6)
