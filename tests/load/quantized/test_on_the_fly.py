"""Rounding plain matrices: the error of each form, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from slipway.load.arrays import BF16, E4M3, FP32, Floats
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.load.quantized.on_the_fly import ON_THE_FLY
from slipway.load.quantized.tensors import Grouped, Scaled, Unquantized
from slipway_kernels.cpu import Threads


def matrix(n: int = 48, k: int = 96) -> Floats:
    drawn = np.random.default_rng(0).standard_normal((n, k), np.float32)
    return drawn * np.logspace(-3, 3, n, dtype=np.float32)[:, None]


def quantized(weights: Floats, form: Form | None) -> Grouped | Scaled:
    assert form is not None
    return Unquantized(weights, form, FP32).quantized(Threads(2))


@pytest.mark.parametrize("name", ["fp8", "ptpc_fp8"])
def test_fp8_errs_by_a_sixteenth_of_each_weight_at_most(name: str) -> None:
    weights = matrix()
    form = ON_THE_FLY[name].form("q", weights.shape)
    assert form == ScaledForm(E4M3)
    made = quantized(weights, form)
    assert isinstance(made, Scaled)
    assert made.scales.shape == (48,)
    # e4m3 has three bits after the point; below its smallest normal number steps stay 2⁻⁹ of the scale.
    bound = np.maximum(np.abs(weights) / 16, made.scales[:, None] * 2**-10)
    assert (np.abs(made.dequantized(FP32) - weights) <= bound * 1.0001).all()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_err_by_half_a_step_at_most(name: str) -> None:
    weights = matrix()
    form = ON_THE_FLY[name].form("down", weights.shape)
    made = quantized(weights, form)
    assert isinstance(made, Grouped)
    assert isinstance(form, GroupedForm)
    assert (form.bits, form.group, form.minimums) == (made.bits, made.group, made.minimums is not None)
    assert (form.scales, form.order) == (made.scales.dtype, b"")
    steps = np.repeat(made.scales, made.group, axis=1)
    assert (np.abs(made.dequantized(FP32) - weights) <= steps * 0.5001).all()


def test_only_experts_are_converted_by_experts_int8() -> None:
    made = ON_THE_FLY["experts_int8"]
    assert made.form("expert_gate", (48, 96)) == GroupedForm(8, 96, scales=FP32)
    assert made.form("q", (48, 96)) is None
    grouped = quantized(matrix(), GroupedForm(8, 96))
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
    weights = np.full((4, 32), value, np.float32)
    form = ON_THE_FLY[name].form("q", (4, 32))
    made = quantized(weights, form)
    assert np.allclose(made.dequantized(FP32), weights, rtol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("through", [FP32, BF16])
@pytest.mark.parametrize("name", ["fp8", "int8", "int4", "experts_int8"])
def test_the_host_rounds_as_a_device_does(name: str, through: object) -> None:
    """To the bit, whatever type the matrix is stored in, on any number of threads."""
    import torch

    from slipway.load.torch_arrays import tensor
    from slipway.worker.device.quantized import as_tensors

    made = ON_THE_FLY[name]
    plain = matrix(300, 96)
    plain[7] = 0
    for stored in (plain, plain.astype(BF16)):
        form = made.form("expert_up", stored.shape)
        assert form is not None
        unquantized = Unquantized(stored, form, through)  # type: ignore[arg-type]
        here, there = unquantized.quantized(Threads(3)).source(), as_tensors(unquantized)
        for part in ("numbers", "scales", "minimums"):
            mine, other = getattr(here, part), getattr(there, part)
            assert (mine is None) == (other is None)
            if mine is not None and other is not None:
                assert torch.equal(tensor(mine).view(torch.uint8), other.view(torch.uint8))
