"""What each of several ranks adds that share both matrices of an adapter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_lora import expected_of, poison, sorted_rows

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.lora import Pool, PoolShape, add_lora, fold, reference, shrink, workspace


def factors_of(
    rank: int, k: int, slices: tuple[int, ...], dtype: torch.dtype
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (
            reference.filled((rank, k), k**-0.5, dtype, torch.device("cpu")),
            reference.filled((columns, rank), max(rank, 1) ** -0.5, dtype, torch.device("cpu")),
        )
        for columns in slices
    ]


ADDED = torch.float32, torch.bfloat16
OF_RANKS = [6, 1, 0, 4]
"""Ranks of adapters: of fewer rows than there are ranks to which they are dealt, too."""


@pytest.mark.parametrize("dtype", ADDED)
@pytest.mark.parametrize("turns", [2, 3, 4])
@pytest.mark.parametrize("count", [9, 270])
def test_ranks_to_which_a_is_dealt_add_what_one_adds(
    device: torch.device, dtype: torch.dtype, turns: int, count: int
) -> None:
    slices, k = (24, 40, 8), 72
    parts = [factors_of(rank, k, slices, dtype) for rank in OF_RANKS]
    bias = torch.randn(sum(slices))
    shape = PoolShape(6, k, slices, dtype, bias=True)
    pools = [replace(shape, turn=turn, turns=turns).empty(4, device) for turn in range(turns)]
    whole = shape.empty(4, device)
    for place, factors in enumerate(parts):
        whole.put(place, factors, bias)
        for turn, pool in enumerate(pools):
            pool.put(place, [(a[turn::turns], b) for a, b in factors], bias)
    for pool in (whole, *pools):
        poison(pool)
    adapters = [0, *torch.randint(-1, 4, (count - 1,)).tolist()]
    rows = sorted_rows(device, adapters, 4)
    x, out = (torch.randn(count, width, device=device).to(dtype) for width in (k, sum(slices)))
    expected = expected_of(whole, x, out, adapters)
    for pool in pools:

        def added_up(part: torch.Tensor, own: Pool = pool) -> torch.Tensor:
            others = [
                fold(shrink(x, one, rows, workspace(one, count)), one) for one in pools if one is not own
            ]
            return torch.stack([part, *others]).sum(0)

        found = add_lora(x, pool, rows, workspace(pool, count), out.clone(), added_up=added_up)
        assert row_error(found, expected) <= rounding(dtype, dtype, terms=k)


@pytest.mark.parametrize("dtype", ADDED)
@pytest.mark.parametrize("bias", [False, True])
def test_ranks_that_share_columns_of_a_and_rows_of_b_add_what_one_adds(
    device: torch.device, dtype: torch.dtype, bias: bool
) -> None:
    """Each to the columns of its run, and the first one the bias, to all."""
    n, k, count = 150, 70, 9
    parts = [factors_of(rank, k, (n,), dtype) for rank in OF_RANKS]
    added = torch.randn(n) if bias else None
    whole = PoolShape(6, k, (n,), dtype, bias).empty(4, device)
    columns, runs = [slice(0, 40), slice(40, 50), slice(50, 70)], [range(50), range(50, 100), range(100, n)]
    pools = [
        PoolShape(6, len(range(k)[own]), (n,), dtype, bias and not rank, run=run).empty(4, device)
        for rank, (own, run) in enumerate(zip(columns, runs, strict=True))
    ]
    for place, ((a, b),) in enumerate(parts):
        whole.put(place, [(a, b)], added)
        for pool, own, run in zip(pools, columns, runs, strict=True):
            rows_of_b = b[run.start : run.stop]
            pool.put(place, [(a[:, own], rows_of_b)], None if pool.bias is None else added)
    for pool in (whole, *pools):
        poison(pool)
    adapters = [0, 3, -1, 2, 1, 0, 0, -1, 2]
    rows = sorted_rows(device, adapters, 4)
    x = torch.randn(count, k, device=device).to(dtype)
    before = torch.randn(count, n, device=device).to(dtype)
    shrunk = [
        fold(shrink(x[:, own], pool, rows, workspace(pool, count)), pool)
        for pool, own in zip(pools, columns, strict=True)
    ]
    h = torch.stack(shrunk).sum(0)
    found = before.clone()
    for pool, own in zip(pools, columns, strict=True):
        was = found.clone()
        add_lora(x[:, own], pool, rows, workspace(pool, count), found, added_up=lambda part: h)
        changed = (found != was).any(0).nonzero().flatten().tolist()
        run = pool.shape.run
        assert run is not None
        assert set(changed) <= set(run if pool.bias is None else range(n))
    expected = expected_of(whole, x, before, adapters)
    assert row_error(found, expected) <= rounding(dtype, dtype, terms=k)


def test_a_part_of_an_adapter_that_is_not_this_ranks_is_refused(device: torch.device) -> None:
    pool = PoolShape(6, 16, (8,), torch.float32, turn=1, turns=2).empty(1, device)
    pool.put(0, [(torch.ones(2, 16), torch.ones(8, 5))])
    assert pool.ranks.tolist() == [5]
    with pytest.raises(ValueError, match=r"A \[3, 16\] and B \[8, 5\].* whose A goes to 2 ranks by rows"):
        pool.put(0, [(torch.ones(3, 16), torch.ones(8, 5))])
    pool = PoolShape(6, 16, (8,), torch.float32, run=range(4, 8)).empty(1, device)
    with pytest.raises(ValueError, match=r"B \[8, 5\]: here they are \[rank, 16\] and \[4, rank\]"):
        pool.put(0, [(torch.ones(5, 16), torch.ones(8, 5))])
