"""Rows that the kernel which makes them quantizes, and rows that a kernel of its own quantizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipway.load.quantized.form import ScaledForm
from slipway.load.quantized.tensors import Scaled
from slipway.schemes.fused import FusedLinear, stacked
from slipway.schemes.on_device import DeviceSchemes
from slipway.schemes.transfer import Transfer
from slipway.worker.device.products import gated_for, normed_for, product
from slipway_kernels.activation.op import gated
from slipway_kernels.quantize.quantized import QuantizedRows
from slipway_kernels.rms_norm.op import rms_norm

CPU = torch.device("cpu")
FORMS = {
    "int8 by row": ScaledForm(torch.int8, None),
    "fp8 by row": ScaledForm(torch.float8_e4m3fn, None),
    "fp8 by blocks": ScaledForm(torch.float8_e4m3fn, (128, 128)),
}
K = 256


def made(form: ScaledForm) -> FusedLinear:
    """Two segments of 128 rows in one matrix."""
    schemes = DeviceSchemes(torch.bfloat16, Transfer(CPU))
    linear = stacked(K, {"a": 128, "b": 128}, schemes.of(form))
    for name in ("a", "b"):
        values = torch.randn(128, K).clamp(-3, 3).mul(30).to(form.values)
        scales = torch.rand(1, K // 128) if form.block else torch.rand(128)
        linear.load(name, Scaled(values, scales + 0.5))
    linear.finish(CPU)
    return linear


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("kind", ["norm", "gate"])
def test_a_kernel_that_makes_rows_quantizes_them_for_the_product(kind: str, form: ScaledForm) -> None:
    """It does not round them to bf16 before, so that the result is at least as close to that of fp32."""
    linear = made(form)
    if kind == "norm":
        x, weight = torch.randn(5, K).bfloat16(), torch.rand(K)
        rows = normed_for(linear, x, weight, 1e-5)
        wide = rms_norm(x, weight, 1e-5, torch.empty(5, K))
    else:
        both = torch.randn(5, 2 * K).bfloat16()
        rows = gated_for(linear, both, "silu")
        wide = gated(both, torch.empty(5, K), "silu")
    assert isinstance(rows, QuantizedRows)
    assert rows.values.dtype is form.values
    exact = wide @ linear.parts[0].scheme.rows(torch.arange(256)).float().T
    fused, apart = (
        float((product(linear, one).float() - exact).square().mean() / exact.square().mean())
        for one in (rows, wide.bfloat16())
    )
    assert fused < 2e-3
    assert fused < 1.1 * apart


def test_rows_for_plain_or_mixed_products_stay_plain() -> None:
    schemes = DeviceSchemes(torch.bfloat16, Transfer(CPU))
    mixed = stacked(K, {"a": 8, "b": 8}, {"a": schemes.of(None), "b": schemes.of(FORMS["int8 by row"])})
    x = torch.randn(3, K).bfloat16()
    for reader in (None, stacked(K, {"a": 8}, schemes.of(None)), mixed):
        assert isinstance(normed_for(reader, x, torch.ones(K), 1e-5), Tensor)
