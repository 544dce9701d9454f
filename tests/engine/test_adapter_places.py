"""Who has a place in memory, who shares a step and who waits: over a worker that reads no files."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import wait
from threading import Event

import pytest
from e2e.ground.patience import scaled
from engine_bench import Bench, expected
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar import Following

from slipway.engine.adapter_kinds import AdapterKinds
from slipway.engine.adapters import Adapters
from slipway.engine.grammar import Grammars
from slipway.engine.messages import AdapterRef, LoadAdapter, UnloadAdapter
from slipway.engine.plan import NO_PLACE, Masks, StepOutput, StepPlan
from slipway.engine.wire import Inbound
from slipway.load.errors import LoadError

BAD = 99


class AdapterBench(Bench):
    """Knows what every slot's adapter must be, and raises ValueError where its place has another."""

    def __init__(self, *, places: int, adapters: int, **options: object) -> None:
        super().__init__(adapters=adapters, **options)  # type: ignore[arg-type]
        self.num_read = 0
        self.most = adapters
        self.adapters = Adapters(self._read, places)
        self.core.adapters = AdapterKinds(self.adapters)
        self.in_place: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        """What is kept for places that it has not come to yet."""
        self.may_read = Event()
        self.may_read.set()
        self._wanted: dict[int, tuple[int, int]] = {}
        self._by_tokens: dict[tuple[int, ...], int] = {}

    def _read(self, adapter: AdapterRef, place: int) -> int:
        assert self.may_read.wait(scaled(10))
        self.num_read += 1
        if adapter.number == BAD:
            raise LoadError("BadCheckpoint", "it is bad.")
        if place != NO_PLACE:
            self.ready[place] = adapter.number
        return 0

    def turn(self) -> None:
        """Where nothing is to be computed, the core sleeps until the reading thread wakes it."""
        super().turn()
        if not self.core._busy and self.may_read.is_set():
            self.wait_for_files()

    def wait_for_files(self) -> None:
        wait([one.reading for one in self.adapters._reading.values() if one.reading is not None])

    def tell(self, message: LoadAdapter | UnloadAdapter) -> None:
        self.hub.inbox.append(Inbound(0, message))

    def check_places(self) -> None:
        """At rest: the worker keeps what the core knows of, and every other place is free."""
        self.wait_for_files()
        self.turn()
        held = {one.place: number for number, one in self.adapters._held.items()}
        assert {place: number for place, number in self.in_place.items() if number} == held
        assert sorted([*self.adapters._free, *held]) == list(range(self.adapters.num_places))
        assert self.ready == {}

    def ask(self, name: str, number: int, length: int = 5) -> None:
        """A request whose prompt says which adapter it wants."""
        prompt = [500 + number] * 3
        self.add(name, prompt, length, adapter=AdapterRef(number, f"a{number}", "") if number else None)

    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
        for change in plan.adapters:
            self.ready.pop(change.place, None)
            self.in_place[change.place] = change.adapter.number if change.adapter else 0
        for start in plan.starts:
            self._wanted[start.slot] = start.adapter, start.tokens[0] - 500
        used = set()
        for slot in plan.slots:
            place, number = self._wanted[slot]
            if (self.in_place[place] if place >= 0 else 0) != number:
                raise ValueError(f"slot {slot} wants {number}, and place {place} has another")
            used.add(number)
        if len(used - {0}) > self.most:
            raise ValueError(f"{used} are more than {self.most}")
        return super().step(plan)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Callable[..., AdapterBench]:
    def make(**options: object) -> AdapterBench:
        made = AdapterBench(**options)  # type: ignore[arg-type]
        request.addfinalizer(made.executor.close)
        request.addfinalizer(made.adapters.close)
        return made

    return make


def test_two_hundred_adapters_take_turns_in_sixteen_places(bench: Callable[..., AdapterBench]) -> None:
    b = bench(places=16, adapters=4, num_pages=200)
    draw = random.Random(1)
    asked = [(f"{i}", draw.randrange(201)) for i in range(600)]
    for name, number in asked:
        b.ask(name, number if number != BAD else 0)
        b.turn()
    b.run()
    assert all(b.tokens(name) == expected(3, 5) for name, _ in asked)
    assert b.num_read > 200
    stats = b.hub.stats[-1]
    assert (stats.running_adapters, stats.waiting_adapters) == ([], [])


def test_an_adapter_that_many_ask_for_does_not_keep_others_out(bench: Callable[..., AdapterBench]) -> None:
    """One place, or room for one in a step: requests for the first come without end."""
    for places in (1, 2):
        b = bench(places=places, adapters=1)
        for i in range(6):
            b.ask(f"first {i}", 1, length=8)
        while not b.hub.deltas:
            b.turn()
        b.ask("other", 2)
        b.ask("plain", 0)
        for i in range(400):
            b.ask(f"more {i}", 1, length=8)
            b.turn()
            if "other" in b.hub.deltas:
                break
        else:
            raise AssertionError(f"it never ran beside {places} places")
        b.run()
        assert b.tokens("other") == b.tokens("plain") == expected(3, 5)


def test_a_request_without_room_for_its_adapter_is_overtaken_and_counted(
    bench: Callable[..., AdapterBench],
) -> None:
    b = bench(places=2, adapters=1)
    b.ask("one", 1, length=20)
    while not b.hub.deltas:
        b.turn()
    b.ask("two", 2)
    b.ask("three", 0)
    while not b.hub.deltas.get("three"):
        b.turn()
    stats = b.hub.stats[-1]
    assert (stats.running_adapters, stats.waiting_adapters, stats.num_deferred) == (["a1"], ["a2"], 1)
    assert "two" not in b.hub.deltas
    b.run()
    assert b.tokens("two") == expected(3, 5)


