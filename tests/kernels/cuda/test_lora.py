from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.lora import (
    OwnShape,
    OwnTables,
    Pool,
    PoolShape,
    Rows,
    add_looked_up,
    add_lora,
    enter_own,
    expand,
    own_logits,
    reference,
    shrink,
    sort_rows,
    unsorted,
    workspace,
)
from slipway_kernels.lora.rows import FEW, MANY


def sorted_rows(device: torch.device, adapters: list[int], count: int) -> Rows:
    """Rows of these adapters, of a pool of so many."""
    active = max(adapters) >= 0
    adapter_of = torch.tensor(adapters, dtype=torch.int32, device=device)
    return sort_rows(adapter_of, count, unsorted(len(adapters), count, device, active=active))


def poison(pool: Pool) -> None:
    """What lies beyond the factors of a part becomes NaN, so that reading it would show."""
    shape = pool.shape
    for adapter, own in enumerate(pool.ranks.tolist()):
        by_slice = pool.a[adapter].view(len(shape.slices), shape.part_rank, shape.k)
        by_slice[:, shape.dealt(own) :] = float("nan")
        pool.b[adapter, :, own:] = float("nan")


def pool_of(
    device: torch.device,
    ranks: list[int],
    rank: int,
    k: int,
    slices: tuple[int, ...],
    dtype: torch.dtype,
    *,
    bias: bool = False,
) -> Pool:
    """Random adapters; NaN wherever an adapter has nothing, so that reading it would show."""
    pool = PoolShape(rank, k, slices, dtype, bias).empty(len(ranks), device)
    pool.a.copy_(reference.filled(pool.a.shape, k**-0.5, dtype, device))
    pool.b.copy_(reference.filled(pool.b.shape, rank**-0.5, dtype, device))
    if pool.bias is not None:
        pool.bias.copy_(torch.randn(pool.bias.shape))
    pool.ranks.copy_(torch.tensor(ranks))
    poison(pool)
    return pool


def expected_of(pool: Pool, x: torch.Tensor, out: torch.Tensor, adapters: list[int]) -> torch.Tensor:
    lists = pool.ranks.tolist(), pool.starts.tolist(), adapters
    return reference.lora(x, pool.a, pool.b, *lists, out, pool.bias)


