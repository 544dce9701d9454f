"""What the API processes of one server know of each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from slipway.api.admission import Admission
from slipway.api.errors import ApiError
from slipway.api.group import OPEN, Group, Obey, Opened, group_memory, hear, say
from slipway.engine.client import EngineClient
from slipway.engine.messages import Failed, Ready


@pytest.fixture
def three() -> Iterator[list[Group]]:
    """The same memory as each of three processes maps it."""
    file = group_memory(3)
    yield [Group.shared(file, index, "/nowhere") for index in range(3)]
    os.close(file)


def test_a_server_is_complete_when_no_process_loads_any_more(three: list[Group]) -> None:
    for group in three[:2]:
        group.set_phase(OPEN)
    assert not three[0].complete
    three[0].clear(2)  # it was killed: the others take what comes
    assert three[1].complete


def test_who_holds_more_than_another_leaves_the_next_connection_to_it(three: list[Group]) -> None:
    three[0].num_connections = 5
    assert three[0].crowded
    assert not three[1].crowded
    three[1].num_connections = three[2].num_connections = 1
    assert not three[0].crowded


def test_nothing_is_left_to_a_process_that_has_gone(three: list[Group]) -> None:
    three[0].num_connections = 9
    for index in (1, 2):
        three[0].clear(index)
    assert not three[0].crowded


PLACES = """
import os, sys
from slipway.api.group import Group
group = Group.shared(int(sys.argv[1]), 0, "")
sys.stdin.read()
print(*(group.next_arrival() for _ in range(5000)))
"""


def test_no_two_requests_have_the_same_place_whichever_process_they_come_to() -> None:
    file = group_memory(2)
    words = [sys.executable, "-c", PLACES, str(file)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(words, pass_fds=[file], **pipes) for _ in range(2)]
    for process in processes:
        process.stdin.close()  # both begin
    places = [int(word) for process in processes for word in process.stdout.read().split()]
    assert sorted(places) == [*range(10_000)]
    assert [process.wait() for process in processes] == [0, 0]
    os.close(file)


def ready_engine() -> EngineClient:
    engine = EngineClient("/nowhere")
    engine.state, engine.ready = "ready", Ready(1, 1, 1, 1, "", "", {})
    return engine


def test_the_cap_counts_the_requests_of_all_processes_and_forgets_those_of_a_killed_one(
    three: list[Group],
) -> None:
    admission = Admission(ready_engine(), max_concurrency=3, group=three[0])
    admission.open()
    with admission.entered(), admission.entered():
        three[1].count(+1)
        with pytest.raises(ApiError, match="3 requests are open"), admission.entered():
            pass
        assert (admission.num_open, three[2].num_open) == (2, 3)
        three[2].clear(1)
        with admission.entered():
            assert three[2].num_open == 3
    assert three[2].num_open == 0


def test_the_last_words_of_one_that_went_without_hearing_ours_are_heard() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        hear(ours)
    say(ours, Obey(15))
    failure = Failed(31, "EngineDied", "gone")
    say(theirs, Opened(["one"], "Ready"))
    say(theirs, failure)
    theirs.close()
    assert [hear(ours) for _ in range(3)] == [Opened(["one"], "Ready"), failure, None]
    say(ours, Obey(15))  # to nobody
    ours.close()
