from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from slipway_kernels.quantize import quantize_rows, reference
from slipway_kernels.quantize.kernel import e4m3_byte, saturated

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
EIGHT = [INT8, E4M3, E5M2]


def within_one_step(values: torch.Tensor, expected: torch.Tensor) -> None:
    """Ties may fall either way, since the kernel multiplies by the inverse scale; little else may differ."""
    if values.dtype == INT8:
        away = (values.int() - expected.int()).abs()
    else:
        ordered = [
            torch.where(bits >= 128, 128 - bits, bits)
            for bits in (x.view(torch.uint8).int() for x in (values, expected))
        ]
        away = (ordered[0] - ordered[1]).abs()
    assert away.max() <= 1
    assert (away > 0).float().mean() < 0.01


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize(
    ("rows", "width", "group", "source"),
    [
        (1, 128, 0, torch.bfloat16),
        (3, 100, 0, torch.float32),
        (2, 576, 128, torch.float16),
        (5, 257, 64, torch.bfloat16),
        (2, 16, 128, torch.float32),
        (1, 5000, 0, torch.bfloat16),
    ],
)
def test_each_row_or_group_reaches_the_limit_of_its_type(
    device: torch.device, dtype: torch.dtype, rows: int, width: int, group: int, source: torch.dtype
) -> None:
    x = (torch.randn(rows, width + 7, device=device) * 3).to(source)[:, :width]
    out = torch.empty(rows, width + 16, device=device, dtype=dtype)[:, :width]
    scales = torch.empty((rows, -(-width // group)) if group else (rows,), device=device)
    assert quantize_rows(x, out, scales, group=group) == (out, scales)
    values, expected = reference.quantize(x, dtype, group)
    torch.testing.assert_close(scales.view(expected.shape), expected)
    within_one_step(out, values)


def test_int8_rounds_ties_to_even(device: torch.device) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]], device=device)
    out, scales = torch.empty(1, 7, device=device, dtype=INT8), torch.empty(1, device=device)
    quantize_rows(x, out, scales)
    assert out.tolist() == [[127, 0, 2, 2, 0, -2, -2]]


@pytest.mark.parametrize("dtype", EIGHT)
def test_a_row_of_zeros_stays_zero_and_a_nan_shows_in_its_scale(
    device: torch.device, dtype: torch.dtype
) -> None:
    x = torch.randn(3, 64, device=device)
    x[0] = 0
    x[1, 5] = torch.nan
    out, scales = torch.empty(3, 64, device=device, dtype=dtype), torch.empty(3, device=device)
    quantize_rows(x, out, scales)
    assert not out[0].float().any()
    assert scales.isnan().tolist() == [False, True, False]
    assert (out[2].float() * scales[2] - x[2]).abs().max() < 0.3


@triton.jit
def _to_bytes(x_ptr, out_ptr, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(out_ptr + place, e4m3_byte(saturated(tl.load(x_ptr + place), 448.0)))


def test_a_device_without_e4m3_makes_the_same_bytes_by_integers(device: torch.device) -> None:
    every = torch.arange(256, device=device).to(torch.uint8).view(E4M3).float()
    ordered = every[~every.isnan()].sort().values
    ties = (ordered[1:] + ordered[:-1]) / 2
    random = torch.randn(1000, device=device) * torch.logspace(-4, 3, 1000, device=device)
    known = torch.cat((every, ties, random))
    x = torch.zeros(2048, device=device)
    x[: len(known)] = known
    out = torch.empty(2048, device=device, dtype=torch.uint8)
    _to_bytes[(1,)](x, out, 2048)
    expected = x.clamp(-448, 448).to(E4M3)
    number = ~expected.float().isnan()
    assert torch.equal(out[number], expected.view(torch.uint8)[number])
    assert out.view(E4M3).float()[~number].isnan().all()


def test_a_type_or_group_that_does_not_exist_is_refused(device: torch.device) -> None:
    x = torch.randn(2, 64, device=device)
    with pytest.raises(ValueError, match=r"out is torch.uint8: quantize to int8"):
        quantize_rows(x, torch.empty(2, 64, device=device, dtype=torch.uint8), torch.empty(2, device=device))
    out = torch.empty(2, 64, device=device, dtype=INT8)
    with pytest.raises(ValueError, match="The group is 48: give a power of two"):
        quantize_rows(x, out, torch.empty(2, 2, device=device), group=48)
    with pytest.raises(ValueError, match=r"scales are torch.float32 \[2\]: .* they are fp32 \[2, 4\]"):
        quantize_rows(x, out, torch.empty(2, device=device), group=16)