def test_only_those_who_wait_for_a_bad_adapter_end(bench: Callable[..., AdapterBench]) -> None:
    b = bench(places=1, adapters=1)
    for name, number in (("bad", BAD), ("good", 1), ("plain", 0), ("bad too", BAD)):
        b.ask(name, number)
    b.tell(LoadAdapter(7, AdapterRef(BAD, "bad", "")))
    b.run()
    for name in ("bad", "bad too"):
        (delta,) = b.hub.deltas[name]
        assert (delta.finish_reason, delta.error, delta.unfit) == ("error", "it is bad.", True)
    assert b.hub.replies == {7: "it is bad."}
    assert b.tokens("good") == b.tokens("plain") == expected(3, 5)


def test_no_matcher_is_left_of_a_request_whose_adapter_is_bad(bench: Callable[..., AdapterBench]) -> None:
    b = bench(places=1, adapters=1)
    b.core.grammars = Grammars(lambda message: Following())
    b.add("bad", 3, 5, adapter=AdapterRef(BAD, "bad", ""), grammar="any")
    b.run()
    (delta,) = b.hub.deltas["bad"]
    assert delta.error == "it is bad."
    assert not b.core.grammars


def test_what_is_unloaded_gives_its_place_back_when_its_requests_have_ended(
    bench: Callable[..., AdapterBench],
) -> None:
    b = bench(places=1, adapters=1)
    b.ask("runs", 1)
    while not b.hub.deltas:
        b.turn()
    b.tell(UnloadAdapter(3, 1))
    b.turn()
    assert b.hub.replies == {3: "ok"}
    assert b.plans[-1].adapters == []
    b.run()
    assert b.tokens("runs") == expected(3, 5)
    assert [change.adapter for plan in b.plans for change in plan.adapters] == [AdapterRef(1, "a1", ""), None]


def test_a_load_is_answered_though_running_requests_hold_every_place(
    bench: Callable[..., AdapterBench],
) -> None:
    b = bench(places=1, adapters=1)
    b.ask("runs", 1, length=50)
    while not b.hub.deltas:
        b.turn()
    for call, number in ((1, 2), (2, BAD)):
        b.tell(LoadAdapter(call, AdapterRef(number, f"a{number}", "")))
    b.turn()
    b.wait_for_files()
    b.turn()
    assert b.hub.replies == {1: "ok", 2: "it is bad."}
    assert b.hub.deltas["runs"][-1].finish_reason is None
    b.ask("two", 2)
    b.run()
    assert b.tokens("runs") == expected(3, 50)
    assert b.tokens("two") == expected(3, 5)
    assert b.num_read == 4  # the first, both loads, and the second once more for its place
    b.check_places()


@pytest.mark.parametrize("asked", [False, True], ids=["by nobody", "by a request"])
def test_what_is_unloaded_while_it_is_read_goes_when_its_requests_have_ended(
    bench: Callable[..., AdapterBench], asked: bool
) -> None:
    b = bench(places=1, adapters=1)
    b.may_read.clear()
    b.tell(LoadAdapter(1, AdapterRef(1, "a1", "")))
    if asked:
        b.ask("one", 1)
    b.turn()
    b.tell(UnloadAdapter(2, 1))
    b.turn()
    assert b.hub.replies == {2: "ok"}
    b.may_read.set()
    b.check_places()
    assert b.hub.replies == {1: "ok", 2: "ok"}
    b.run()
    assert not asked or b.tokens("one") == expected(3, 5)
    b.check_places()
    assert set(b.in_place.values()) == {0}


def test_an_adapter_wanted_again_while_it_was_to_go_may_be_unloaded_at_once(
    bench: Callable[..., AdapterBench],
) -> None:
    b = bench(places=1, adapters=1)
    b.ask("runs", 1, length=50)
    while not b.hub.deltas:
        b.turn()
    b.ask("other", 2)
    b.turn()  # the first adapter's place is closed
    b.ask("again", 1)
    b.turn()
    b.abort("other")
    b.abort("runs")
    b.tell(UnloadAdapter(1, 1))
    b.run()
    assert b.tokens("again") == expected(3, 5)
    b.check_places()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "abort", "turn", "load", "unload"]), st.integers(0, 6)),
    max_size=60,
)


@settings(max_examples=60)
@given(ACTIONS, st.integers(1, 3), st.integers(0, 2), st.booleans(), st.sampled_from([10, 64]))
def test_every_request_computes_with_its_own_adapter_and_ends(
    actions: list[tuple[str, int]], most: int, more: int, overlap: bool, num_pages: int
) -> None:
    b = AdapterBench(places=most + more, adapters=most, overlap=overlap, num_pages=num_pages)
    asked: dict[str, int] = {}
    try:
        for count, (action, number) in enumerate(actions):
            match action:
                case "ask":
                    asked[str(count)] = number
                    b.ask(str(count), number)
                case "abort":
                    b.abort(str(number * 3))
                    asked.pop(str(number * 3), None)
                case "load":
                    b.tell(LoadAdapter(count, AdapterRef(number or 1, "", "")))
                case "unload":
                    b.tell(UnloadAdapter(count, number))
                case _:
                    b.turn()
        b.run()
        for name in asked:
            assert b.tokens(name) == expected(3, 5)
        assert b.scheduler.running_adapters == {}
        assert all(not held.users for held in b.adapters._held.values())
        b.check_places()
    finally:
        b.executor.close()
        b.adapters.close()
