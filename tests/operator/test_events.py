"""Events that repeat are one with a count, and of one service there are only so many."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from slipway_operator.cluster import Kind, Refused
from slipway_operator.events import (
    BURST,
    NOTE_LENGTH,
    REFILL_SECONDS,
    RESERVE,
    SERIES_SECONDS,
    Recorder,
    Transition,
)

Object = dict[str, Any]
DOWN = Transition("Warning", "NoReadyPod", "0 of 1 replicas admit requests.")
UP = Transition("Normal", "Serving", "1 of 1 replicas admit requests.")


def service(name: str = "demo") -> Object:
    metadata = {"name": name, "namespace": "models", "uid": f"uid-of-{name}"}
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": "InferenceService", "metadata": metadata}


class Cluster:
    """Keeps Events as an API server does, and counts the requests that it took."""

    def __init__(self) -> None:
        self.events: dict[str, Object] = {}
        self.requests = 0
        self.refuses = 0
        """Status with which it refuses; 0: it does not."""

    async def create(self, kind: Kind, item: Object) -> None:
        self._request()
        assert "series" not in item
        assert len(item["note"]) <= NOTE_LENGTH
        self.events[item["metadata"]["name"]] = item

    async def merge(self, kind: Kind, namespace: str, name: str, body: Object) -> None:
        self._request()
        if name not in self.events:
            raise Refused(404, "NotFound", "no such event")
        assert body.keys() == {"series"}, "all else of an Event can never change"
        assert body["series"]["count"] > self.count(name)
        self.events[name] |= body

    def _request(self) -> None:
        self.requests += 1
        if self.refuses:
            raise Refused(self.refuses, "Scripted", "as scripted")

    def count(self, name: str) -> int:
        return int(self.events[name].get("series", {}).get("count", 1))

    def counts(self) -> list[tuple[str, int]]:
        """Reason and count of each Event, in the order in which they came."""
        return [(event["reason"], self.count(name)) for name, event in self.events.items()]


class Recording:
    """A recorder with a clock of ours."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cluster = Cluster()
        cluster: Any = self.cluster
        self.recorder = Recorder(cluster, "operator", lambda: self.now)

    async def post(self, *transitions: Transition, name: str = "demo") -> None:
        for transition in transitions:
            await self.recorder.post(service(name), transition)


async def test_the_names_of_events_sort_as_they_came() -> None:
    recording = Recording()
    for number in range(8):
        await recording.post(Transition("Normal", f"Reason{number}", "So."))
    assert [*recording.cluster.events] == sorted(recording.cluster.events)


async def test_what_repeats_is_one_event_with_a_growing_count() -> None:
    recording = Recording()
    for times in (1, 2, 3):
        await recording.post(DOWN, UP)
        assert recording.cluster.counts() == [("NoReadyPod", times), ("Serving", times)]
        recording.now += 10
    event = next(iter(recording.cluster.events.values()))
    assert event["series"]["lastObservedTime"] > event["eventTime"]


async def test_a_service_that_flaps_for_an_hour_costs_few_requests_and_no_count_is_lost() -> None:
    recording = Recording()
    for _ in range(360):
        await recording.post(DOWN, UP)
        recording.now += 10
    assert recording.cluster.requests <= BURST + 3600 / REFILL_SECONDS
    recording.now += SERIES_SECONDS
    await recording.recorder.tidy()
    assert recording.cluster.counts() == [("NoReadyPod", 360), ("Serving", 360)]


async def test_what_repeats_hides_no_new_reason() -> None:
    recording = Recording()
    for _ in range(100):
        await recording.post(DOWN, UP)
    for number in range(RESERVE):
        await recording.post(Transition("Warning", f"Reason{number}", "So."))
    assert len(recording.cluster.events) == 2 + RESERVE


async def test_what_comes_again_after_long_is_a_new_event() -> None:
    recording = Recording()
    await recording.post(DOWN)
    recording.now += SERIES_SECONDS
    await recording.post(DOWN)
    assert recording.cluster.counts() == [("NoReadyPod", 1), ("NoReadyPod", 1)]


async def test_a_count_that_was_held_back_is_told_before_a_new_event_takes_its_place() -> None:
    recording = Recording()
    for _ in range(100):
        await recording.post(DOWN)
    ((_, told),) = recording.cluster.counts()
    assert told < 100
    recording.now += SERIES_SECONDS
    await recording.post(DOWN)
    assert recording.cluster.counts() == [("NoReadyPod", 100), ("NoReadyPod", 1)]


async def test_what_is_withheld_is_logged_and_counted_in_the_next_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recording = Recording()
    with caplog.at_level(logging.WARNING, "slipway_operator.events"):
        for number in range(BURST + 3):
            await recording.post(Transition("Warning", f"Reason{number}", "So."))
    assert len(recording.cluster.events) == BURST
    assert [f"Reason{BURST + number}" in caplog.text for number in range(3)] == [True] * 3
    recording.now += REFILL_SECONDS
    await recording.post(Transition("Warning", "Last", "x" * 2 * NOTE_LENGTH))
    note = [*recording.cluster.events.values()][-1]["note"]
    assert "3 were withheld" in note
    assert f"Reason{BURST} 1" in note
    recording.now += REFILL_SECONDS
    await recording.post(Transition("Warning", "After", "So."))
    assert [*recording.cluster.events.values()][-1]["note"] == "So."


async def test_services_do_not_take_from_each_other() -> None:
    recording = Recording()
    for number in range(2 * BURST):
        await recording.post(Transition("Warning", f"Reason{number}", "So."))
    await recording.post(DOWN, name="other")
    assert recording.cluster.counts()[-1] == ("NoReadyPod", 1)


async def test_an_event_that_somebody_deleted_is_posted_anew() -> None:
    recording = Recording()
    await recording.post(DOWN)
    recording.cluster.events.clear()
    await recording.post(DOWN, DOWN)
    assert recording.cluster.counts() == [("NoReadyPod", 1)]


async def test_what_an_api_server_did_not_take_is_told_by_the_next_request() -> None:
    recording = Recording()
    recording.cluster.refuses = 503
    await recording.post(UP)
    recording.cluster.refuses = 0
    await recording.post(DOWN)
    recording.cluster.refuses = 503
    await recording.post(DOWN)
    recording.cluster.refuses = 0
    await recording.post(DOWN)
    assert recording.cluster.counts() == [("NoReadyPod", 3)]


async def test_counts_that_an_ending_operator_has_not_told_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recording = Recording()
    for _ in range(100):
        await recording.post(DOWN)
    recording.cluster.refuses = 503
    with caplog.at_level(logging.INFO, "slipway_operator.events"):
        await recording.recorder.write_counts()
    assert "NoReadyPod came 100 times" in caplog.text


async def test_of_a_service_that_rests_nothing_is_remembered() -> None:
    recording = Recording()
    await recording.post(*[DOWN, UP] * 5)
    recording.now += SERIES_SECONDS
    await recording.recorder.tidy()
    assert recording.recorder._accounts["uid-of-demo"].tokens < BURST
    recording.now += BURST * REFILL_SECONDS
    await recording.recorder.tidy()
    assert not recording.recorder._accounts
