from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.quantize.reference import quantize
from slipway_kernels.rms_norm import reference, rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 100), (2, 576), (5, 2048), (0, 64)])
@pytest.mark.parametrize("add_one", [False, True])
def test_a_norm_is_the_references(
    device: torch.device, dtype: torch.dtype, rows: int, width: int, add_one: bool
) -> None:
    x = torch.randn(rows, 2 * width, device=device, dtype=dtype)[:, :width]  # rows apart in memory
    weight = torch.randn(width, device=device, dtype=dtype)
    out = torch.empty(rows, width, device=device, dtype=dtype)
    rms_norm(x, weight, 1e-5, out, add_one=add_one)
    expected = reference.rms_norm(x, weight, 1e-5, add_one)
    assert row_error(out, expected) <= rounding(dtype, terms=width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_residual_becomes_the_sum_and_the_norm_is_of_the_stored_sum(
    device: torch.device, dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, 4, 100, device=device, dtype=dtype)
    weight = torch.randn(100, device=device, dtype=dtype)
    total = residual + x
    out = rms_norm(x, weight, 1e-5, torch.empty_like(x), residual=residual)
    assert torch.equal(residual, total)
    expected = reference.rms_norm(total, weight, 1e-5)
    assert row_error(out, expected) <= rounding(dtype, terms=100)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("width", "group"), [(100, 0), (300, 128), (64, 128)])
def test_a_quantized_norm_has_the_scales_of_the_norm(
    device: torch.device, dtype: torch.dtype, width: int, group: int
) -> None:
    x, residual = torch.randn(2, 3, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(width, device=device)
    total = residual + x
    out = torch.empty(3, width, device=device, dtype=dtype)
    scales = torch.empty((3, -(-width // group)) if group else (3,), device=device)
    rms_norm(x, weight, 1e-5, out, residual=residual, scales=scales, group=group)
    assert torch.equal(residual, total)
    exact = reference.rms_norm(total, weight, 1e-5)
    _, expected = quantize(exact, dtype, group)
    torch.testing.assert_close(scales.view(expected.shape), expected, rtol=1e-5, atol=0)
    each = scales.view(expected.shape).repeat_interleave(group or width, 1)[:, :width]
    step = each * 0.51 if dtype == torch.int8 else exact.abs() / 15 + each * 2**-9
    assert ((out.float() * each - exact).abs() <= step).all()


def test_what_does_not_fit_x_is_refused(device: torch.device) -> None:
    x = torch.randn(2, 64, device=device)
    weight, out = torch.ones(64, device=device), torch.empty_like(x)
    with pytest.raises(ValueError, match=r"weight is \[32\] .* it has a number for each of 64 columns"):
        rms_norm(x, weight[:32], 1e-5, out)
    with pytest.raises(ValueError, match=r"residual is \[2, 64\] by strides of \(1, 2\): .* adjacent"):
        rms_norm(x, weight, 1e-5, out, residual=torch.zeros(64, 2, device=device).T)
