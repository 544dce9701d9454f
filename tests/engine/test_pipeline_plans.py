"""What the scheduler plans for pipeline stages: steps under way that compute different requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine_bench import Bench, expected
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.engine.plan import Masks, StepOutput, StepPlan


class Pipe(Bench):
    """A bench whose steps are under way until they are collected, in the order of their launches.

    Raises ValueError for a plan that goes on from a draw which has not been collected.
    """

    def __init__(self, depth: int, **options: object) -> None:
        super().__init__(depth=depth, in_turn=True, **options)  # type: ignore[arg-type]
        self.under_way: deque[StepPlan] = deque()
        self.most = 0
        """Steps that have been under way at a time."""

    def draw(self, masks: Masks | None = None) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        drawing: set[int] = set()
        for other in (*self.under_way, plan):
            drawing -= {start.slot for start in other.starts}
            if both := drawing & set(other.slots):
                raise ValueError(f"slots {both} draw in a step under way")
            drawing |= {slot for slot, draws in zip(other.slots, other.draws, strict=True) if draws}
        self.under_way.append(plan)
        self.most = max(self.most, len(self.under_way))

    def collect(self) -> StepOutput:
        return self.step(self.under_way.popleft())


@contextmanager
def pipe(depth: int, **options: object) -> Iterator[Pipe]:
    made = Pipe(depth, **options)
    try:
        yield made
    finally:
        made.executor.close()


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_running_requests_are_spread_over_the_steps_under_way(depth: int) -> None:
    with pipe(depth, token_budget=64, max_requests=12, num_pages=400) as p:
        for i in range(12):
            p.add(str(i), 4, 40)  # all prompts are in one step, and all wait for it
        p.run()
        sizes = [len(plan.slots) for plan in p.plans]
        assert p.most == depth
        assert set(sizes[2 * depth : -2 * depth]) == {12 // depth}
        assert all(p.tokens(str(i)) == expected(4, 40) for i in range(12))


def test_requests_that_end_leave_the_others_spread() -> None:
    with pipe(2, token_budget=64, max_requests=8, num_pages=400) as p:
        for i in range(8):
            p.add(str(i), 4, 10 if i < 4 else 60)  # the oldest, which were together in a step
        p.run()
        assert [len(plan.slots) for plan in p.plans[-40:-4]] == [2] * 36


def test_one_request_is_in_one_step_at_a_time() -> None:
    with pipe(4) as p:
        p.add("a", 4, 20)
        p.run()
        assert p.most == 1
        assert p.tokens("a") == expected(4, 20)


def test_chunks_of_a_prompt_follow_each_other_without_waiting() -> None:
    with pipe(3, token_budget=16, num_pages=100) as p:
        p.add("a", 48, 2)
        p.turn()
        p.turn()
        assert [plan.num_new for plan in p.under_way] == [[16], [16]]
        p.run()
        assert p.tokens("a") == expected(48, 2)


requests = st.tuples(
    st.integers(1, 40),  # prompt
    st.integers(1, 30),  # most tokens
    st.integers(0, 2),  # whose prompt it shares
    st.integers(0, 40),  # arrives in turn
    st.one_of(st.none(), st.integers(0, 40)),  # is aborted in turn
)


@settings(max_examples=60)
@given(
    script=st.lists(requests, min_size=1, max_size=12),
    depth=st.integers(2, 4),
    spare_pages=st.integers(0, 30),
    token_budget=st.sampled_from([1, 7, 16, 64]),
    num_drafts=st.sampled_from([0, 3]),
    prefix_caching=st.booleans(),
    num_host_pages=st.sampled_from([0, 100]),
)
def test_whatever_happens_every_request_gets_its_tokens(
    script: list[tuple[int, int, int, int, int | None]],
    depth: int,
    spare_pages: int,
    token_budget: int,
    num_drafts: int,
    prefix_caching: bool,
    num_host_pages: int,
) -> None:
    with pipe(
        depth,
        num_pages=20 + spare_pages,
        num_host_pages=num_host_pages,
        prefix_caching=prefix_caching,
        token_budget=token_budget,
        num_drafts=num_drafts,
        max_requests=6,
    ) as p:
        for turn in range(41):
            for i, (prompt, max_tokens, kind, arrival, _) in enumerate(script):
                if arrival == turn:
                    p.add(str(i), [100 * kind + j for j in range(prompt)], max_tokens, seed=i)
            for i, (*_, abort) in enumerate(script):
                if abort == turn:
                    p.abort(str(i))
            p.turn()
        p.run()
        for i, (prompt, max_tokens, _, arrival, abort) in enumerate(script):
            if abort is None or abort < arrival:
                assert p.tokens(str(i)) == expected(prompt, max_tokens, i)
