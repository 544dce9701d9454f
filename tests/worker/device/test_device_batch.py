"""What the host knows of a step before it runs."""

from __future__ import annotations

import numpy as np
import pytest

from slipway.engine.params import SamplingParams
from slipway.engine.plan import SlotStart, StepPlan
from slipway.worker.device.batch import SlotLengths, batch_arrays, restored
from slipway.worker.device.graphs import GraphSizes


def started(**lengths: int) -> SlotLengths:
    """Slots by number (`s0=5`: slot 0 knows five tokens)."""
    known = SlotLengths(8)
    for name, length in lengths.items():
        known.start(SlotStart(int(name[1:]), [1] * length, length, 0, SamplingParams(9), 1))
    return known


def plan(slots: list[int], num_new: list[int]) -> StepPlan:
    return StepPlan([], [], slots, num_new)


def test_requests_of_one_token_come_first_and_results_go_back_to_the_plans_order() -> None:
    shape = started(s0=5, s3=1, s4=7, s6=1).advance(plan([0, 3, 4, 6], [5, 1, 2, 1]))
    assert shape.slots.tolist() == [3, 6, 0, 4]
    assert shape.num_decodes == 2
    assert (shape.num_tokens, shape.max_query, shape.max_length) == (9, 5, 5)
    assert shape.draws.tolist() == [True, True, True, False]
    assert restored(shape.order, [30, 60, 0, 40]) == [0, 30, 40, 60]


def test_a_request_that_draws_knows_one_token_more_before_the_token_has_come() -> None:
    lengths = started(s1=3)
    assert lengths.advance(plan([1], [3])).draws.tolist() == [True]
    again = lengths.advance(plan([1], [1]))
    assert again.first.tolist() == [3]
    assert lengths.known[1] == 5


@pytest.mark.parametrize(("slots", "num_new"), [([0], [4]), ([0], [0]), ([0, 0], [1, 1])])
def test_a_plan_that_contradicts_the_slots_is_refused(slots: list[int], num_new: list[int]) -> None:
    with pytest.raises(ValueError, match="The plan does not fit the slots"):
        started(s0=3).advance(plan(slots, num_new))


def test_a_batch_is_padded_by_requests_of_no_slot_and_no_rows() -> None:
    shape = started(s0=1, s2=4).advance(plan([2, 0], [2, 1]))
    arrays = batch_arrays(shape, 4)
    assert arrays["slots"].tolist() == [0, 2, -1, -1]
    assert arrays["draw_slots"].tolist() == [0, -1, -1, -1]
    assert arrays["query_start"].tolist() == [0, 1, 3, 3, 3]
    assert all(values.dtype == np.int32 for values in arrays.values())


@pytest.mark.parametrize(
    ("most", "sizes"), [(9, (1, 2, 4, 8, 9)), (8, (1, 2, 4, 8)), (3, (1, 2, 3)), (40, (1, 2, 4, 8, 16, 24))]
)
def test_no_graph_is_of_more_requests_than_a_step_can_have(most: int, sizes: tuple[int, ...]) -> None:
    assert GraphSizes.of([8, 1, 4, 2, 16, 24], most, max_length=6).sizes == sizes


def test_graphs_pad_to_the_next_size_and_leave_prompts_and_long_contexts_alone() -> None:
    sizes = GraphSizes.of([8, 1, 4, 2, 16, 24], most=9, max_length=6)
    lengths = started(s0=1, s1=1, s2=1, s3=7, s4=3)
    assert sizes.size_for(lengths.advance(plan([0, 1, 2], [1, 1, 1]))) == 4
    assert sizes.size_for(lengths.advance(plan([0, 4], [1, 2]))) is None
    lengths.advance(plan([3], [6]))
    assert sizes.size_for(lengths.advance(plan([3], [1]))) is None


def test_no_graph_sizes_means_no_graphs() -> None:
    none = GraphSizes.of([], most=9, max_length=6)
    assert none.size_for(started(s0=1).advance(plan([0], [1]))) is None
