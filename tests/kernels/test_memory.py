from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from slipway_kernels.cpu import Packed, PackedCodes, PageMemory, Threads, apart, packed, reserved, spread
from slipway_kernels.cpu.arrays import BF16
from slipway_kernels.cpu.memory import AHEAD, Memory


def resident(address: int) -> int:
    """KiB resident of the mapping that holds this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError(f"{address:#x} is not mapped")


def test_shared_memory_is_zero_and_apart() -> None:
    pieces = [Memory(size, shared=True) for size in (1, 5000, 3 << 20, 100 << 20, 64)]
    for place, piece in enumerate(pieces, 1):
        assert piece.address % 64 == 0
        assert ctypes.string_at(piece.address, 64) == bytes(64)
        ctypes.memset(piece.address, place, 64)
    assert [ctypes.string_at(piece.address, 1)[0] for piece in pieces] == [1, 2, 3, 4, 5]


def test_freed_shared_memory_leaves_its_neighbours() -> None:
    first, second, third = (Memory(8192, shared=True) for _ in range(3))
    ctypes.memset(third.address, 7, 8192)
    ctypes.memset(first.address, 5, 8192)
    del second
    assert ctypes.string_at(first.address, 8192) == bytes([5]) * 8192
    assert ctypes.string_at(third.address, 8192) == bytes([7]) * 8192


def test_what_was_reserved_is_taken_and_the_rest_given_back() -> None:
    with reserved(64 << 20):
        memory = Memory(1 << 20, shared=True)
        beside = memory.address + (32 << 20)
        assert resident(beside) >= 0  # mapped
    with pytest.raises(AssertionError, match="not mapped"):
        resident(beside)
    assert ctypes.string_at(memory.address, 64) == bytes(64)


def test_what_is_freed_of_reserved_memory_stays_while_a_thread_touches_it() -> None:
    with reserved(64 << 20):
        freed = Memory(1 << 20, shared=True).address
        assert resident(freed) >= 0  # mapped
    with pytest.raises(AssertionError, match="not mapped"):
        resident(freed)


def test_what_is_made_apart_takes_nothing_of_what_was_reserved() -> None:
    with reserved(64 << 20):
        first = Memory(1 << 20, shared=True)
        with apart():
            Memory(1 << 20, shared=True)
        second = Memory(1 << 20, shared=True)
    assert second.address == first.address + (1 << 20)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [-1, -(1 << 20), -(3 << 20), 1 << 62])
def test_what_is_no_size_is_refused(size: int, shared: bool) -> None:
    with pytest.raises(MemoryError, match="refused"):
        Memory(size, shared=shared)


@pytest.mark.parametrize("size", [-1, -(1 << 20), -(3 << 20), 1 << 62])
def test_where_too_much_is_reserved_memory_is_taken_as_ever(size: int) -> None:
    with reserved(size):
        memory = Memory(1 << 20, shared=True)
        ctypes.memset(memory.address, 7, 1 << 20)
    assert ctypes.string_at(memory.address, 1) == bytes([7])


def test_packed_weights_are_those_that_live_and_that_this_thread_made() -> None:
    before = [Packed(32, 64, "fp32")]
    with packed() as weights:
        kept = [Packed(32, 64, "fp32"), PackedCodes(32, 64, 4, 32)]
        before.clear()
        Packed(32, 64, "fp32")  # which goes at once
        other = Thread(target=lambda: kept.append(Packed(32, 64, "fp32")))
        other.start()
        other.join()
        with packed() as inner:
            kept.append(Packed(32, 64, "bf16"))
    kept.append(Packed(32, 64, "fp32"))
    assert list(inner) == [kept[3]]
    assert set(weights) == {kept[0], kept[1], kept[3]}


@pytest.fixture
def two_nodes() -> Iterator[tuple[int, ...]]:
    """Of one processor each; which, for they may be the same one here."""
    allowed = sorted(os.sched_getaffinity(0))
    nodes = allowed[0], allowed[-1]
    spread([[cpu] for cpu in nodes])
    yield nodes
    spread([])


def test_what_is_touched_on_several_nodes_is_as_ever(two_nodes: tuple[int, ...]) -> None:
    before = os.sched_getaffinity(0)
    with reserved(64 << 20):
        memory = Memory(20 << 20, shared=True)
        ctypes.memset(memory.address, 7, 20 << 20)
    assert ctypes.string_at(memory.address, 20 << 20) == bytes([7]) * (20 << 20)
    pages = PageMemory(32, 1 << 20)
    while pages.touch_ahead():
        pass
    assert resident(pages.memory.address) >= 32 << 10
    assert os.sched_getaffinity(0) == before


def test_threads_stay_where_they_are_told_and_leave_the_caller_free() -> None:
    def where() -> dict[int, set[int]]:
        """Of each thread of this process, but for those that end just now."""
        found = {}
        for task in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                found[int(task)] = os.sched_getaffinity(int(task))
        return found

    before, allowed = where(), sorted(os.sched_getaffinity(0))
    cpus = [allowed[0], allowed[-1], allowed[0]]
    threads = Threads(3, cpus)
    weight = Packed(256, 64, "fp32")
    weight.load_rows(np.ones((256, 64), np.float32), threads=threads)  # by when each has begun
    after = where()
    begun = [after[task] for task in after.keys() - before.keys()]
    assert all({cpu} in begun for cpu in cpus[1:])
    assert after[os.getpid()] == set(allowed)
    with pytest.raises(ValueError, match="3 threads cannot have 2 processors"):
        Threads(3, cpus[:2])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [100, 1000])
def test_packing_on_many_threads_changes_nothing(rows: int, dtype: str) -> None:
    draw = np.random.default_rng(0)
    source = draw.standard_normal((rows, 77), np.float32)
    places = draw.permutation(1024)[:rows].astype(np.int32)
    alone, together = Packed(1024, 77, dtype), Packed(1024, 77, dtype)
    alone.load_rows(source, places)
    together.load_rows(source, places, Threads(3))
    everything = np.arange(1024)
    assert (alone.rows(everything) == together.rows(everything)).all()
    stored = source if dtype == "fp32" else source.astype(BF16)
    assert np.array_equal(alone.rows(places), stored.astype(np.float32))


def test_pages_are_touched_ahead_of_use_and_no_further() -> None:
    pool = PageMemory(1024, 1 << 20)
    while pool.touch_ahead():
        pass
    touched = resident(pool.memory.address)
    assert AHEAD >> 10 <= touched <= (AHEAD >> 10) + (4 << 10)
    pool.use([99])
    while pool.touch_ahead():
        pass
    assert touched + (98 << 10) <= resident(pool.memory.address) <= touched + (104 << 10)
    pool.use([1023])
    assert not pool.touch_ahead()
