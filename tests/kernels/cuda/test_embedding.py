from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.embedding import embed, reference, softcap

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "out_dtype", "scale", "ids_dtype"),
    [
        (1, 8, FP32, FP32, 1.0, torch.int32),
        (5, 100, BF16, BF16, 3.0, torch.int64),
        (3, 1100, FP16, FP32, 0.5, torch.int32),
        (2, 2048, BF16, FP16, 1.0, torch.int64),
        (0, 64, BF16, BF16, 1.0, torch.int32),
    ],
)
def test_rows_are_the_tables_times_the_scale(
    device: torch.device,
    rows: int,
    width: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    scale: float,
    ids_dtype: torch.dtype,
) -> None:
    table = torch.randn(50, width + 8, device=device, dtype=dtype)[:, :width]
    ids = torch.randint(0, 50, (rows,), device=device, dtype=ids_dtype)
    out = torch.empty(rows, width + 3, device=device, dtype=out_dtype)[:, :width]
    assert embed(table, ids, out, scale=scale) is out
    assert torch.equal(out, reference.embed(table, ids.long(), scale).to(out_dtype))


def test_an_id_that_the_table_does_not_have_is_a_row_of_zeros(device: torch.device) -> None:
    table = torch.randn(10, 64, device=device)
    ids = torch.tensor([99, 100, 109, 110, -1], device=device, dtype=torch.int32)
    out = torch.full((5, 64), 7.0, device=device)
    embed(table, ids, out, first=100)
    assert torch.equal(out[1:3], table[[0, 9]])
    assert not out[[0, 3, 4]].any()


def test_a_table_of_more_than_two_billion_numbers_is_reached(device: torch.device) -> None:
    numbers = torch.empty(2**31 + 128, device=device, dtype=FP16)
    table = numbers.as_strided((3, 64), (2**30 + 32, 1))
    table[2] = 3.5
    out = torch.empty(1, 64, device=device)
    embed(table, torch.tensor([2], device=device), out)
    assert (out == 3.5).all()


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 7), (3, 1500), (0, 64)])
def test_logits_are_capped_in_place(device: torch.device, dtype: torch.dtype, rows: int, vocab: int) -> None:
    logits = (torch.randn(rows, vocab + 5, device=device) * 60).to(dtype)[:, :vocab]
    expected = reference.softcap(logits, 30.0)
    assert softcap(logits, 30.0) is logits
    assert row_error(logits, expected) <= rounding(dtype)


def test_infinities_reach_the_cap_and_a_nan_stays(device: torch.device) -> None:
    logits = torch.tensor([[torch.inf, -torch.inf, torch.nan, 0.0, 1e30]], device=device)
    softcap(logits, 50.0)
    assert logits[0, [0, 1, 3, 4]].tolist() == [50.0, -50.0, 0.0, 50.0]
    assert logits[0, 2].isnan()


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    table, out = torch.zeros(4, 8, device=device), torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match=r"The table is \[4, 8\], ids \[3\] and out \[2, 8\]"):
        embed(table, torch.zeros(3, device=device, dtype=torch.int32), out)
    with pytest.raises(ValueError, match=r"ids are torch.float32"):
        embed(table, torch.zeros(2, device=device), out)
    with pytest.raises(ValueError, match=r"the cap is 0.0: .* above 0"):
        softcap(out, 0.0)
