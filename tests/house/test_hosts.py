"""The hosts that tests of several hosts run on."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

from namespaces import hosts, needs_hosts

pytestmark = needs_hosts


def answers(source, target, port: int) -> bool:
    """Whether a connection from one host to the other comes about."""
    with source.entered():
        client = socket.socket()
    with client:
        client.settimeout(0.5)
        return client.connect_ex((target.address, port)) == 0


def test_hosts_reach_each_other_until_one_is_cut_off_and_again_when_that_is_mended():
    with hosts(3) as (first, second, third):
        with second.entered():
            listener = socket.create_server((second.address, 4000))
        with listener:
            assert answers(first, second, 4000)
            second.cut_off()
            assert not answers(first, second, 4000)
            assert answers(second, second, 4000)
            assert not answers(first, third, 4000)
            second.mend()
            assert answers(third, second, 4000)


def test_a_command_sees_its_host_and_is_killed_by_its_number_outside(tmp_path: Path):
    with hosts(2) as (first, second):
        seen = first.run("sh", "-c", "hostname; hostname -I; pwd; ls /dev/shm", cwd=tmp_path).split()
        assert seen == ["host0", "10.76.0.1", str(tmp_path)]
        sleeper = first.start("sh", "-c", "echo started; exec sleep 1000", stdout=subprocess.PIPE)
        assert sleeper.stdout.readline() == b"started\n"
        assert first.processes().keys() == {sleeper.pid}
        assert second.processes() == {}
        sleeper.terminate()
        assert sleeper.wait(scaled(10)) == -signal.SIGTERM
        with pytest.raises(AssertionError, match=r"ended with 3 on host0:\nwords"):
            first.run("sh", "-c", "echo words; exit 3")


OWNER = """
import sys, time
from namespaces import hosts
with hosts(2) as (first, second):
    second.run("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
    print(*second.processes(), flush=True)
    time.sleep(1000)
"""


def test_nothing_outlives_an_owner_that_is_killed():
    places = os.pathsep.join([*map(str, Path(__file__).parents[1:3]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env=os.environ | {"PYTHONPATH": places}, stdout=subprocess.PIPE
    ) as owner:
        (pid,) = map(int, owner.stdout.readline().split())
        ended = os.pidfd_open(pid)
        owner.kill()
        assert select.select([ended], [], [], scaled(10))[0]
        os.close(ended)
