"""What stages before the last are told of draws."""

from __future__ import annotations

from slipway.engine.params import SamplingParams
from slipway.engine.plan import Drawn, SlotStart, StepOutput, StepPlan
from slipway.engine.telling import Telling


def plan(slots: list[int], starts: tuple[int, ...] = ()) -> StepPlan:
    ones = [1] * len(slots)
    began = [SlotStart(slot, [5], 1, 0, SamplingParams(4), 1) for slot in starts]
    return StepPlan(began, [], slots, ones, [0] * len(slots), [True] * len(slots), ones)


def test_the_next_plan_has_what_was_collected_before_it_once() -> None:
    telling = Telling()
    telling.launched(plan([0, 1], starts=(0, 1)))
    assert telling.launched(plan([2], starts=(2,))).drawn == []
    telling.collected(StepOutput([[7], [8, 9]], [], drafts={0: [3]}))
    assert telling.launched(plan([0])).drawn == [Drawn([0, 1], [[7], [8, 9]], [[3], []])]
    assert telling.launched(plan([1])).drawn == []


def test_prompts_that_draw_nothing_are_not_told() -> None:
    telling = Telling()
    telling.launched(plan([0], starts=(0,)))
    telling.collected(StepOutput([[]], []))
    assert telling.launched(plan([0])).drawn == []


def test_nothing_is_told_of_who_had_a_slot_before() -> None:
    telling = Telling()
    telling.launched(plan([0, 1], starts=(0, 1)))
    telling.launched(plan([0], starts=(0,)))  # the one that had it was aborted meanwhile
    telling.collected(StepOutput([[7], [8]], []))
    telling.collected(StepOutput([[9]], []))
    assert telling.launched(plan([0, 1])).drawn == [Drawn([1], [[8]], [[]]), Drawn([0], [[9]], [[]])]
