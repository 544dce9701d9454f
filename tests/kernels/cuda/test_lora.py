from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.lora import Pool, add_lora, expand, reference, shrink, sort_rows, workspace
from slipway_kernels.lora.rows import FEW, MANY


def pool_of(
    device: torch.device, ranks: list[int], rank: int, k: int, slices: tuple[int, ...], dtype: torch.dtype
) -> Pool:
    """Random adapters; NaN wherever an adapter has nothing, so that reading it would show."""
    pool = Pool.empty(len(ranks), rank, k, slices, dtype, device)
    pool.a.copy_(reference.filled(pool.a.shape, k**-0.5, dtype, device))
    pool.b.copy_(reference.filled(pool.b.shape, rank**-0.5, dtype, device))
    pool.scaling.copy_(torch.arange(len(ranks)) * 0.25 + 0.5)
    pool.ranks.copy_(torch.tensor(ranks))
    for adapter, own in enumerate(ranks):
        pool.a[adapter].view(len(slices), rank, k)[:, own:] = float("nan")
        pool.b[adapter, :, own:] = float("nan")
    return pool


def expected_of(pool: Pool, x: torch.Tensor, out: torch.Tensor, adapters: list[int]) -> torch.Tensor:
    lists = pool.scaling.tolist(), pool.ranks.tolist(), pool.starts.tolist(), adapters
    return reference.lora(x, pool.a, pool.b, *lists, out)


