"""The worker of an engine with several ranks: this process's own, and beside it the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from slipway.engine.executor import Worker
from slipway.engine.link import (
    Allocate,
    CountHostPages,
    Load,
    Question,
    ReadAdapter,
    Sleep,
    Step,
    Wake,
    WarmUp,
)
from slipway.engine.messages import AdapterRef, Part
from slipway.engine.plan import Masks, StepOutput, StepPlan
from slipway.engine.team import Team
from slipway.worker.cache_size import CacheMemory
from slipway_kernels.cpu import RankLeft

T = TypeVar("T")


def load_in_turn(team: Team, load: Callable[[], Worker], size: int, most: int | None) -> tuple[Worker, int]:
    """Have each rank read its weights, at most so many at a time. Raises what prevents any of them.

    Returns this one's worker, and for how many KV pages each of the others has room.
    """
    worker: Worker | None = None
    pages = []
    together = most or size
    for first in range(0, size, together):
        wave = range(first, min(first + together, size))
        answers = team.ask(Load(), [rank for rank in wave if rank])
        if 0 in wave:
            worker = load()
        pages += [answer.result() for answer in answers]
    assert worker is not None
    return worker, min(pages)


class RankedWorker:
    """A worker whose every call reaches all ranks. What draws is told of masks; the others need none.

    A rank that is lost ends the engine: every call raises the cause from then on.
    """

    def __init__(self, worker: Worker, team: Team) -> None:
        self._worker = worker
        self.team = team
        self.runs_ahead, self.takes_drafts = worker.runs_ahead, worker.takes_drafts
        self.repeats_bits = worker.repeats_bits
        others = [answer.result() for answer in team.ask(CountHostPages())]
        self.num_host_pages = min([worker.num_host_pages, *others])

    def profile(self) -> CacheMemory:
        return self._worker.profile()

    def allocate(self, num_pages: int) -> int:
        own, others = self._meeting(Allocate(num_pages), lambda: self._worker.allocate(num_pages))
        self.token_budget = self._worker.token_budget
        return min([own, *others])

    def warm_up(self) -> None:
        self._meeting(WarmUp(), self._worker.warm_up)

    def launch(self, plan: StepPlan) -> None:
        self.team.tell(Step(plan))
        with self._cause_told():
            self._worker.launch(plan)

    def draw(self, masks: Masks | None = None) -> None:
        with self._cause_told():
            self._worker.draw(masks)

    def collect(self) -> StepOutput:
        with self._cause_told():
            return self._worker.collect()

    @contextmanager
    def _cause_told(self, answers: Sequence[Future[int]] = ()) -> Iterator[None]:
        try:
            yield
        except RankLeft:
            for answer in answers:
                if answer.done():
                    answer.result()
            self.team.find()
            raise

    def sleep(self, *, keep_weights: bool) -> None:
        self._all(Sleep(keep_weights), lambda: self._worker.sleep(keep_weights=keep_weights))

    def wake(self, part: Part) -> None:
        self._meeting(Wake(part), lambda: self._worker.wake(part))

    def read_adapter(self, adapter: AdapterRef, place: int) -> int:
        return self._all(ReadAdapter(adapter, place), lambda: self._worker.read_adapter(adapter, place))[0]

    def idle(self) -> bool:
        self.team.check()
        return self._worker.idle()

    def leave(self) -> None:
        self._worker.leave()

    def close(self) -> None:
        self.team.close()
        self._worker.close()

    def _meeting(self, question: Question, own: Callable[[], T]) -> tuple[T, list[int]]:
        """The same of what ranks compute together: nobody waits for one that fails, and the engine ends."""
        answers = self.team.ask(question)
        for answer in answers:
            answer.add_done_callback(self._leave_failed)
        with self._cause_told(answers):
            value = own()
        return value, [answer.result() for answer in answers]

    def _leave_failed(self, answer: Future[int]) -> None:
        if answer.exception() is not None:
            self._worker.leave()

    def _all(self, question: Question, own: Callable[[], T]) -> tuple[T, list[int]]:
        """What this rank makes of it, and the others, which are waited for also where this one fails."""
        answers = self.team.ask(question)
        try:
            value = own()
        finally:
            failures = [answer.exception() for answer in answers]
        for failure in filter(None, failures):
            raise failure
        return value, [answer.result() for answer in answers]
