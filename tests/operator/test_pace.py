"""Statuses are written so many a second, the important ones first, and none is left behind for long."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from at_rest import Object, Rig, service
from e2e.ground.patience import scaled
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator import pace
from slipway_operator.cluster import SERVICE
from slipway_operator.informer import Key
from slipway_operator.pace import A_QUARTER, A_SECOND, AGE, LAPSE, Pace, only_words_differ
from slipway_operator.progress import INTERVAL, Progress, Said

SERVICES = 500
POLL = 5.0
"""Seconds after which a server that loads says another percentage."""
STEP = 0.01


class Crowd:
    """Services that load, a clock, and an operator that reconciles each a little after it is woken."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.keys: list[Key] = [("models", f"demo-{number}") for number in range(count)]
        self.pace = Pace(self._wake, lambda: self.now)
        self.due: dict[Key, float] = {}
        self.urgent: dict[Key, float] = {}
        """Services of which a condition changed, and when."""
        self.written: list[tuple[float, Key]] = []
        self.waits: list[float] = []
        """Of changed conditions until they were written."""

    def _wake(self, key: Key) -> None:
        self.due[key] = min(self.due.get(key, self.now), self.now) + STEP

    def reconcile(self, key: Key) -> None:
        if not self.pace.admits(key, urgent=key in self.urgent):
            return
        self.written.append((self.now, key))
        if key in self.urgent:
            self.waits.append(self.now - self.urgent.pop(key))

    def load(self, seconds: float, changes: dict[float, list[Key]] | None = None) -> None:
        """All services load; `changes` are those whose condition changes, by when."""
        for number, key in enumerate(self.keys):
            self.due[key] = self.now + POLL * number / len(self.keys)
        changes = dict(changes or {})
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            for when in [when for when in changes if when <= self.now]:
                for key in changes.pop(when):
                    self.urgent[key] = self.now
                    self.due[key] = self.now
            for key in [key for key, due in self.due.items() if due <= self.now]:
                self.due[key] = self.now + POLL
                self.reconcile(key)
            self.pace.give_turns()

    def most_in_a_second(self) -> int:
        times = [when for when, _ in self.written]
        return max(sum(start <= when < start + 1 for when in times) for start in times)

    def longest_silence(self) -> float:
        """Between two writes of one service's status, or after its last."""
        last = dict.fromkeys(self.keys, 0.0)
        longest = 0.0
        for when, key in [*self.written, *((self.now, key) for key in self.keys)]:
            longest, last[key] = max(longest, when - last[key]), when
        return longest


def test_500_statuses_that_change_all_the_time_are_20_writes_a_second_and_none_is_older_than_30_s():
    crowd = Crowd(SERVICES)
    crowd.load(90.0)
    assert crowd.most_in_a_second() <= A_SECOND <= 20
    assert crowd.longest_silence() <= 30.0


def test_a_condition_that_changes_goes_before_all_percentages():
    crowd = Crowd(SERVICES)
    crowd.load(60.0, {30.0 + number: [crowd.keys[7 * number]] for number in range(20)})
    assert len(crowd.waits) == 20
    assert max(crowd.waits) <= 0.35
    assert crowd.most_in_a_second() <= A_SECOND


def test_many_conditions_that_change_at_once_are_written_in_order_and_without_a_gap():
    crowd = Crowd(SERVICES)
    crowd.load(45.0, {30.0: crowd.keys[:100]})
    assert len(crowd.waits) == 100
    assert max(crowd.waits) <= 100 / A_SECOND + 1.5
    assert crowd.waits == sorted(crowd.waits)
    assert crowd.most_in_a_second() <= A_SECOND


def test_a_few_services_that_load_are_written_at_once():
    crowd = Crowd(10)
    crowd.load(30.0)
    assert crowd.longest_silence() <= POLL + 2 * STEP


@given(st.floats(0, 1e6), st.lists(st.tuples(st.booleans(), st.integers(1, 40)), min_size=20, max_size=60))
def test_whenever_they_ask_there_are_never_more_writes_in_a_second(
    began: float, asked: list[tuple[bool, int]]
):
    """Also where one comes at the very moment for which a turn was announced, give or take a rounding."""
    crowd = Crowd(40)
    crowd.now = began
    for waits, count in asked:
        announced = crowd.pace.give_turns()
        crowd.now += announced if waits and announced else 0.1
        for key in [*crowd.due, *crowd.keys[:count]]:
            crowd.due.pop(key, None)
            crowd.reconcile(key)
    assert crowd.most_in_a_second() <= A_SECOND


