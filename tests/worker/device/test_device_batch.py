"""What the host knows of a step before it runs."""

from __future__ import annotations

import numpy as np
import pytest

from slipway.engine.plan import StepPlan
from slipway.worker.device.batch import StepShape, batch_arrays
from slipway.worker.device.graphs import GraphKey, GraphSizes


def plan(
    slots: list[int],
    num_new: list[int],
    lengths: list[int],
    draws: list[bool] | None = None,
    drafts: list[int] | None = None,
) -> StepPlan:
    zeros = [0] * len(slots)
    return StepPlan([], [], slots, num_new, drafts or zeros, draws or [True] * len(slots), lengths)


def shape_of(
    slots: list[int], num_new: list[int], lengths: list[int], drafts: list[int] | None = None
) -> StepShape:
    return StepShape.of(plan(slots, num_new, lengths, drafts=drafts))


def test_requests_of_one_token_and_drafts_come_first_and_results_go_back_to_the_plans_order() -> None:
    shape = StepShape.of(plan([0, 3, 4, 6], [5, 1, 2, 1], [5, 1, 6, 1], [True, True, False, True]))
    assert shape.slots.tolist() == [3, 6, 0, 4]
    assert shape.num_decodes == 2
    assert (shape.num_tokens, shape.max_query, shape.max_length) == (9, 5, 6)
    assert shape.first.tolist() == [0, 0, 0, 4]
    assert shape.draws.tolist() == [True, True, True, False]
    assert shape.order.tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("slots", "num_new", "drafts"),
    [([0], [4], [0]), ([0], [0], [0]), ([0, 0], [1, 1], [0, 0]), ([0], [2], [2])],
)
def test_a_plan_that_contradicts_itself_is_refused(
    slots: list[int], num_new: list[int], drafts: list[int]
) -> None:
    with pytest.raises(ValueError, match="The plan does not fit the slots"):
        shape_of(slots, num_new, [3] * len(slots), drafts)


def test_a_batch_is_padded_by_requests_of_no_slot_and_no_rows() -> None:
    arrays = batch_arrays(
        StepShape.of(plan([2, 0, 5], [2, 1, 4], [2, 1, 9], [False, True, True], [0, 0, 3])), 4
    )
    assert arrays["slots"].tolist() == [0, 5, 2, -1]
    assert arrays["draws"].tolist() == [1, 4, 0, 0]
    assert arrays["row_start"].tolist() == [0, 1, 5, 7, 7]
    assert all(values.dtype == np.int32 for values in arrays.values())


def sizes_of(
    asked: list[int], most: int = 9, lengths: tuple[int, ...] = (6, 30), **fields: int
) -> GraphSizes:
    return GraphSizes(asked, most, lengths, **({"most_rows": 20} | fields))


@pytest.mark.parametrize(
    ("most", "sizes"), [(9, (1, 2, 4, 8, 9)), (8, (1, 2, 4, 8)), (3, (1, 2, 3)), (40, (1, 2, 4, 8, 16, 24))]
)
def test_no_graph_is_of_more_requests_than_a_step_can_have(most: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of([8, 1, 4, 2, 16, 24], most).sizes == sizes


def test_graphs_pad_to_the_next_size() -> None:
    sizes = sizes_of([8, 1, 4, 2, 16, 24])
    assert sizes.key_for(shape_of([0, 1, 2], [1, 1, 1], [1, 1, 1])) == GraphKey(4, 1, 6)
    assert sizes.key_for(shape_of([0, 4], [1, 2], [2, 2])) == GraphKey(2, 1, 6, prompts=1, tokens=16)
    assert sizes.key_for(shape_of([0], [3], [9], [1])) == GraphKey(1, 2, 30, prompts=1, tokens=16)
    assert sizes.key_for(shape_of([0, 1], [1, 17], [1, 17])) == GraphKey(2, 1, 30, prompts=1, tokens=20)
    assert sizes.key_for(shape_of([0, 1], [1, 20], [1, 20])) is None  # more rows than a step can have


def test_long_contexts_have_graphs_of_their_own() -> None:
    sizes = sizes_of([1, 2])
    assert sizes.key_for(shape_of([3, 4], [1, 1], [7, 2])) == GraphKey(2, 1, 30)
    assert sizes.key_for(shape_of([3], [1], [31])) is None


def test_steps_that_verify_drafts_have_graphs_of_as_many_rows_each() -> None:
    sizes = sizes_of([1, 2, 4, 8], most_drafts=3)
    drafting = shape_of([3, 4, 5], [3, 1, 2], [5, 6, 2], [2, 0, 1])
    assert sizes.key_for(drafting) == GraphKey(4, 3, 6)
    assert (
        sizes.key_for(shape_of(list(range(5)), [4] * 5, [4] * 5, [3] * 5)) is None
    )  # 8 of 4 rows are too many
    keys = [(key.size, key.each) for key in sizes.planned() if not (key.features or key.prompts)]
    assert keys == [(1, 1), (1, 4), (2, 1), (2, 4), (4, 1), (4, 4), (8, 1)]


def test_no_graph_sizes_means_no_graphs() -> None:
    assert sizes_of([]).key_for(shape_of([0], [1], [1])) is None
