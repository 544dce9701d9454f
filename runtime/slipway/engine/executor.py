"""Where plans are carried out. An executor is the only part that knows where workers live."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from slipway.engine.messages import AdapterRef, Part
from slipway.engine.plan import Masks, StepOutput, StepPlan
from slipway.worker.cache_size import CacheMemory
from slipway.worker.in_turn import InTurn

QUIET_SECONDS = 0.05
"""Idle work, such as capturing graphs, starts this long after the last step. So a client that sends its next
request at once does not wait for it."""


class Steps(Protocol):
    """Runs plans over the state that it keeps in its slots.

    A step has two halves, so that what the draw needs may be made ready while the model computes: `launch`
    starts the forward pass, `draw` what follows of it, within masks where there are some; then comes the next
    step. `collect` waits for the oldest step that has not been collected.
    """

    def launch(self, plan: StepPlan) -> None: ...
    def draw(self, masks: Masks | None = None) -> None: ...
    def collect(self) -> StepOutput: ...
    def close(self) -> None:
        """Give back what it holds; nothing may follow."""


class Worker(Steps, Protocol):
    """A model that runs. The one life of all workers: what `load` gives has its weights, then once each
    `profile`, `allocate`, `warm_up`; then steps, between which it may `sleep` and `wake`, and `close`.
    """

    token_budget: int
    """Most tokens of a step; known once pages are allocated."""
    num_host_pages: int
    """Pages in host memory for preempted requests."""
    runs_ahead: bool
    """Whether launching returns before the work is done, so that the next step can be planned meanwhile."""
    takes_drafts: bool
    """Whether plans may say what a slot verifies."""
    repeats_bits: bool
    """Whether computing a token again gives the bits that it gave before."""

    def profile(self) -> CacheMemory:
        """How many pages there is room for."""

    def allocate(self, num_pages: int) -> int:
        """Make the pages, or fewer where there is no memory for so many; how many there are."""

    def warm_up(self) -> None:
        """Whatever would make the first requests slower than later ones, as capturing graphs does."""

    def sleep(self, *, keep_weights: bool) -> None:
        """Give back the memory of the pages, and of the weights, which move to cheaper memory where there is
        some and they are to be kept; also where some of that has been done. No step comes before all wakes.

        Raises Exit where weights find no room; nothing has changed then. Of several ranks others may sleep.
        """

    def wake(self, part: Part) -> None:
        """Have that part as it was, pages empty; nothing where it is awake.

        Raises what prevents it, LoadError and Exit among that: it sleeps on then, and may be woken again.
        """

    def read_adapter(self, adapter: AdapterRef, place: int) -> int:
        """Make an adapter ready for the place that a later plan gives it; for NO_PLACE it is not kept. The
        tokens that it adds to the vocabulary. Called beside steps, in a thread.

        Raises LoadError for one that cannot be served.
        """

    def leave(self) -> None:
        """Another rank is lost: no step waits for it any more, but fails. Called in any thread."""

    def idle(self) -> bool:
        """Something useful while nothing runs, some milliseconds of it; False where there is no more."""


class Executor:
    """Runs steps on one worker in this process, up to `depth` of them under way.

    depth   1: each step is collected before the next is planned; 2: the next is planned meanwhile
    thread  whether the worker needs a thread of its own for that, because its calls return when they are done
    """

    def __init__(self, worker: Steps, depth: int = 1, *, thread: bool = False) -> None:
        self.depth = depth
        self._worker = worker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker") if thread else None
        self._launched: Future[None] | None = None
        self._under_way: deque[Future[StepOutput]] = deque()

    def launch(self, plan: StepPlan) -> None:
        if self._thread is None:
            self._worker.launch(plan)
        else:
            self._launched = self._thread.submit(self._worker.launch, plan)

    def draw(self, masks: Masks | None = None) -> None:
        if self._thread is None or self._launched is None:
            self._worker.draw(masks)
        else:
            self._under_way.append(self._thread.submit(self._drawn, self._launched, masks))

    def collect(self) -> StepOutput:
        """The output of the oldest step under way, in the order of launches."""
        return self._worker.collect() if self._thread is None else self._under_way.popleft().result()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._worker.close()

    def _drawn(self, launched: Future[None], masks: Masks | None) -> StepOutput:
        """In the worker's thread, after its launch."""
        launched.result()  # raises what that raised
        self._worker.draw(masks)
        return self._worker.collect()


class NullWorker(InTurn):
    """Known tokens and no model, for the scheduler's tests and the core loop's benchmark.

    The token drawn after n known ones is `(seed + n) % vocab`, whatever masks say, so that any run can be
    checked. Of the drafts that it is given it accepts some, by seed and position. It keeps the same slots as
    a real worker and raises ValueError for a plan that contradicts them.
    """

    def __init__(self, num_slots: int, vocab: int = 1000) -> None:
        super().__init__()
        self.vocab = vocab
        self.known, self.computed, self.seed = np.zeros((3, num_slots), np.int64)
        self.tables: list[dict[int, list[int]]] = [{} for _ in range(num_slots)]
        self.num_accepted = self.num_rejected = 0

    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
        for start in plan.starts:
            self.known[start.slot] = len(start.tokens)
            self.computed[start.slot] = start.num_computed
            self.seed[start.slot] = start.params.seed
            self.tables[start.slot] = {}
        for grant in plan.pages:
            table = self.tables[grant.slot].setdefault(grant.group, [])
            if grant.start != len(table):
                raise ValueError(f"pages for block {grant.start} of a table that has {len(table)}")
            table += grant.pages
        return StepOutput(self._advanced(plan), [])

    def _advanced(self, plan: StepPlan) -> list[list[int]]:
        """What each request draws. In arrays: what the benchmark measures is the loop round it."""
        rows = (plan.slots, plan.num_new, plan.num_drafts, plan.draws, plan.lengths)
        slots, num_new, num_drafts, draws, lengths = np.array(rows, np.int64)
        known, computed = self.known[slots], self.computed[slots] + num_new - num_drafts
        wrong = (computed > known) | (draws != (computed == known)) | (num_drafts > num_drafts * draws)
        wrong |= computed + num_drafts > lengths
        if wrong.any():
            index = wrong.argmax()
            raise ValueError(
                f"slot {slots[index]} computes {computed[index]} of {known[index]} tokens and "
                f"{num_drafts[index]} drafts, up to {lengths[index]}; draws: {draws[index]}"
            )
        accepted = (self.seed[slots] * 31 + known) * 2654435761 % 65521 % (num_drafts + 1)
        self.num_accepted += int(accepted.sum())
        self.num_rejected += int((num_drafts - accepted).sum())
        self.computed[slots] = computed + accepted
        self.known[slots] = known + draws + accepted
        first = (self.seed[slots] + known) % self.vocab
        tokens = [[token] if drawn else [] for token, drawn in zip(first.tolist(), plan.draws, strict=True)]
        for index in np.flatnonzero(accepted):
            tokens[index] = [(tokens[index][0] + i) % self.vocab for i in range(accepted[index] + 1)]
        return tokens