@pytest.mark.parametrize(
    ("adapters", "ranks", "rank", "k", "slices", "dtype"),
    [
        ([0], [8], 8, 64, (24,), torch.bfloat16),
        ([1, -1, 0, 1, 2], [16, 4, 9], 16, 100, (40, 24, 8), torch.bfloat16),
        ([2, 2, 2, -1], [3, 0, 20], 20, 520, (17, 19), torch.float16),
        ([0, 1] * 9 + [-1], [5, 48], 48, 72, (40,), torch.float32),
        ([3] * 20 + [0, -1], [256, 1, 1, 256], 256, 48, (33,), torch.float32),
        ([1, 0, -1] * 90, [7, 16], 16, 72, (130,), torch.bfloat16),  # tiles of 64 rows
        ([0] * 258, [24], 24, 96, (20, 12), torch.float16),
    ],
)
def test_every_row_gets_what_its_adapter_adds(
    device: torch.device,
    adapters: list[int],
    ranks: list[int],
    rank: int,
    k: int,
    slices: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    pool = pool_of(device, ranks, rank, k, slices, dtype)
    x = torch.randn(len(adapters), 2 * k, device=device, dtype=dtype)[:, k:]
    wide = torch.randn(len(adapters), sum(slices) + 5, device=device, dtype=dtype)
    before, out = wide.clone(), wide[:, 2 : 2 + sum(slices)]  # columns of a wider product
    expected = expected_of(pool, x, out, adapters)
    rows = sort_rows(torch.tensor(adapters), len(ranks))
    h = workspace(pool, len(adapters) + 3).fill_(float("nan"))
    on_device = type(rows)(rows.order.to(device), rows.tiles.to(device), rows.block, rows.active)
    assert add_lora(x, pool, on_device, h, out) is out
    # x · Aᵀ is rounded, and the result.
    assert row_error(out, expected) <= rounding(dtype, dtype, terms=k)
    without = torch.tensor(adapters, device=device) < 0
    assert torch.equal(wide[without], before[without])
    assert torch.equal(wide[:, :2], before[:, :2])
    assert torch.equal(wide[:, -3:], before[:, -3:])


def test_an_adapter_beside_a_product_is_the_merged_weight(device: torch.device) -> None:
    pool = pool_of(device, [12], 12, 96, (40,), torch.float32)
    weight, x = torch.randn(40, 96, device=device), torch.randn(6, 96, device=device)
    out = x @ weight.T
    add_lora(x, pool, sort_rows(torch.zeros(6, dtype=torch.int), 1), workspace(pool, 6), out)
    merged = reference.merged(weight, pool.a[0], pool.b[0], float(pool.scaling[0]))
    assert row_error(out, x.double() @ merged.double().T) <= rounding(terms=96)


def test_an_adapter_is_put_slice_by_slice_over_another_and_keeps_to_its_slices(device: torch.device) -> None:
    pool = pool_of(device, [8, 8], 8, 32, (12, 20, 8), torch.float32)
    first = torch.randn(8, 32, device=device), torch.randn(12, 8, device=device)
    last = torch.randn(3, 32, device=device), torch.randn(8, 3, device=device)
    pool.put(1, (first, None, last), 0.5)
    x = torch.randn(2, 32, device=device)
    out = torch.zeros(2, 40, device=device)
    add_lora(x, pool, sort_rows(torch.tensor([1, -1]), 2), workspace(pool, 2), out)
    weights = [0.5 * b @ a for a, b in (first, last)]
    expected = torch.cat([weights[0] @ x[0], torch.zeros(20, device=device), weights[1] @ x[0]])
    assert row_error(out[0], expected) <= rounding(terms=32)
    assert not out[1].any()


def test_an_adapter_that_does_not_fit_is_refused_and_the_place_stays_as_it_was(device: torch.device) -> None:
    pool = pool_of(device, [4], 4, 16, (8, 6), torch.bfloat16)
    before = pool.a.clone(), pool.b.clone()
    fits = torch.zeros(4, 16), torch.zeros(8, 4)
    with pytest.raises(ValueError, match="the adapter has 1 slices and the layer 2"):
        pool.put(0, (fits,), 1.0)
    with pytest.raises(ValueError, match=r"slice 1 of the adapter has A \[5, 16\] and B \[6, 5\]"):
        pool.put(0, (fits, (torch.zeros(5, 16), torch.zeros(6, 5))), 1.0)
    with pytest.raises(
        ValueError, match=r"here they are \[rank, 16\] and \[6, rank\], of a rank of at most 4"
    ):
        pool.put(0, (fits, fits), 1.0)
    assert torch.equal(pool.a.nan_to_num(), before[0].nan_to_num())
    assert torch.equal(pool.b.nan_to_num(), before[1].nan_to_num())
    assert pool.ranks.tolist() == [4]


def test_the_parts_of_a_shrunk_row_sum_to_the_product(device: torch.device) -> None:
    pool = pool_of(device, [16, 16], 16, 1100, (8,), torch.float32)
    x = torch.randn(3, 1100, device=device)
    h = shrink(x, pool, sort_rows(torch.tensor([1, 0, 1]), 2), workspace(pool, 3))
    expected = torch.stack([pool.a[1] @ x[0], pool.a[0] @ x[1], pool.a[1] @ x[2]])
    assert row_error(h.sum(0), expected) <= rounding(terms=1100)


@pytest.mark.parametrize("rows", [1, 256, 257, 1100, 4096, 4097, 9000])
def test_a_workspace_has_room_for_every_smaller_batch(device: torch.device, rows: int) -> None:
    pool = Pool.empty(1, 2, 4, (3,), torch.bfloat16, device)
    h = workspace(pool, rows)
    for count in (1, 255, 256, 257, 1023, 1100, 4096, 4097, 9000):
        if count <= rows:
            without = sort_rows(torch.full((count,), -1, device=device), 1, active=True)
            x = torch.empty(count, 4, dtype=torch.bfloat16, device=device)
            assert shrink(x, pool, without, h).shape[1:] == (count, 2)


def test_a_batch_without_adapters_launches_nothing(device: torch.device) -> None:
    pool = pool_of(device, [4], 4, 16, (8,), torch.bfloat16)
    rows = sort_rows(torch.full((2,), -1), 1)
    assert not rows.active
    x, out = torch.randn(2, 16, device=device), torch.randn(2, 8, device=device)  # of a type that is refused
    before = out.clone()
    assert torch.equal(add_lora(x, pool, rows, workspace(pool, 2), out), before)


@pytest.mark.parametrize("rows", [1, 5, 40, 300])
def test_sorting_gives_each_row_of_an_adapter_one_place_in_the_tiles(rows: int) -> None:
    adapters = torch.randint(-1, 6, (rows,), dtype=torch.int32)
    sorted_rows = sort_rows(adapters, 6)
    assert sorted_rows.block == (FEW if rows <= 256 else MANY)
    assert sorted(sorted_rows.order.tolist()) == list(range(rows))
    seen: list[tuple[int, int]] = []
    for adapter, first, count in sorted_rows.tiles.tolist():
        assert 0 <= count <= sorted_rows.block
        assert (adapter >= 0) == (count > 0)
        seen += [(row, adapter) for row in sorted_rows.order[first : first + count].tolist()]
    expected = [(row, adapter) for row, adapter in enumerate(adapters.tolist()) if adapter >= 0]
    assert sorted(seen) == expected


def test_the_shapes_of_sorted_rows_depend_on_sizes_alone() -> None:
    shapes = {
        tuple(sort_rows(torch.tensor(adapters), 4).tiles.shape)
        for adapters in ([-1] * 8, [0] * 8, [0, 1, 2, 3] * 2, [3, -1] * 4)
    }
    assert len(shapes) == 1


def test_rows_that_are_sorted_off_the_host_must_say_whether_any_is_active() -> None:
    adapters = torch.zeros(2, dtype=torch.int, device="meta")
    with pytest.raises(ValueError, match="say by `active` whether any row has one"):
        sort_rows(adapters, 1)
    assert sort_rows(adapters, 1, active=False).active is False


def test_sizes_and_types_that_disagree_are_refused(device: torch.device) -> None:
    pool = pool_of(device, [4], 4, 16, (8,), torch.bfloat16)
    rows, h = sort_rows(torch.zeros(2, dtype=torch.int), 1), workspace(pool, 2)
    x = torch.zeros(2, 16, device=device, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"x is torch\.float32 \[2, 16\]"):
        shrink(x.float(), pool, rows, h)
    with pytest.raises(
        ValueError, match="the batch has 2 rows, 2 were sorted, and h has room for 63 numbers"
    ):
        shrink(x, pool, rows, h[:-1])
    shrunk = shrink(x, pool, rows, h)
    with pytest.raises(ValueError, match=r"out is \[2, 9\]"):
        expand(shrunk, pool, rows, torch.zeros(2, 9, device=device))
    with pytest.raises(ValueError, match=r"out has 3 rows, 2 were sorted, and h is \[8, 2, 4\]"):
        expand(shrunk, pool, rows, torch.zeros(3, 8, device=device))
    with pytest.raises(ValueError, match="the largest rank is 257"):
        Pool.empty(1, 257, 16, (8,), torch.bfloat16, device)
