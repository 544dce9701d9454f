"""The Lease under a clock of the test's own: never two writers, and a successor within 40 s."""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.cluster import ANSWER_SECONDS, CONNECT_SECONDS, Cluster, Refused, Unreachable
from slipway_operator.lease import DURATION, LOOK_EVERY, RENEW_EVERY, SAFE_SECONDS, Lease


class OneLease(Cluster):
    """An API server with room for one Lease, which refuses a stale resource version as the real one does."""

    def __init__(self) -> None:
        self.record: dict[str, Any] | None = None
        self.away = False

    async def ask(self, method: str, path: str, query: object = None, body: Any = None) -> dict[str, Any]:
        if self.away:
            raise Unreachable("away")
        if method == "GET":
            if self.record is None:
                raise Refused(404, "NotFound", "no Lease")
            return copy.deepcopy(self.record)
        known = int(self.record["metadata"]["resourceVersion"]) if self.record else 0
        if int(body["metadata"].get("resourceVersion", 0)) != known:
            raise Refused(409, "Conflict", "stale")
        self.record = copy.deepcopy(body)
        self.record["metadata"]["resourceVersion"] = str(known + 1)
        return copy.deepcopy(self.record)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def wishes(server: OneLease, name: str, hand: Clock, log: list[str] | None = None) -> Lease:
    told = log if log is not None else []
    return Lease(server, "ns", "lease", name, lambda: told.append(name), hand.monotonic)


async def look(lease: Lease) -> None:
    """One step, as `keep` takes it."""
    with suppress(Unreachable, Refused):
        await lease._step()


async def test_the_first_one_holds_and_the_second_stands_by() -> None:
    hand = Clock()
    server = OneLease()
    log: list[str] = []
    first, second = wishes(server, "a", hand, log), wishes(server, "b", hand, log)
    await look(first)
    await look(second)
    assert (first.may_write(), second.may_write()) == (True, False)
    assert log == ["a"]


async def test_a_successor_takes_over_within_forty_seconds_of_the_holders_death() -> None:
    hand = Clock()
    server = OneLease()
    first, second = wishes(server, "a", hand), wishes(server, "b", hand)
    await look(first)
    died = hand.now
    hand.now += LOOK_EVERY
    while not second.may_write():
        await look(second)
        hand.now += LOOK_EVERY
    assert DURATION <= hand.now - died < 40


async def test_a_holder_without_an_answer_stops_writing_before_a_write_could_land_too_late() -> None:
    hand = Clock()
    server = OneLease()
    first = wishes(server, "a", hand)
    await look(first)
    server.away = True
    hand.now += SAFE_SECONDS - 0.1
    await look(first)
    assert first.may_write()
    hand.now += 0.1
    assert not first.may_write()
    assert SAFE_SECONDS + CONNECT_SECONDS + ANSWER_SECONDS < DURATION
    assert 2 * RENEW_EVERY < SAFE_SECONDS


async def test_a_released_lease_is_taken_at_once() -> None:
    hand = Clock()
    server = OneLease()
    first, second = wishes(server, "a", hand), wishes(server, "b", hand)
    await look(first)
    await first.release()
    assert not first.may_write()
    await look(second)
    assert second.may_write()


async def test_who_waits_says_once_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    hand = Clock()
    server = OneLease()
    first, second = wishes(server, "a", hand), wishes(server, "b", hand)
    await look(first)
    await look(second)
    await look(second)
    told = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert told == ["a holds the Lease: waiting until it gives it up or no longer renews it."]


async def test_who_takes_the_lease_again_after_losing_it_is_told_so() -> None:
    hand = Clock()
    server = OneLease()
    log: list[str] = []
    first, second = wishes(server, "a", hand, log), wishes(server, "b", hand, log)
    await look(first)
    await look(second)
    hand.now += DURATION
    await look(second)
    await look(first)  # is refused: its record is stale
    await look(first)
    assert not first.held
    await second.release()
    await look(first)
    assert log == ["a", "b", "a"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "away", "back"]), st.floats(0.1, 40)), min_size=1, max_size=40
)


@given(STEPS)
def test_no_write_of_one_can_land_while_another_may_write(steps: list[tuple[str, float]]) -> None:
    async def run() -> None:
        hand = Clock()
        server = OneLease()
        leases = {name: wishes(server, name, hand) for name in "abc"}
        landing = dict.fromkeys(leases, 0.0)  # the latest moment at which a write of each could land
        for action, seconds in steps:
            if action in leases:
                await look(leases[action])
            else:
                server.away = action == "away"
            for name, lease in leases.items():
                if lease.may_write():
                    others = [landing[other] for other in leases if other != name]
                    assert hand.now > max(others)
                end = (lease._renewed_at or 0.0) + SAFE_SECONDS
                if lease.may_write():
                    landing[name] = end + CONNECT_SECONDS + ANSWER_SECONDS
            hand.now += seconds

    asyncio.run(run())


@pytest.mark.parametrize("status", [403, 500])
async def test_a_refused_look_leaves_what_was_known(status: int) -> None:
    hand = Clock()
    server = OneLease()
    first = wishes(server, "a", hand)
    await look(first)

    async def refuse(*_: object) -> dict[str, Any]:
        raise Refused(status, "", "no")

    server.ask = refuse  # type: ignore[method-assign,assignment]
    await look(first)
    assert first.may_write()
