"""Kernels that VLLM_DISABLED_KERNELS leaves out: their matrices are dequantized, and a notice says so."""

from __future__ import annotations

import pytest

from slipway.load.arrays import BF16, INT8
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.schemes.choice import Schemes
from slipway.schemes.notices import notices

GROUPED, SCALED = GroupedForm(4, 32), ScaledForm(INT8)


LEFT_OUT = pytest.mark.parametrize(
    ("names", "kept"),
    [
        ("", {GROUPED, SCALED}),
        ("linear_w4a16", {SCALED}),
        ("linear_w8a8", {GROUPED}),
        ("linear_w8a8,linear_w4a16", set()),
        ("MacheteLinearKernel", {GROUPED, SCALED}),
    ],
)


@LEFT_OUT
def test_what_is_left_out_is_dequantized(
    monkeypatch: pytest.MonkeyPatch, names: str, kept: set[Form]
) -> None:
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", names)
    assert {form for form in (GROUPED, SCALED) if Schemes(BF16).keeps(form)} == kept


@pytest.mark.torch
@LEFT_OUT
def test_what_is_left_out_is_dequantized_on_a_device_too(
    monkeypatch: pytest.MonkeyPatch, names: str, kept: set[Form]
) -> None:
    from slipway.worker.device.schemes import keeps

    monkeypatch.setenv("VLLM_DISABLED_KERNELS", names)
    assert {form for form in (GROUPED, SCALED) if keeps(form, BF16)} == kept


def test_the_start_says_whose_doing_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "linear_w4a16")
    (notice,) = notices([GROUPED, SCALED], Schemes(BF16).keeps, BF16)
    assert notice.startswith(
        "1 of 2 quantized matrices are held in bfloat16: VLLM_DISABLED_KERNELS leaves out"
    )
