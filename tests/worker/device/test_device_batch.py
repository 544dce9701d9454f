"""What the host knows of a step before it runs."""

from __future__ import annotations

import numpy as np
import pytest

from slipway.engine.plan import StepPlan
from slipway.worker.device.batch import StepShape, batch_arrays, restored
from slipway.worker.device.graphs import GraphSizes


def plan(
    slots: list[int], num_new: list[int], lengths: list[int], draws: list[bool] | None = None
) -> StepPlan:
    return StepPlan([], [], slots, num_new, [0] * len(slots), draws or [True] * len(slots), lengths)


def shape_of(slots: list[int], num_new: list[int], lengths: list[int]) -> StepShape:
    return StepShape.of(plan(slots, num_new, lengths))


def test_requests_of_one_token_come_first_and_results_go_back_to_the_plans_order() -> None:
    shape = StepShape.of(plan([0, 3, 4, 6], [5, 1, 2, 1], [5, 1, 6, 1], [True, True, False, True]))
    assert shape.slots.tolist() == [3, 6, 0, 4]
    assert shape.num_decodes == 2
    assert (shape.num_tokens, shape.max_query, shape.max_length) == (9, 5, 6)
    assert shape.first.tolist() == [0, 0, 0, 4]
    assert shape.draws.tolist() == [True, True, True, False]
    assert restored(shape.order, [30, 60, 0, 40]) == [0, 30, 40, 60]


@pytest.mark.parametrize(("slots", "num_new"), [([0], [4]), ([0], [0]), ([0, 0], [1, 1])])
def test_a_plan_that_contradicts_itself_is_refused(slots: list[int], num_new: list[int]) -> None:
    with pytest.raises(ValueError, match="The plan does not fit the slots"):
        shape_of(slots, num_new, [3] * len(slots))


def test_a_batch_is_padded_by_requests_of_no_slot_and_no_rows() -> None:
    arrays = batch_arrays(StepShape.of(plan([2, 0], [2, 1], [2, 1], [False, True])), 4)
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
    assert sizes.size_for(shape_of([0, 1, 2], [1, 1, 1], [1, 1, 1])) == 4
    assert sizes.size_for(shape_of([0, 4], [1, 2], [2, 2])) is None
    assert sizes.size_for(shape_of([3], [1], [7])) is None


def test_no_graph_sizes_means_no_graphs() -> None:
    none = GraphSizes.of([], most=9, max_length=6)
    assert none.size_for(shape_of([0], [1], [1])) is None