@pytest.mark.parametrize(
    ("adapters", "ranks", "rank", "k", "slices", "dtype"),
    [
        ([0], [8], 8, 64, (24,), torch.bfloat16),
        ([1, -1, 0, 1, 2], [16, 4, 9], 16, 100, (40, 24, 8), torch.bfloat16),
        ([2, 2, 2, -1], [3, 0, 20], 20, 520, (17, 19), torch.float16),
        ([0, 1] * 9 + [-1], [5, 48], 48, 72, (40,), torch.float32),
        ([3] * 20 + [0, -1], [512, 1, 1, 512], 512, 48, (33,), torch.float32),
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
    rows = sorted_rows(device, adapters, len(ranks))
    h = workspace(pool, len(adapters) + 3).fill_(float("nan"))
    assert add_lora(x, pool, rows, h, out) is out
    # x · Aᵀ is rounded, and the result.
    assert row_error(out, expected) <= rounding(dtype, dtype, terms=k)
    without = torch.tensor(adapters, device=device) < 0
    assert torch.equal(wide[without], before[without])
    assert torch.equal(wide[:, :2], before[:, :2])
    assert torch.equal(wide[:, -3:], before[:, -3:])


@pytest.mark.parametrize("rows", [3, 90])
def test_rows_that_share_one_of_x_are_added_to_as_if_each_had_it(device: torch.device, rows: int) -> None:
    """Pairs of a row and one of its experts; each expert of each adapter counts as one."""
    pool = pool_of(device, [8, 3, 0, 8, 5, 1], 8, 40, (24, 16), torch.float32)
    adapters = [0, *torch.randint(-1, 6, (3 * rows - 1,)).tolist()]
    x, out = torch.randn(rows, 40, device=device), torch.randn(3 * rows, 40, device=device)
    expected = expected_of(pool, x.repeat_interleave(3, 0), out, adapters)
    by_adapter = sorted_rows(device, adapters, 6)
    add_lora(x, pool, by_adapter, workspace(pool, 3 * rows), out, share=3)
    assert row_error(out, expected) <= rounding(terms=40)


def test_an_adapter_beside_a_product_is_the_merged_weight(device: torch.device) -> None:
    pool = pool_of(device, [12], 12, 96, (40,), torch.float32)
    weight, x = torch.randn(40, 96, device=device), torch.randn(6, 96, device=device)
    out = x @ weight.T
    add_lora(x, pool, sorted_rows(device, [0] * 6, 1), workspace(pool, 6), out)
    merged = reference.merged(weight, pool.a[0], pool.b[0])
    assert row_error(out, x.double() @ merged.double().T) <= rounding(terms=96)


@pytest.mark.parametrize(
    ("dtype", "model"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
def test_adapters_have_a_type_of_their_own(
    device: torch.device, dtype: torch.dtype, model: torch.dtype
) -> None:
    pool = pool_of(device, [8, 4], 8, 96, (24, 16), dtype)
    x, out = (torch.randn(5, width, device=device, dtype=model) for width in (96, 40))
    adapters = [0, 1, -1, 1, 0]
    expected = expected_of(pool, x.to(dtype), out, adapters)
    add_lora(x, pool, sorted_rows(device, adapters, 2), workspace(pool, 5), out)
    assert row_error(out, expected) <= rounding(dtype, model, terms=96)


def test_biases_are_added_also_where_there_are_no_factors(device: torch.device) -> None:
    pool = pool_of(device, [8, 0], 8, 40, (24, 16), torch.float32, bias=True)
    x, out = torch.randn(4, 40, device=device), torch.randn(4, 40, device=device)
    expected = expected_of(pool, x, out, [1, 0, -1, 1])
    add_lora(x, pool, sorted_rows(device, [1, 0, -1, 1], 2), workspace(pool, 4), out)
    assert row_error(out, expected) <= rounding(terms=40)


@pytest.mark.parametrize("rows", [5, 300])
def test_an_embedding_gets_what_its_rows_adapters_have_for_their_tokens(
    device: torch.device, rows: int
) -> None:
    pool = PoolShape(70, 11, (40,), torch.bfloat16, by_token=True).empty(3, device)
    for place, rank in enumerate((70, 0, 3)):
        a, b = torch.randn(rank, 11, device=device), torch.randn(40, rank, device=device)
        pool.put(place, [(a, b * 70**-0.5) if rank else None])
    adapters = torch.randint(-1, 3, (rows,)).tolist()
    ids = torch.randint(11, (rows,), dtype=torch.int32, device=device)
    out = torch.randn(rows, 40, device=device).bfloat16()
    ranks = pool.ranks.tolist()
    expected = reference.looked_up(ids.tolist(), pool.a, pool.b, ranks, adapters, out)
    ids[torch.tensor(adapters, device=device) < 0] = -1  # padding may have anything
    add_looked_up(ids, pool, sorted_rows(device, adapters, 3), workspace(pool, rows), out)
    assert row_error(out, expected) <= rounding(torch.bfloat16, terms=70)


def test_pools_that_share_a_place_keep_apart(device: torch.device) -> None:
    """An adapter of all layers is one run of bytes, which a copy takes elsewhere."""
    shapes = [PoolShape(4, 12, (8,), torch.bfloat16, bias) for bias in (True, False)]
    size = sum(shape.nbytes for shape in shapes)
    memory = torch.zeros(2, size, dtype=torch.uint8, device=device)
    parts = [(torch.randn(4, 12).bfloat16(), torch.randn(8, 4).bfloat16()) for _ in shapes]
    for shape, at, part in zip(shapes, (0, shapes[0].nbytes), parts, strict=True):
        shape.over(memory[:1], at).put(0, [part], torch.ones(8) if shape.bias else None)
    memory[1] = memory[0]
    for shape, at, (a, b) in zip(shapes, (0, shapes[0].nbytes), parts, strict=True):
        pool = shape.over(memory, at)
        assert pool.ranks.tolist() == [4, 4]
        assert torch.equal(pool.a[1].cpu(), a)
        assert torch.equal(pool.b[1].cpu(), b)


def test_an_adapter_is_put_slice_by_slice_over_another_and_keeps_to_its_slices(device: torch.device) -> None:
    pool = pool_of(device, [8, 8], 8, 32, (12, 20, 8), torch.float32)
    first = torch.randn(8, 32, device=device), torch.randn(12, 8, device=device)
    last = torch.randn(3, 32, device=device), torch.randn(8, 3, device=device)
    pool.put(1, (first, None, last))
    x = torch.randn(2, 32, device=device)
    out = torch.zeros(2, 40, device=device)
    add_lora(x, pool, sorted_rows(device, [1, -1], 2), workspace(pool, 2), out)
    weights = [b @ a for a, b in (first, last)]
    expected = torch.cat([weights[0] @ x[0], torch.zeros(20, device=device), weights[1] @ x[0]])
    assert row_error(out[0], expected) <= rounding(terms=32)
    assert not out[1].any()


def test_an_adapter_that_does_not_fit_is_refused_and_the_place_stays_as_it_was(device: torch.device) -> None:
    pool = pool_of(device, [4], 4, 16, (8, 6), torch.bfloat16)
    before = pool.a.clone(), pool.b.clone()
    fits = torch.zeros(4, 16), torch.zeros(8, 4)
    with pytest.raises(ValueError, match="the adapter has 1 slices and the layer 2"):
        pool.put(0, (fits,))
    with pytest.raises(ValueError, match=r"slice 1 of the adapter has A \[5, 16\] and B \[6, 5\]"):
        pool.put(0, (fits, (torch.zeros(5, 16), torch.zeros(6, 5))))
    with pytest.raises(
        ValueError, match=r"here they are \[rank, 16\] and \[6, rank\], of a rank of at most 4"
    ):
        pool.put(0, (fits, fits))
    with pytest.raises(ValueError, match=r"the adapter has a bias \[14\], and there is room for none"):
        pool.put(0, (fits, None), torch.zeros(14))
    assert torch.equal(pool.a.nan_to_num(), before[0].nan_to_num())
    assert torch.equal(pool.b.nan_to_num(), before[1].nan_to_num())
    assert pool.ranks.tolist() == [4]


def test_the_parts_of_a_shrunk_row_sum_to_the_product(device: torch.device) -> None:
    pool = pool_of(device, [16, 16], 16, 1100, (8,), torch.float32)
    x = torch.randn(3, 1100, device=device)
    h = shrink(x, pool, sorted_rows(device, [1, 0, 1], 2), workspace(pool, 3))
    expected = torch.stack([pool.a[1] @ x[0], pool.a[0] @ x[1], pool.a[1] @ x[2]])
    assert row_error(h.sum(0), expected) <= rounding(terms=1100)


@pytest.mark.parametrize("rows", [1, 256, 257, 1100, 4096, 4097, 9000])
def test_a_workspace_has_room_for_every_smaller_batch(device: torch.device, rows: int) -> None:
    pool = PoolShape(2, 4, (3,), torch.bfloat16).empty(1, device)
    h = workspace(pool, rows)
    for count in (1, 255, 256, 257, 1023, 1100, 4096, 4097, 9000):
        if count <= rows:
            nobody = torch.full((count,), -1, dtype=torch.int32, device=device)
            without = sort_rows(nobody, 1, unsorted(count, 1, device))
            x = torch.empty(count, 4, dtype=torch.bfloat16, device=device)
            assert shrink(x, pool, without, h).shape[1:] == (count, 2)


def test_a_batch_without_adapters_launches_nothing(device: torch.device) -> None:
    pool = pool_of(device, [4], 4, 16, (8,), torch.bfloat16)
    rows = sorted_rows(device, [-1, -1], 1)
    assert not rows.active
    x, out = torch.randn(2, 16, device=device), torch.randn(2, 8, device=device)  # of a type that is refused
    before = out.clone()
    assert torch.equal(add_lora(x, pool, rows, workspace(pool, 2), out), before)


@pytest.mark.parametrize("rows", [1, 5, 40, 300, 2500])
@pytest.mark.parametrize("count", [1, 6, 40])
def test_sorting_gives_each_row_of_an_adapter_one_place_in_the_tiles(
    device: torch.device, rows: int, count: int
) -> None:
    adapters = [0, *torch.randint(-1, count, (rows - 1,)).tolist()]
    found = sorted_rows(device, adapters, count)
    assert found.block == (FEW if rows <= 256 else MANY)
    with_one = [row for row in range(rows) if adapters[row] >= 0]
    expected = sorted(with_one, key=lambda row: adapters[row])
    without = [row for row in range(rows) if adapters[row] < 0]
    assert found.order.tolist() == expected + without
    seen: list[tuple[int, int]] = []
    for adapter, first, length in found.tiles.tolist():
        assert 0 <= length <= found.block
        assert (adapter >= 0) == (length > 0)
        seen += [(row, adapter) for row in found.order[first : first + length].tolist()]
    assert seen == [(row, adapters[row]) for row in expected]


def test_rows_of_slots_have_the_adapter_of_their_slot_and_padding_has_none(device: torch.device) -> None:
    adapter_of = torch.tensor([2, -1, 0, 1], dtype=torch.int32, device=device)
    slots = torch.tensor([3, 3, 1, 0, -1, 2, -1], dtype=torch.int32, device=device)
    found = sort_rows(adapter_of, 3, unsorted(7, 3, device), slots)
    assert found.order.tolist() == [5, 0, 1, 3, 2, 4, 6]
    assert [tile for tile in found.tiles.tolist() if tile[0] >= 0] == [[0, 0, 1], [1, 1, 2], [2, 3, 1]]


def test_the_shapes_of_sorted_rows_depend_on_sizes_alone(device: torch.device) -> None:
    shapes = {
        tuple(sorted_rows(device, adapters, 4).tiles.shape)
        for adapters in ([-1] * 8, [0] * 8, [0, 1, 2, 3] * 2, [3, -1] * 4)
    }
    assert len(shapes) == 1


def test_rows_are_sorted_into_room_of_their_number(device: torch.device) -> None:
    adapters = torch.zeros(2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="a batch of 2 rows is sorted into room for 3"):
        sort_rows(adapters, 1, unsorted(3, 1, device))


def test_sizes_and_types_that_disagree_are_refused(device: torch.device) -> None:
    pool = pool_of(device, [4], 4, 16, (8,), torch.bfloat16)
    rows, h = sorted_rows(device, [0, 0], 1), workspace(pool, 2)
    x = torch.zeros(2, 16, device=device, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"x is \[2, 15\] by strides of \(16, 1\), A \[1, 4, 16\]"):
        shrink(x[:, 1:], pool, rows, h)
    with pytest.raises(
        ValueError, match="the batch has 2 rows, 2 were sorted, and h has room for 63 numbers"
    ):
        shrink(x, pool, rows, h[:-1])
    shrunk = shrink(x, pool, rows, h)
    with pytest.raises(ValueError, match=r"out is \[2, 9\]"):
        expand(shrunk, pool, rows, torch.zeros(2, 9, device=device))
    with pytest.raises(ValueError, match=r"out has 3 rows, 2 were sorted, and h is \[8, 2, 4\]"):
        expand(shrunk, pool, rows, torch.zeros(3, 8, device=device))
    with pytest.raises(ValueError, match="make the pool `by_token`"):
        add_looked_up(torch.zeros(2, dtype=torch.int32, device=device), pool, rows, h, shrunk[0])
    with pytest.raises(ValueError, match=r"adapters of \d+ bytes have no room from byte 0 of 256 on"):
        PoolShape(4, 16, (8,), torch.bfloat16).over(torch.zeros(2, 256, dtype=torch.uint8, device=device))


def own_tables(device: torch.device, dtype: torch.dtype = torch.float32) -> OwnTables:
    """Of two rows, of none and of thirty-five; NaN wherever an adapter has nothing."""
    shape = OwnShape(60, 35, 40, dtype)
    tables = shape.over(torch.zeros(3, shape.nbytes, dtype=torch.uint8, device=device))
    for place, own in enumerate(([3, 58], [], list(range(5, 40)))):
        count, ids = len(own), torch.tensor(own, dtype=torch.int64)
        tables.row_of[place, ids] = torch.arange(1, count + 1, dtype=torch.int32, device=device)
        tables.tokens[place, :count] = ids.int()
        tables.counts[place] = count
        for part in (tables.bias, tables.embedding, tables.head):
            part[place] = torch.nan
            part[place, :count] = torch.randn(count, *part.shape[2:], device=device).to(part.dtype)
    return tables


def test_rows_of_an_adapters_own_tokens_become_its_embeddings(device: torch.device) -> None:
    tables = own_tables(device)
    ids = torch.tensor([3, 58, 3, 7, 7, 59, 60, -1, 3], dtype=torch.int32, device=device)
    slots = torch.tensor([0, 0, 1, 2, 0, 2, 2, 2, -1], dtype=torch.int32, device=device)
    place_of = torch.tensor([0, -1, 2], dtype=torch.int32, device=device)
    before = torch.randn(9, 40, device=device).bfloat16()
    out = enter_own(ids, slots, place_of, tables, before.clone())
    expected = before.clone()
    expected[0], expected[1], expected[3] = (
        tables.embedding[place, row].bfloat16() for place, row in ((0, 0), (0, 1), (2, 2))
    )
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("rows", "dtype", "cap"), [(5, torch.float32, 0.0), (7, torch.bfloat16, 20.0), (260, torch.float32, 0.0)]
)
def test_logits_of_own_tokens_take_the_columns_of_these(
    device: torch.device, rows: int, dtype: torch.dtype, cap: float
) -> None:
    tables = own_tables(device, dtype)
    adapters = (torch.arange(rows) % 4 - 1).tolist()
    x = torch.randn(rows, 40, device=device).to(dtype)
    before = torch.randn(rows, 64, device=device).to(dtype)
    lists = tables.tokens, tables.counts.tolist(), adapters
    expected = reference.own_logits(x, tables.head, tables.bias, *lists, before, cap)
    out = own_logits(x, tables, sorted_rows(device, adapters, 3), before.clone(), cap=cap)
    assert row_error(out, expected) <= rounding(dtype, dtype, terms=40)
    assert torch.equal(out[:, 60:], before[:, 60:])
    alone = own_logits(x[3:4], tables, sorted_rows(device, [2], 3), before[3:4].clone(), cap=cap)
    assert rows > 256 or torch.equal(alone[0], out[3])
