"""Ranks are processes that have mapped each other's memory, as devices do; the kernel is all they share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import reducing_rank
import torch
from e2e.ground.patience import scaled

from slipway_kernels.collective import PROGRAMS, Peers, all_reduce, memory_bytes, reference, takes, two_shots

CPU = torch.device("cpu")


@pytest.mark.parametrize(("size", "rounds"), [(2, 40), (4, 24)])
def test_ranks_add_up_in_their_order_to_the_bit(size: int, rounds: int, tmp_path: Path) -> None:
    """Many rounds of all sizes, types and shots in turn, none of which waits for the round before to end."""
    for rank in range(size):
        (tmp_path / f"rank{rank}").write_bytes(bytes(memory_bytes(size, reducing_rank.ROOM)))
    processes = [
        subprocess.Popen(
            [sys.executable, reducing_rank.__file__, tmp_path, *map(str, (rank, size, rounds))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=scaled(120))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert said == [f"{rounds} rounds\n"] * size


def test_the_order_of_ranks_is_that_of_the_sum() -> None:
    """Added in another order these are 0."""
    parts = [torch.tensor([2.0**24]), torch.tensor([1.0]), torch.tensor([-(2.0**24)]), torch.tensor([1.0])]
    assert reference.all_reduce(parts).item() == 1.0


def test_small_messages_go_whole_and_large_ones_in_parts() -> None:
    assert not two_shots(8 << 20, 2)
    assert [two_shots(n << 10, 4) for n in (512, 513)] == [False, True]
    assert [two_shots(n << 10, 8) for n in (256, 257)] == [False, True]


def test_what_it_does_not_add_up_is_nccls() -> None:
    peers = Peers.of(0, [0, 0], CPU, room=64)
    assert takes(torch.zeros(32, dtype=torch.bfloat16), peers)
    assert not takes(torch.zeros(33, dtype=torch.bfloat16), peers)
    assert not takes(torch.zeros(0), peers)
    assert not takes(torch.zeros(4, dtype=torch.int32), peers)
    assert not takes(torch.zeros(2, 8)[:, :4], peers)
    assert not takes(torch.zeros(9)[1:], peers)
    with pytest.raises(ValueError, match=r"x is \[33\] torch.bfloat16 .* at most 64 bytes"):
        all_reduce(x := torch.zeros(33, dtype=torch.bfloat16), peers, x)
    with pytest.raises(ValueError, match="3 ranks add up by NCCL: this kernel is for 2, 4, 6, 8"):
        all_reduce(x := torch.zeros(8), Peers.of(0, [0, 0, 0], CPU), x)


def test_flags_are_before_two_rooms() -> None:
    assert memory_bytes(4, room=1 << 20) == 2 * PROGRAMS * 4 * 8 + (2 << 20)
