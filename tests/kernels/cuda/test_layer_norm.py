from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.layer_norm import layer_norm, reference
from slipway_kernels.quantize.reference import quantize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "width", "has_weight", "has_bias"),
    [
        (1, 8, True, True),
        (3, 100, True, False),
        (2, 576, False, False),
        (5, 2048, True, True),
        (0, 64, True, True),
    ],
)
def test_a_norm_is_the_references(
    device: torch.device, dtype: torch.dtype, rows: int, width: int, has_weight: bool, has_bias: bool
) -> None:
    x = (torch.randn(rows, 2 * width, device=device) + 3).to(dtype)[:, :width]  # rows apart in memory
    weight = torch.randn(width, device=device, dtype=dtype) if has_weight else None
    bias = torch.randn(width, device=device) if has_bias else None
    out = torch.empty(rows, width, device=device, dtype=dtype)
    assert layer_norm(x, weight, bias, 1e-5, out) is out
    expected = reference.layer_norm(x, weight, bias, 1e-5)
    assert row_error(out, expected) <= rounding(dtype, terms=width)


def test_a_mean_far_from_zero_costs_no_accuracy(device: torch.device) -> None:
    x = torch.randn(2, 300, device=device) + 1000
    out = layer_norm(x, None, None, 1e-5, torch.empty_like(x))
    # What is rounded is a thousand times what is left.
    assert row_error(out, reference.layer_norm(x.double(), None, None, 1e-5)) <= 1000 * rounding()
    assert (out.std(1) - 1).abs().max() < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_residual_becomes_the_sum_and_the_norm_is_of_the_stored_sum(
    device: torch.device, dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, 4, 100, device=device, dtype=dtype)
    weight, bias = torch.randn(2, 100, device=device, dtype=dtype)
    total = residual + x
    out = layer_norm(x, weight, bias, 1e-5, x, residual=residual)
    assert torch.equal(residual, total)
    expected = reference.layer_norm(total, weight, bias, 1e-5)
    assert row_error(out, expected) <= rounding(dtype, terms=100)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("width", "group"), [(100, 0), (300, 128)])
def test_a_quantized_norm_has_the_scales_of_the_norm(
    device: torch.device, dtype: torch.dtype, width: int, group: int
) -> None:
    x = torch.randn(3, width, device=device, dtype=torch.bfloat16)
    weight, bias = torch.randn(2, width, device=device)
    out = torch.empty(3, width, device=device, dtype=dtype)
    scales = torch.empty((3, -(-width // group)) if group else (3,), device=device)
    layer_norm(x, weight, bias, 1e-5, out, scales=scales, group=group)
    exact = reference.layer_norm(x, weight, bias, 1e-5)
    _, expected = quantize(exact, dtype, group)
    torch.testing.assert_close(scales.view(expected.shape), expected, rtol=1e-5, atol=0)
    each = scales.view(expected.shape).repeat_interleave(group or width, 1)[:, :width]
    step = each * 0.51 if dtype == torch.int8 else exact.abs() / 15 + each * 2**-9
    assert ((out.float() * each - exact).abs() <= step).all()


def test_vectors_and_rows_of_other_widths_are_refused(device: torch.device) -> None:
    x = torch.randn(2, 64, device=device)
    with pytest.raises(ValueError, match=r"bias is \[32\] .* it has a number for each of 64 columns"):
        layer_norm(x, None, torch.ones(32, device=device), 1e-5, torch.empty_like(x))
    with pytest.raises(ValueError, match=r"residual is \[2, 32\] .* it must be \[2, 64\]"):
        layer_norm(x, None, None, 1e-5, torch.empty_like(x), residual=x[:, :32])
