"""Where plans are carried out. An executor is the only part that knows where workers live."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from slipway.engine.plan import StepOutput, StepPlan


class Worker(Protocol):
    """Runs plans over the state that it keeps in its slots."""

    def step(self, plan: StepPlan) -> StepOutput: ...


class Executor(Protocol):
    """Steps are carried out in the order of `submit`; `collect` gives their outputs in that order."""

    depth: int
    """Steps that may be under way before the first is collected: 1 in turn, 2 overlapped."""

    def submit(self, plan: StepPlan) -> None: ...
    def collect(self) -> StepOutput: ...
    def close(self) -> None: ...


class InTurn:
    """Compute in the core's own thread: on CPU, where compute owns every core."""

    depth = 1

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._output: StepOutput | None = None

    def submit(self, plan: StepPlan) -> None:
        self._output = self._worker.step(plan)

    def collect(self) -> StepOutput:
        assert self._output is not None
        output, self._output = self._output, None
        return output

    def close(self) -> None:
        return None


class Overlapped:
    """Compute in a thread of its own, while the core plans the next step."""

    depth = 2

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._under_way: deque[Future[StepOutput]] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._under_way.append(self._thread.submit(self._worker.step, plan))

    def collect(self) -> StepOutput:
        return self._under_way.popleft().result()

    def close(self) -> None:
        self._thread.shutdown()


@runtime_checkable
class LaunchingWorker(Protocol):
    """A worker that is given steps and asked for their outputs later, in the same order."""

    def launch(self, plan: StepPlan) -> Any: ...
    def collect(self, pending: Any) -> StepOutput: ...


class Ahead:
    """Steps are launched on a device before those ahead of them have ended: no thread is needed.

    `depth` 1 waits for each step (`--disable-async-output-proc`).
    """

    def __init__(self, worker: LaunchingWorker, depth: int = 2) -> None:
        self.depth = depth
        self._worker = worker
        self._pending: deque[Any] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._pending.append(self._worker.launch(plan))

    def collect(self) -> StepOutput:
        return self._worker.collect(self._pending.popleft())

    def close(self) -> None:
        while self._pending:
            self.collect()


class NullWorker:
    """Known tokens and no model, for the scheduler's tests and the core loop's benchmark.

    The token drawn after n known ones is `(seed + n) % vocab`, so that any run can be checked. It keeps
    the same slots as a real worker and raises ValueError for a plan that contradicts them.
    """

    def __init__(self, num_slots: int, vocab: int = 1000) -> None:
        self.vocab = vocab
        self.known = [0] * num_slots
        self.computed = [0] * num_slots
        self.seed = [0] * num_slots
        self.tables: list[dict[int, list[int]]] = [{} for _ in range(num_slots)]

    def step(self, plan: StepPlan) -> StepOutput:
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
        return StepOutput([self._advance(s, n) for s, n in zip(plan.slots, plan.num_new, strict=True)], [])

    def _advance(self, slot: int, num_new: int) -> int:
        self.computed[slot] += num_new
        if self.computed[slot] > self.known[slot]:
            raise ValueError(f"slot {slot} computes {self.computed[slot]} of {self.known[slot]} tokens")
        if self.computed[slot] < self.known[slot]:
            return -1
        self.known[slot] += 1
        return (self.seed[slot] + self.known[slot] - 1) % self.vocab
