"""How the work of a step is dealt to threads: each takes the next unit as soon as it has done its own."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from slipway_kernels.cpu.binding import address, library

ROOM = 1 << 20
EVEN = 1.15
"""The work of the busiest thread, at most, over the mean."""


def attention(
    requests: Sequence[tuple[int, int]],
    threads: int,
    *,
    heads: int = 32,
    kv_heads: int = 8,
    window: int = 0,
    most_parts: int = 1 << 30,
) -> list[int]:
    """The splits of each unit; requests are (rows, first position)."""
    rows, firsts = np.array(requests, np.int32).T.copy()
    splits = np.empty(ROOM, np.int32)
    shape = heads, kv_heads, window, threads, most_parts
    count = library().sw_attention_units(
        len(rows), address(rows), address(firsts), *shape, address(splits), ROOM
    )
    assert count <= ROOM
    return splits[:count].tolist()


def experts(pairs: Sequence[int], blocks: int, threads: int) -> list[tuple[int, int, int]]:
    """Expert, rows and blocks of each unit; pairs: how many rows chose each expert."""
    offsets = np.cumsum([0, *pairs], dtype=np.int32)
    units = np.empty((ROOM, 3), np.int32)
    count = library().sw_expert_units(address(offsets), len(pairs), blocks, threads, address(units), ROOM)
    assert count <= ROOM
    return [(expert, rows, part) for expert, rows, part in units[:count].tolist()]


def unevenness(work: Iterable[int], threads: int) -> float:
    busy = [0] * threads
    for one in work:
        heapq.heapreplace(busy, busy[0] + one)
    return max(busy) * threads / sum(busy)


def chosen(rows: int, experts: int = 128, top_k: int = 8) -> list[int]:
    draw = np.random.default_rng(rows)
    picks = np.concatenate([draw.choice(experts, top_k, replace=False) for _ in range(rows)])
    return np.bincount(picks, minlength=experts).tolist()


LONG = (1, 99_999)
SHORT = [(1, 100 + 37 * number) for number in range(16)]


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize(
    "requests",
    [[LONG, *SHORT], [*SHORT, LONG], [*SHORT[:5], LONG, *SHORT[5:]], [LONG], [(1, 20_000), LONG, (2, 7_000)]],
    ids=["first", "last", "midway", "alone", "three"],
)
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (64, 8), (28, 4), (9, 3)])
def test_a_long_context_is_everybodys_work(
    requests: list[tuple[int, int]], threads: int, heads: int, kv_heads: int
) -> None:
    units = attention(requests, threads, heads=heads, kv_heads=kv_heads)
    assert unevenness(units, threads) <= EVEN
    tiles = [-(-rows * heads // kv_heads // 12) for rows, _ in requests]
    splits = [-(-(first + rows) // 512) for rows, first in requests]
    assert sum(units) == kv_heads * sum(map(int.__mul__, tiles, splits))


@pytest.mark.parametrize("threads", [8, 64])
def test_a_window_is_what_counts(threads: int) -> None:
    units = attention([LONG, *SHORT], threads, window=4096)
    assert sum(units) < 8 * (4096 // 512 + 2 + 2 * 16)


def test_requests_alike_are_not_cut() -> None:
    assert attention([(1, 3000)] * 8, 4) == [6] * 64
    assert attention([(512, 0)], 4) == [1] * (8 * -(-512 * 4 // 12))
    assert attention([LONG], 1) == [196] * 8


def test_what_has_no_room_for_parts_is_not_cut() -> None:
    needs = 196 * 32
    assert max(attention([LONG, *SHORT], 8, most_parts=needs)) < 196
    assert max(attention([LONG, *SHORT], 8, most_parts=needs - 1)) == 196
    both = attention([LONG, *SHORT, LONG], 8, most_parts=needs)
    assert both.count(196) == 8


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize("rows", [1, 2, 8, 32, 500, 4096])
@pytest.mark.parametrize("blocks", [48, 64, 96])  # gate and up of 768; 2,048 and 3,072 columns down
def test_only_chosen_experts_are_work_and_it_is_even(rows: int, blocks: int, threads: int) -> None:
    pairs = chosen(rows)
    units = experts(pairs, blocks, threads)
    found = [0] * len(pairs)
    for expert, count, part in units:
        assert count > 0
        found[expert] += count * part
    assert found == [count * blocks for count in pairs]
    # A step with few rows is bound by reading weights, one with many by arithmetic.
    work = (part * (count if rows > 32 else 1) for _, count, part in units)
    assert unevenness(work, threads) <= EVEN


def test_an_expert_that_many_choose_is_everybodys_work() -> None:
    pairs = [4096 if expert == 5 else 10 for expert in range(128)]
    units = experts(pairs, 48, 64)
    assert unevenness((count * part for _, count, part in units), 64) <= EVEN
