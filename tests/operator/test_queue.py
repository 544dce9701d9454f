"""The queue of keys: no key twice, no key at two workers, back-off without end."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from e2e.ground.patience import scaled
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.queue import FIRST_BACK_OFF, LONGEST_BACK_OFF, Queue, back_off


async def taken(queue: Queue[str], seconds: float = scaled(1)) -> str:
    return await asyncio.wait_for(queue.take(), seconds)


async def nothing_to_take(queue: Queue[str]) -> bool:
    """Whether no key is due within a tenth of a second."""
    try:
        await taken(queue, 0.1)
    except TimeoutError:
        return True
    return False


async def test_a_key_added_twice_is_given_out_once() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a")
    assert await nothing_to_take(queue)


async def test_a_key_added_while_it_is_worked_on_waits_for_the_end_of_that() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await taken(queue)
    queue.add("a")
    assert await nothing_to_take(queue)
    queue.done("a")
    assert await taken(queue) == "a"


async def test_the_earliest_of_several_times_holds() -> None:
    queue: Queue[str] = Queue()
    queue.add("a", after=60)
    queue.add("a", after=0)
    queue.add("a", after=60)
    assert await taken(queue) == "a"
    queue.done("a")
    assert len(queue) == 0
    assert await nothing_to_take(queue)


async def test_one_that_is_wanted_first_goes_before_all_that_are_due() -> None:
    queue: Queue[str] = Queue()
    for key in "abc":
        queue.add(key)
    for key in "dbb":
        queue.add_first(key)
    assert [await taken(queue) for _ in "abcd"] == ["d", "b", "a", "c"]
    for key in "abcd":
        queue.done(key)
    assert await nothing_to_take(queue)


async def test_one_that_is_wanted_first_and_worked_on_holds_up_nobody() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await taken(queue)
    queue.add_first("a")
    queue.add("b")
    assert await taken(queue) == "b"
    queue.done("a")
    assert await taken(queue) == "a"


async def test_one_that_is_wanted_first_waits_out_a_failure_all_the_same() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await taken(queue)
    queue.add_first("a")
    queue.failed("a")
    queue.add("b")
    assert await taken(queue) == "b"


async def test_a_waiting_worker_wakes_for_a_key_that_is_due_sooner() -> None:
    queue: Queue[str] = Queue()
    queue.add("late", after=60)
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("soon")
    assert await asyncio.wait_for(waiting, scaled(1)) == "soon"


async def test_a_failed_key_comes_again_after_its_back_off_and_success_forgets_it() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await taken(queue)
    first = queue.failed("a")
    assert 0 < first <= FIRST_BACK_OFF
    assert len(queue) == 0
    assert await taken(queue) == "a"
    assert queue.failed("a") > first / 2
    assert await taken(queue) == "a"
    queue.done("a")
    queue.add("a")
    await taken(queue)
    assert queue.failed("a") <= FIRST_BACK_OFF


async def test_a_failure_of_the_server_is_waited_out_for_less_long() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    for _ in range(2000):  # days of an outage
        (key,) = [await queue.take()]
        assert queue.failed(key, longest=1e-6) <= 1e-6
    await taken(queue)
    assert queue.failed("a") <= FIRST_BACK_OFF, "the next one counts from the beginning"


async def test_the_age_is_that_of_the_longest_waiting_key_and_not_of_one_in_back_off() -> None:
    queue: Queue[str] = Queue()
    queue.add("later", after=60)
    assert queue.oldest() == 0
    assert len(queue) == 0
    queue.add("now")
    await asyncio.sleep(0.01)
    assert 0.01 <= queue.oldest() < 60
    assert len(queue) == 1


def test_a_back_off_stays_at_its_bound_however_long_the_failures_last() -> None:
    assert back_off(100_000, 1.0) == LONGEST_BACK_OFF


@given(st.integers(1, 500), st.floats(0, 0.999))
def test_a_back_off_grows_to_its_bound_and_never_beyond(failures: int, share: float) -> None:
    assert 0 < back_off(failures, share) <= LONGEST_BACK_OFF
    assert back_off(failures, share) <= back_off(failures + 1, share)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3)), max_size=60), st.integers(1, 4))
def test_every_added_key_is_worked_on_and_never_by_two_workers(
    steps: list[tuple[str, int]], workers: int
) -> None:
    async def run() -> None:
        queue: Queue[str] = Queue()
        running: set[str] = set()
        seen: Counter[str] = Counter()

        async def work() -> None:
            while True:
                key = await queue.take()
                assert key not in running
                running.add(key)
                for _ in range(len(steps) % 3):
                    await asyncio.sleep(0)
                running.remove(key)
                seen[key] += 1
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for key, pauses in steps:
            (queue.add_first if pauses == 1 else queue.add)(key)
            for _ in range(pauses):
                await asyncio.sleep(0)
        while len(queue):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError)
        assert set(seen) == {key for key, _ in steps}
        assert all(seen[key] <= sum(key == other for other, _ in steps) for key in seen)

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(5))
async def test_one_who_waits_can_be_ended_in_any_turn_of_the_loop_after_a_key_has_come(turns: int) -> None:
    """Else an operator that is told to end while a key comes would wait for that worker for ever."""
    queue: Queue[str] = Queue()
    queue.add("later", 1000.0)
    worker = asyncio.create_task(queue.take())
    for _ in range(3):  # until it waits
        await asyncio.sleep(0)
    queue.add("sooner", 500.0)
    for _ in range(turns):
        await asyncio.sleep(0)
    worker.cancel()
    done, _ = await asyncio.wait([worker], timeout=scaled(1))
    assert done
    assert worker.cancelled()
