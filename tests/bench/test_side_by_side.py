"""The comparison's arithmetic; the rest of it is run by hand."""

from __future__ import annotations

import math
import random
import statistics
import subprocess
from typing import Any

import pytest
from side_by_side import TURN_SECONDS, Server, paired, play, start, table


def each(values: list[float]) -> list[list[float]]:
    """Rounds of one pass."""
    return [[value] for value in values]


def test_a_ratio_is_taken_round_by_round() -> None:
    drifting = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert paired(each([0.5 * value for value in drifting]), each(drifting)) == (0.5, 0.5, 0.5)


def test_within_a_round_it_is_taken_pass_by_pass() -> None:
    assert paired([[2.0, 2.0, 20.0]], [[1.0, 1.0, 10.0]]) == (2.0, 2.0, 2.0)
    # The machine slows down tenfold within a pass: the ratio of each server's median would be 20.
    assert paired([[2.0, 20.0, 20.0]], [[1.0, 1.0, 10.0]])[0] == 2.0


def test_fewer_rounds_than_an_interval_needs_give_their_whole_range() -> None:
    assert paired(each([1.0, 2.0, 3.0]), each([1.0, 1.0, 1.0])) == (2.0, 1.0, 3.0)


def test_the_interval_holds_the_true_median_at_least_nine_times_in_ten() -> None:
    draw = random.Random(1)
    for rounds in (5, 8, 12, 40):
        held = 0
        for _ in range(2000):
            ratios = [math.exp(draw.gauss(0, 1)) for _ in range(rounds)]
            _, low, high = paired(each(ratios), each([1.0] * rounds))
            held += low <= 1.0 <= high
        assert held / 2000 >= 0.89, rounds


def test_the_interval_of_forty_rounds_is_no_wider_than_it_must_be() -> None:
    ranks = [float(rank) for rank in range(40)]
    middle, low, high = paired(each(ranks), each([1.0] * 40))
    assert (middle, low, high) == (statistics.median(ranks), 14.0, 25.0)


def test_a_round_measures_in_turns_there_and_back_and_keeps_every_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers: list[Server] = [Server(name, None, "", "") for name in ("ours", "theirs")]  # type: ignore[arg-type]
    calls: list[tuple[str, int]] = []
    pace = iter([1.0, 10.0, 30.0, 2.0, 3.0, 20.0])
    clock = 0.0

    def measured(server: Server, scenario: str, seed: int) -> dict[str, float]:
        nonlocal clock
        clock += TURN_SECONDS / 2.5
        calls.append((server.name, seed))
        return {"tok_s": next(pace)}

    monkeypatch.setattr("side_by_side.measure", measured)
    monkeypatch.setattr(Server, "peak_memory_mib", lambda server: 100)
    monkeypatch.setattr("side_by_side.time.monotonic", lambda: clock)
    play(0, servers, ["single"])
    assert [name for name, _ in calls] == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    seeds = [seed for _, seed in calls]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 3
    assert [server.figures for server in servers] == [
        {"single tok_s": [[1.0, 2.0, 3.0]], "peak memory, MiB": [[100.0]]},
        {"single tok_s": [[10.0, 30.0, 20.0]], "peak memory, MiB": [[100.0]]},
    ]


def test_what_was_measured_before_the_last_whole_round_is_in_the_table() -> None:
    ours = {"start s": [[2.0], [2.0]], "single tok_s": [[30.0]]}  # ended within a fresh start
    theirs = {"start s": [[1.0], [4.0]], "single tok_s": [[20.0]]}
    head, _, start, single = table({"ours": ours, "theirs": theirs}).splitlines()
    assert head == "| figure | rounds | ours | theirs | ours / theirs |"
    assert start == "| start s | 2 | 2 | 2.5 | 1.250 [0.500, 2.000] |"
    assert single == "| single tok_s | 1 | 30 | 20 | 1.500 [1.500, 1.500] |"


def test_an_interrupted_start_leaves_no_server_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def recorded(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("side_by_side.subprocess.Popen", recorded)
    monkeypatch.setattr("side_by_side.urllib.request.urlopen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start("endless", "sleep 1000", "model", {})
    (process,) = started
    assert process.poll() is not None
