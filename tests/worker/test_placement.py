"""Which core each thread has, on machines that are trees of files as Linux writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slipway.topology import Core, cores, listed
from slipway.worker.placement import Placement, bound, shared_out

NO_QUOTA = 1 << 16


def tree(root: Path, siblings: Sequence[str], nodes: Mapping[int, str]) -> Path:
    """/sys/devices/system of a machine; siblings: of each processor, as its file has it."""
    for cpu, text in enumerate(siblings):
        folder = root / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    for node, text in nodes.items():
        (root / f"node/node{node}").mkdir(parents=True)
        (root / f"node/node{node}/cpulist").write_text(text + "\n")
    (root / "node").mkdir(exist_ok=True)
    (root / "node/possible").write_text("0\n")
    return root


def machine(root: Path, name: str) -> list[Core]:
    """All of its cores."""

    def found(siblings: Sequence[str], nodes: Mapping[int, str]) -> list[Core]:
        return cores(set(range(len(siblings))), tree(root, siblings, nodes))

    match name:
        case "laptop":
            return found(["0", "1", "2", "3"], {0: "0-3"})
        case "desk":  # eight cores of two hyperthreads each, which Linux counts last
            return found([f"{cpu % 8},{cpu % 8 + 8}" for cpu in range(16)], {0: "0-15"})
        case "cloud":  # hyperthreads are neighbours
            return found([f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(16)], {0: "0-15"})
        case "two sockets":
            pairs = [f"{cpu % 16},{cpu % 16 + 16}" for cpu in range(32)]
            return found(pairs, {0: "0-7,16-23", 1: "8-15,24-31"})
        case "numbered in turns":
            return found([str(cpu) for cpu in range(8)], {0: "0,2,4,6", 1: "1,3,5,7"})
        case "untold":
            return cores({3, 5}, root)
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("desk", [(cpu, cpu + 8) for cpu in range(8)]),
        ("cloud", [(cpu, cpu + 1) for cpu in range(0, 16, 2)]),
        ("numbered in turns", [(0,), (2,), (4,), (6,), (1,), (3,), (5,), (7,)]),
        ("untold", [(3,), (5,)]),
    ],
)
def test_cores_have_their_hyperthreads(name: str, expected: list[tuple[int, ...]], tmp_path: Path) -> None:
    assert [core.cpus for core in machine(tmp_path, name)] == expected


def test_only_what_is_allowed_counts(tmp_path: Path) -> None:
    system = tree(tmp_path, [f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)], {0: "0-1,4-5", 1: "2-3,6-7"})
    assert cores({1, 5, 6}, system) == [Core((1, 5), 0), Core((6,), 1)]


@pytest.mark.parametrize(
    ("name", "parts", "found"),
    [
        ("desk", 1, [tuple(range(8))]),
        ("cloud", 1, [tuple(range(0, 16, 2))]),
        ("cloud", 2, [(0, 2, 4, 6), (8, 10, 12, 14)]),
        ("cloud", 3, [(0, 2), (4, 6), (8, 10)]),
        ("two sockets", 2, [tuple(range(8)), tuple(range(8, 16))]),
        ("numbered in turns", 2, [(0, 2, 4, 6), (1, 3, 5, 7)]),
    ],
)
def test_each_part_has_its_own_cores_and_leaves_hyperthreads_alone(
    name: str, parts: int, found: list[tuple[int, ...]], tmp_path: Path
) -> None:
    every = machine(tmp_path, name)
    places = [shared_out(every, NO_QUOTA, parts, part, None) for part in range(parts)]
    assert [place.cpus for place in places] == found
    assert [place.threads for place in places] == list(map(len, found))


def test_memory_lies_on_the_nodes_of_the_threads(tmp_path: Path) -> None:
    every = machine(tmp_path, "two sockets")
    first, second = (*range(8), *range(16, 24)), (*range(8, 16), *range(24, 32))

    def near(parts: int, part: int) -> set[frozenset[int]]:
        return {frozenset(node) for node in shared_out(every, NO_QUOTA, parts, part, None).nodes}

    assert near(1, 0) == {frozenset(first), frozenset(second)}
    assert [near(2, part) for part in range(2)] == [{frozenset(first)}, {frozenset(second)}]
    assert near(4, 1) == {frozenset((4, 5, 6, 7, 20, 21, 22, 23))}
    assert shared_out(machine(tmp_path / "other", "laptop"), NO_QUOTA, 1, 0, None).nodes == ()


@pytest.mark.parametrize(
    ("name", "quota", "parts", "threads", "count"),
    [
        ("cloud", 7, 1, None, 7),  # less time than cores
        ("cloud", 8, 1, 2, 2),
        ("cloud", 8, 1, 16, 16),  # as asked
        ("cloud", 8, 9, None, 1),  # more parts than cores
        ("cloud", 0, 1, None, 1),
        ("laptop", NO_QUOTA, 1, None, 4),  # a server's other processes need these cores
        ("untold", NO_QUOTA, 1, None, 2),
    ],
)
def test_threads_that_have_no_cores_of_their_own_are_not_pinned(
    name: str, quota: int, parts: int, threads: int | None, count: int, tmp_path: Path
) -> None:
    assert shared_out(machine(tmp_path, name), quota, parts, 0, threads) == Placement(count)


def test_every_list_is_an_engine_or_rank(tmp_path: Path) -> None:
    every = machine(tmp_path, "two sockets")
    lists = [[0, 1, 2, 16], [9, 8, 10]]
    assert bound(every, lists, 1, 0, None).cpus == (0, 1, 2, 16)
    places = [bound(every, lists, 2, part, None) for part in range(2)]
    # Of one stage, whose ranks wait for as many threads from each.
    assert [place.cpus for place in places] == [(0, 1, 2), (9, 8, 10)]
    assert bound(every, lists, 2, 1, 2).cpus == (9, 8)
    assert places[1].nodes == ((9, 25, 8, 24, 10, 26),)


@pytest.mark.parametrize(
    ("lists", "parts", "threads", "why"),
    [
        ([[0, 1]], 2, None, "it lists the processors of 1, and 2 engines or ranks share this machine"),
        ([[0, 16]], 1, None, "processor 16 is not among those that this process may use"),
        ([[0, 1], [3, 17]], 2, None, "processor 17 is not among"),
        ([[0, 1]], 1, 3, "it lists 2, and OMP_NUM_THREADS asks for 3 threads"),
    ],
)
def test_what_cannot_be_bound_is_said(
    lists: list[list[int]], parts: int, threads: int | None, why: str, tmp_path: Path
) -> None:
    place = bound(machine(tmp_path, "cloud"), lists, parts, 0, threads)
    assert place == Placement(threads or 2, warning=place.warning)
    assert why in place.warning


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("0-1,3-4", {0, 1, 3, 4})]
)
def test_lists_as_linux_writes_them(text: str, numbers: set[int]) -> None:
    assert listed(text) == numbers
