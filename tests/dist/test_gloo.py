"""Ranks that have no memory in common: processes here, with two loopback addresses as their hosts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

RANK = """
import ctypes, os, sys, threading
import numpy as np
from slipway.dist.gloo import Meeting
from slipway.engine.config import EngineConfig

rank, size, port = map(int, sys.argv[1:])
config = EngineConfig(model="m", nnodes=2, node_rank=rank % 2, rank=rank, master_addr="127.0.0.2",
                      tensor_parallel_size=size, rank_port=port, host_ip=f"127.0.0.{2 + rank % 2}")
meeting = Meeting(config, "stage 0", rank, size)
print("made", flush=True)
input()
meeting.connect()
print("connected", flush=True)
step = 4096
memory = np.zeros((size, step), np.uint8)
for line in sys.stdin:
    word, *used = line.split()
    if word == "leave":
        threading.Timer(0.2, meeting.leave).start()
        continue
    if word == "close":
        break
    used = int(*used)
    memory[:] = 0
    memory[rank, :used] = 10 * (rank + 1) + used % 7
    try:
        meeting.exchange(memory.ctypes.data, used, step)
    except RuntimeError:
        print("left", flush=True)
    else:
        whole = all((memory[r, :used] == 10 * (r + 1) + used % 7).all() for r in range(size))
        print("whole" if whole and not memory[:, used:].any() else memory, flush=True)
meeting.close()
"""


class Rank:
    def __init__(self, rank: int, size: int, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(size), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def ranks(size: int) -> Iterator[tuple[list[Rank], int]]:
    port = free_port()
    made: list[Rank] = []
    try:
        made += [Rank(rank, size, port) for rank in range(size)]
        for one in made:
            assert one.hear() == "made"
        yield made, port
    finally:
        for one in made:
            one.process.kill()
            one.process.communicate()


def connect(made: list[Rank]) -> None:
    for one in made:
        one.say("")
    for one in made:
        assert one.hear() == "connected"


def listening(one: Rank) -> list[str]:
    found = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    return [line.split()[3] for line in found.splitlines() if f"pid={one.process.pid}," in line]


def test_every_rank_has_the_rows_of_all_and_nothing_more_is_written() -> None:
    with ranks(3) as (made, _):
        connect(made)
        for used in (1, 4096, 600, 600):
            for one in made:
                one.say(f"exchange {used}")
            assert [one.hear() for one in made] == ["whole"] * 3
        for one in made:
            one.say("close")
        assert [one.process.wait(timeout=scaled(30)) for one in made] == [0, 0, 0]


def test_ports_are_at_one_address_and_closed_once_the_ranks_are_connected() -> None:
    with ranks(2) as (made, port):
        assert [listening(one) for one in made] == [[f"127.0.0.2:{port}"], []]
        made[0].say("")
        with socket.create_connection(("127.0.0.2", port)) as stranger:  # who says nothing holds up nobody
            stranger.sendall(b"\xff" * 100_000)
            made[1].say("")
            assert [one.hear() for one in made] == ["connected"] * 2
        assert [listening(one) for one in made] == [[], []]
        for one in made:
            one.say("exchange 64")
        assert [one.hear() for one in made] == ["whole"] * 2


def test_a_rank_that_is_killed_fails_the_others_at_once() -> None:
    with ranks(2) as (made, _):
        connect(made)
        made[0].say("exchange 64")
        made[1].process.kill()
        assert made[0].hear() == "left"


def test_a_rank_that_waits_for_one_that_stands_still_can_be_told_to_leave() -> None:
    with ranks(2) as (made, _):
        connect(made)
        os.kill(made[1].process.pid, signal.SIGSTOP)
        made[0].say("leave")
        made[0].say("exchange 64")
        assert made[0].hear() == "left"
        made[0].say("close")
        assert made[0].process.wait(timeout=scaled(30)) == 0
        os.kill(made[1].process.pid, signal.SIGCONT)
        made[1].say("exchange 64")
        assert made[1].hear() == "left"


pytestmark = pytest.mark.slow
