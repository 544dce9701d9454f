"""Rows that the kernel which makes them quantizes, and rows that a kernel of its own quantizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from slipway.load.arrays import BF16, E4M3, FP32, INT8
from slipway.load.quantized.form import ScaledForm
from slipway.load.quantized.tensors import Scaled
from slipway.load.torch_arrays import array, torch_type
from slipway.schemes.fused import FusedLinear, stacked
from slipway.worker.device.products import Rows, gated_for, normed_for, product
from slipway.worker.device.schemes import DeviceSchemes
from slipway.worker.device.transfer import Transfer
from slipway_kernels.activation import gated
from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.linear_bf16 import op as linear_bf16
from slipway_kernels.linear_bf16.choose import Region
from slipway_kernels.linear_bf16.reference import linear_bf16 as reference
from slipway_kernels.quantize import QuantizedRows
from slipway_kernels.rms_norm import rms_norm

CPU = torch.device("cpu")
FORMS = {
    "int8 by row": ScaledForm(INT8, None),
    "fp8 by row": ScaledForm(E4M3, None),
    "fp8 by blocks": ScaledForm(E4M3, (128, 128)),
}
K = 256


def made(form: ScaledForm) -> FusedLinear:
    """Two segments of 128 rows in one matrix."""
    schemes = DeviceSchemes(BF16, Transfer(CPU))
    linear = stacked(K, {"a": 128, "b": 128}, dict.fromkeys("ab", schemes.of(form)))
    for name in ("a", "b"):
        values = torch.randn(128, K).clamp(-3, 3).mul(30).to(torch_type(form.values))
        scales = torch.rand(1, K // 128) if form.block else torch.rand(128)
        linear.load(name, Scaled(array(values), array(scales + 0.5), block=form.block))
    linear.finish(schemes.placed)
    return linear


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("kind", ["norm", "gate"])
def test_a_kernel_that_makes_rows_quantizes_them_for_the_product(kind: str, form: ScaledForm) -> None:
    """As they come, in fp32: rounded to bf16 before, they would have other scales."""
    linear = made(form)
    if kind == "norm":
        x, weight = torch.randn(5, K).bfloat16(), torch.rand(K)
        rows = normed_for(linear, x, weight, 1e-5)
        wide = rms_norm(x, weight, 1e-5, torch.empty(5, K))
    else:
        both = torch.randn(5, 2 * K).bfloat16()
        rows = gated_for(linear, both, "silu")
        wide = gated(both, torch.empty(5, K), "silu")
    operand = torch_type(form.values), form.block[1] if form.block else 0
    assert rows.quantized(operand) is rows.quantized(operand)  # made once, for all that want it so
    with pytest.raises(ValueError, match="for quantized products alone"):
        rows.plain  # noqa: B018
    own, of_fp32, of_bf16 = (
        rows.quantized(operand),
        *(QuantizedRows.of(*operand, x) for x in (wide, wide.bfloat16())),
    )
    torch.testing.assert_close(own.scales, of_fp32.scales, rtol=1e-5, atol=0)
    assert not torch.allclose(own.scales, of_bf16.scales, rtol=1e-5, atol=0)
    exact = wide @ linear.parts[0].scheme.rows(torch.arange(256)).float().T
    error = (product(linear, rows).float() - exact).square().mean() / exact.square().mean()
    assert error < 2e-3


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_plain_products_take_our_kernel_where_the_table_lists_them(
    monkeypatch: pytest.MonkeyPatch, listed: bool, biased: bool
) -> None:
    region = Region(linear_bf16.arch_of(CPU), torch.bfloat16, (1, 4), (1, 8), (1, K), "a test")
    monkeypatch.setattr(linear_bf16, "OURS", (region,) if listed else ())
    ours: list[int] = []

    def few_rows(x: Tensor, *others: Tensor, bias: Tensor | None) -> Tensor:
        ours.append(len(x))
        return few(x, *others, bias=bias)

    few = linear_bf16.few_rows
    monkeypatch.setattr(linear_bf16, "few_rows", few_rows)
    scheme = DeviceSchemes(BF16, Transfer(CPU)).of(None)()
    scheme.create((8, K))
    weight, bias = torch.randn(8, K).bfloat16(), torch.randn(8).bfloat16() if biased else None
    scheme.load(np.arange(8, dtype=np.int32), array(weight))
    for rows in (4, 5):
        x = torch.randn(rows, K).bfloat16()
        assert row_error(scheme.apply(Rows(x), bias), reference(x, weight, bias)) <= rounding(
            x.dtype, terms=K
        )
    assert ours == ([4] if listed else [])


def test_plain_products_in_float32_are_torchs() -> None:
    scheme = DeviceSchemes(FP32, Transfer(CPU)).of(None)()
    scheme.create((8, K))
    weight, x, bias = torch.randn(8, K), torch.randn(3, K), torch.randn(8)
    scheme.load(np.arange(8, dtype=np.int32), array(weight))
    assert torch.equal(scheme.apply(Rows(x), bias), torch.nn.functional.linear(x, weight, bias))


def test_rows_for_plain_or_mixed_products_stay_plain() -> None:
    schemes = DeviceSchemes(BF16, Transfer(CPU))
    mixed = stacked(K, {"a": 8, "b": 8}, {"a": schemes.of(None), "b": schemes.of(FORMS["int8 by row"])})
    x = torch.randn(3, K).bfloat16()
    for reader in (None, stacked(K, {"a": 8}, {"a": schemes.of(None)}), mixed):
        assert normed_for(reader, x, torch.ones(K), 1e-5).plain.dtype is torch.bfloat16