class Turns:
    """A pace of which all the room is taken, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.woken: list[Key] = []
        self.pace = Pace(self.woken.append, lambda: self.now)
        self.fill("first")

    def fill(self, name: str) -> None:
        """Take all the room of a second, as fast as that is possible."""
        for number in range(A_SECOND):
            if number and number % A_QUARTER == 0:
                self.now += 0.25
            assert self.pace.admits(("models", f"{name}-{number}"), urgent=True)


ONE, OTHER, THIRD = (("models", name) for name in ("one", "other", "third"))
FIRST = ("models", "first-1")


def test_a_turn_comes_when_the_second_is_over():
    turns = Turns()
    assert turns.now == 0.75
    assert not turns.pace.admits(ONE, urgent=True)
    assert turns.pace.give_turns() == pytest.approx(0.25)
    assert turns.woken == []
    turns.now += 0.25
    assert turns.pace.give_turns() is None
    assert turns.woken == [ONE]
    assert turns.pace.admits(ONE, urgent=False)
    assert turns.pace.give_turns() is None


def test_the_room_of_a_second_is_not_taken_at_once():
    turns = Turns()
    turns.now += 10.0
    for number in range(A_QUARTER):
        assert turns.pace.admits(("models", f"second-{number}"), urgent=True)
    assert not turns.pace.admits(ONE, urgent=True)
    assert turns.pace.give_turns() == pytest.approx(0.25)
    turns.now += 0.25
    assert turns.pace.admits(OTHER, urgent=True) is False
    turns.pace.give_turns()
    assert turns.woken == [ONE, OTHER]


def test_nobody_goes_before_those_who_wait():
    turns = Turns()
    assert not turns.pace.admits(ONE, urgent=True)
    turns.now += 1.0
    assert not turns.pace.admits(OTHER, urgent=False)
    assert not turns.pace.admits(THIRD, urgent=True)
    turns.pace.give_turns()
    assert turns.woken == [ONE, THIRD, OTHER]


def test_who_becomes_important_goes_to_the_others_who_are():
    turns = Turns()
    assert not turns.pace.admits(ONE, urgent=False)
    assert not turns.pace.admits(OTHER, urgent=False)
    assert not turns.pace.admits(OTHER, urgent=True)
    turns.now += 1.0
    turns.pace.give_turns()
    assert turns.woken == [OTHER, ONE]


def test_the_oldest_status_is_the_first_of_those_that_can_wait():
    turns = Turns()
    turns.now += 1.0
    assert turns.pace.admits(ONE, urgent=False)
    turns.now += 1.0
    turns.fill("second")
    for key in (ONE, FIRST, OTHER):
        assert not turns.pace.admits(key, urgent=False)
    turns.now += 1.0
    turns.pace.give_turns()
    assert turns.woken == [OTHER, FIRST, ONE]


def test_a_status_is_expected_to_change_again_after_a_round_of_all_that_change():
    turns = Turns()
    turns.now += 1.0
    assert turns.pace.admits(ONE, urgent=False)
    turns.now += 1.0
    turns.fill("second")
    began = turns.now - 0.75
    assert turns.pace.expected(ONE) == pytest.approx((2 * A_SECOND + 1) / A_SECOND - 1.75)
    assert turns.pace.expected(OTHER) == 0, "it was not written yet"
    turns.now = began - 2.0 + AGE  # the first second counts no more
    assert turns.pace.expected(("models", "second-0")) == 0
    assert len(turns.pace._written) == A_SECOND + 1


def test_a_status_that_is_as_it_should_be_waits_no_more_and_gives_its_turn_back():
    turns = Turns()
    for key in (ONE, OTHER):
        assert not turns.pace.admits(key, urgent=True)
    turns.pace.clear(OTHER)
    turns.now += 1.0
    turns.pace.give_turns()
    assert turns.woken == [ONE]
    turns.pace.clear(ONE)
    turns.fill("second")


def test_turns_that_are_out_count_and_lapse():
    turns = Turns()
    waiting = [("models", f"wait-{number}") for number in range(A_SECOND)]
    for key in waiting:
        assert not turns.pace.admits(key, urgent=True)
    began = turns.now + 1.0
    for _ in range(4):
        turns.now += 1.0
        turns.pace.give_turns()
    assert turns.woken == waiting
    assert not turns.pace.admits(ONE, urgent=True)
    assert turns.pace.give_turns() == pytest.approx(began + LAPSE - turns.now)
    turns.now = began + LAPSE
    turns.pace.give_turns()
    assert turns.woken == [*waiting, ONE]


async def test_turns_are_given_as_time_goes_by(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "A_SECOND", 1)
    monkeypatch.setattr(pace, "A_QUARTER", 1)
    woken: asyncio.Queue[Key] = asyncio.Queue()
    limited = Pace(woken.put_nowait)
    keeping = asyncio.create_task(limited.keep())
    assert limited.admits(ONE, urgent=True)
    assert not limited.admits(OTHER, urgent=True)
    assert await asyncio.wait_for(woken.get(), scaled(30)) == OTHER
    assert limited.admits(OTHER, urgent=True)
    keeping.cancel()


def status(**changed: Any) -> Object:
    condition = {"type": "Ready", "status": "False", "reason": "Loading", "message": "weights 40 %."}
    return {
        "summary": "Loading: weights 40 %",
        "replicas": 1,
        "conditions": [condition | changed.pop("ready", {})],
        **changed,
    }


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (status(summary="Loading: weights 41 %", ready={"message": "weights 41 %."}), True),
        (status(ready={"reason": "LoadStalled"}), False),
        (status(ready={"status": "True"}), False),
        (status(replicas=2), False),
        (status(memory={"pod": "demo-1"}), False),
        (status(conditions=[]), False),
    ],
)
def test_only_what_people_read_can_wait(after: Object, expected: bool):
    assert only_words_differ(status(), after) is expected
    assert only_words_differ({}, after) is False


def written(rig: Rig) -> list[str]:
    return [path.split("/")[-2] for path, _ in rig.server.of("PATCH", "/status")]


async def test_a_service_whose_status_had_to_wait_is_written_as_it_is_then():
    rig = Rig()
    crowd = [rig.add(service(f"demo-{number}")) for number in range(A_QUARTER + 1)]
    for key in crowd:
        await rig.pass_over(key)
    assert len(written(rig)) == A_QUARTER
    assert rig.server.of("POST", "/events"), "what is written is also said"
    rig.now += 1.0
    rig.pace.give_turns()
    assert rig.woken == crowd[-1:]
    last = crowd[-1][1]
    (gone, _) = (pod for pod in rig.children.stores["Pod"].of(crowd[-1]))
    rig.children.stores["Pod"].drop(gone)
    await rig.pass_over(crowd[-1])
    assert written(rig)[-1] == last
    said = rig.server.answers[SERVICE.path("models", last)]["status"]
    assert said["summary"].startswith("Scheduling: 1 of 2")
    rig.server.asked.clear()
    await rig.pass_over(crowd[-1])
    assert rig.server.asked == []


def reword(rig: Rig, key: Key) -> None:
    """Have the status say something else, as a percentage later."""
    known = copy.deepcopy(rig.server.answers[SERVICE.path(*key)])
    known["status"]["conditions"][-1]["message"] = "other words."
    known["metadata"]["resourceVersion"] = "99"
    rig.resources.learn(known)


def fill(rig: Rig, count: int) -> None:
    """Have so many other services ask for a write."""
    for number in range(count):
        rig.pace.admits(("models", f"other-{number}"), urgent=True)


async def test_a_percentage_waits_for_a_condition():
    rig = Rig()
    loads, changes = (rig.add(service(name)) for name in ("loads", "changes"))
    await rig.pass_over(loads)
    fill(rig, A_QUARTER - 1)
    reword(rig, loads)
    await rig.pass_over(loads)
    await rig.pass_over(changes)
    assert written(rig) == ["loads"]
    rig.now += 1.0
    rig.pace.give_turns()
    assert rig.woken == [changes, loads]


@pytest.mark.parametrize(
    ("answers", "restarted", "asks"), [(True, False, False), (False, False, True), (True, True, True)]
)
async def test_events_are_asked_for_only_of_pods_that_do_not_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, answers: bool, restarted: bool, asks: bool
):
    """Each question has the API server look at all events of the namespace: hundreds of loads kept it so."""

    async def asked(address: str) -> Said:
        if not answers:
            raise TimeoutError
        return Said(Progress("load", 1, 9), None)

    monkeypatch.setattr("slipway_operator.progress.asked", asked)
    rig = Rig()
    key = rig.add(service("demo", replicas=1))
    pods = list(rig.children.stores["Pod"].of(key))
    for pod in pods:
        next(one for one in pod["status"]["conditions"] if one["type"] == "Ready")["status"] = "False"
        pod["metadata"]["resourceVersion"] = "8"
        if restarted:
            pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 137}}
        rig.show(pod)
    await rig.pass_over(key)
    await asyncio.gather(*(look.task for look in rig.reconciler.loading.looks.values() if look.task))
    rig.reconciler.pod_events.looks.clear()
    rig.server.asked.clear()
    await rig.pass_over(key)
    assert bool(rig.server.of("GET", "/events")) == asks


async def test_while_many_load_nobody_is_asked_long_before_what_it_says_can_be_written():
    rig = Rig()
    key = rig.add(service("demo"))
    for pod in rig.children.stores["Pod"].of(key):
        ready = next(one for one in pod["status"]["conditions"] if one["type"] == "Ready")
        ready["status"] = "False"
        pod["status"]["podIP"] = "127.0.0.1"
        pod["metadata"]["resourceVersion"] = "8"
        rig.show(pod)
    soon = await rig.pass_over(key)
    assert soon is not None
    assert soon <= INTERVAL
    for number in range(20 * A_SECOND):
        rig.now += 0.06
        assert rig.pace.admits(("models", f"other-{number}"), urgent=True)
    reword(rig, key)
    rig.now += 1.0
    again = await rig.pass_over(key)
    assert written(rig) == ["demo", "demo"]
    assert again == pytest.approx(20 - INTERVAL, abs=0.2)
