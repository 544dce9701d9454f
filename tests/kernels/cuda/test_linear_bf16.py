from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.linear_bf16 import few_rows, linear_bf16, op, reference
from slipway_kernels.linear_bf16.choose import Region, chosen


def operands(
    device: torch.device, m: int, n: int, k: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x and a weight whose rows lie apart in memory, and a bias."""
    x = torch.randn(m, 2 * k, device=device, dtype=dtype)[:, :k]
    weight = (torch.randn(n, 2 * k, device=device) / k**0.5).to(dtype)[:, k:]
    return x, weight, torch.randn(n, device=device, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 16, 64), (5, 33, 520), (16, 40, 1024), (3, 7, 100), (19, 48, 96), (0, 16, 64)]
)
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_of_few_rows_is_the_references(
    device: torch.device, dtype: torch.dtype, m: int, n: int, k: int, biased: bool
) -> None:
    x, weight, bias = operands(device, m, n, k, dtype)
    given = bias if biased else None
    y = few_rows(x, weight, torch.empty(m, n, device=device, dtype=dtype), bias=given)
    expected = reference.linear_bf16(x, weight, given)
    assert row_error(y, expected) <= rounding(dtype, terms=k)


def test_a_weight_of_many_columns_takes_a_wider_tile_that_computes_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if 72 columns were more than 8192."""
    monkeypatch.setattr(op, "TILES", [tile for tile in op.TILES if "n" not in tile.when])
    x, weight, bias = operands(device, 2, 72, 200, torch.bfloat16)
    y = few_rows(x, weight, torch.empty(2, 72, device=device), bias=bias)
    assert row_error(y, reference.linear_bf16(x, weight, bias)) <= rounding(terms=200)


def test_a_row_does_not_depend_on_the_others(device: torch.device) -> None:
    x, weight, _ = operands(device, 9, 32, 300, torch.bfloat16)
    together = few_rows(x, weight, torch.empty(9, 32, device=device, dtype=x.dtype))
    alone = few_rows(x[4:5], weight, torch.empty(1, 32, device=device, dtype=x.dtype))
    assert torch.equal(together[4:5], alone)


@pytest.mark.parametrize("biased", [False, True])
def test_torch_multiplies_where_nothing_was_measured_and_ours_where_it_won(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, biased: bool
) -> None:
    x, weight, bias = operands(device, 4, 24, 64, torch.bfloat16)
    given = bias if biased else None
    expected = reference.linear_bf16(x, weight, given)
    region = Region(op.arch_of(device), torch.bfloat16, (1, 4), (1, 64), (1, 64), "a test")
    for regions in ((), (region,)):
        monkeypatch.setattr(op, "OURS", regions)
        y = linear_bf16(x, weight, torch.empty(4, 24, device=device, dtype=x.dtype), bias=given)
        assert row_error(y, expected) <= rounding(torch.bfloat16, terms=64)


def test_a_region_holds_its_bounds_and_nothing_beyond_them() -> None:
    region = Region(90, torch.bfloat16, (2, 8), (1024, 4096), (64, 128), "a test")
    held = [m for m in range(12) if chosen((region,), 90, torch.bfloat16, m, 4096, 64)]
    assert held == [2, 3, 4, 5, 6, 7, 8]
    assert not chosen((region,), 100, torch.bfloat16, 4, 4096, 64)
    assert not chosen((region,), 90, torch.float16, 4, 4096, 64)
    assert not chosen((region,), 90, torch.bfloat16, 4, 4097, 64)
    assert not chosen((), 90, torch.bfloat16, 4, 4096, 64)


def test_offsets_beyond_two_to_the_31_are_reached(device: torch.device) -> None:
    """Two rows of a weight that lie 2³¹ numbers apart: the memory between them is never touched."""
    far = 2**31 + 64
    storage = torch.empty(far + 64, device=device, dtype=torch.bfloat16)
    weight = storage.as_strided((2, 64), (far, 1))
    weight.copy_(torch.randn(2, 64))
    x = torch.randn(1, 64, device=device, dtype=torch.bfloat16)
    y = few_rows(x, weight, torch.empty(1, 2, device=device))
    assert row_error(y, reference.linear_bf16(x, weight)) <= rounding(terms=64)


@pytest.mark.parametrize(
    ("x", "weight", "out", "says"),
    [
        ((2, 8), (4, 9), (2, 4), r"x is \[2, 8\], w \[4, 9\]"),
        ((2, 8), (4, 8), (2, 5), r"out \[2, 5\]: x is \[m, k\]"),
    ],
)
def test_shapes_that_disagree_are_refused(
    device: torch.device, x: tuple[int, int], weight: tuple[int, int], out: tuple[int, int], says: str
) -> None:
    a, b, c = (torch.zeros(shape, device=device, dtype=torch.bfloat16) for shape in (x, weight, out))
    with pytest.raises(ValueError, match=says):
        few_rows(a, b, c)


def test_types_and_strides_that_the_kernel_cannot_read_are_refused(device: torch.device) -> None:
    x, weight = torch.zeros(2, 8, device=device), torch.zeros(4, 8, device=device)
    with pytest.raises(ValueError, match=r"x is torch\.float32 and w torch\.float32: both are torch"):
        few_rows(x, weight, torch.zeros(2, 4, device=device))
    x, weight = torch.zeros(8, 2, device=device).bfloat16().T, weight.bfloat16()
    with pytest.raises(ValueError, match="the columns of a row are adjacent"):
        few_rows(x, weight, torch.zeros(2, 4, device=device))
