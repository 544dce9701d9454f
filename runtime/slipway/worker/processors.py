"""Logits processors that requests bring: code of the operator's, between the model and the draw."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from slipway.engine.messages import NO_TOKEN
from slipway.engine.params import Processor
from slipway.engine.plan import StepPlan
from slipway.load.arrays import Floats
from slipway.load.extras import require_torch
from slipway_kernels.cpu import Edits, Slots

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 10.0
"""That those of a request may take in a step, the import of their modules included."""
TURN_SECONDS = 30.0
"""In which the turn of each has to come: an engine whose step takes a minute is taken for dead."""
LOOK_SECONDS = 0.1
"""Between looks at the clock while a step waits for them."""
THREADS = 2

Function = Callable[[list[int], list[int], "Tensor"], object]
"""Of the prompt, the output so far and logits [vocab]."""


def check_processors(device: str) -> None:
    """Raises LoadError where requests cannot bring processors here."""
    require_torch(
        "Logits processors of requests get torch tensors",
        "leave the pattern out",
        argument="logits_processor_pattern",
    )
    import torch

    if device == "cpu":
        torch.set_num_threads(1)  # the kernels' threads own the cores


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request's processors are asked.

    request  its place in the plan
    known    its tokens, of which `length` are the prompt; NO_TOKEN where there was none
    row      [vocab], theirs to write to
    """

    request: int
    slot: int
    known: list[int]
    length: int
    row: Floats


class Processors:
    """Of every slot whose request brought some. They see copies of the model's logits and run on threads of
    their own, so that one that does not return holds up the others for `SECONDS`, and is called no more.
    """

    def __init__(self, threads: int | None) -> None:
        self.errors: dict[int, str] = {}
        """Since `begin`: by a request's place, why it cannot go on. Its processors are not asked again."""
        self._chains: dict[int, _Chain] = {}
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        self._stuck: set[str] = set()
        for _ in range(threads or THREADS):
            self._begin_thread()

    def start(self, slot: int, processors: Sequence[Processor]) -> None:
        """A request takes the slot; those that hold state begin anew with it."""
        self._chains.pop(slot, None)
        if processors:
            self._chains[slot] = _Chain(processors)

    def __contains__(self, slot: int) -> bool:
        """Whether its request has any."""
        return slot in self._chains

    def begin(self) -> None:
        """A step, which may ask for its rows in several parts."""
        self.errors = {}

    def edits(self, plan: StepPlan, slots: Slots) -> Edits | None:
        """What the step that begins asks while it computes; None where no request has any."""
        self.begin()
        wanted = [slot in self._chains for slot in plan.slots] if self._chains else []
        return Edits(np.array(wanted, np.uint8), partial(self._edit, plan, slots)) if any(wanted) else None

    def _edit(
        self, plan: StepPlan, slots: Slots, requests: list[int], rows: list[Floats]
    ) -> list[Floats | None]:
        asked = []
        for request, row in zip(requests, rows, strict=True):
            slot = plan.slots[request]
            known, length = slots.known(slot).tolist(), int(slots.prompt_len[slot])
            asked.append(Asked(request, slot, known, length, row.copy()))
        return self.answers(asked)

    def answers(self, asked: Sequence[Asked]) -> list[Floats | None]:
        """What each request draws from instead, [vocab]; None where its processors failed, as `errors` says.

        Those of one request run in turn, those of several beside each other.
        """
        jobs = []
        for one in asked:
            chain, prompt = self._chains[one.slot], one.known[: one.length]
            sent = [token for token in prompt if token != NO_TOKEN]
            apply = partial(chain.apply, sent, one.known[one.length :], one.row, self._stuck)
            jobs.append(_Job(chain, apply))
            self._queue.put(jobs[-1])
        latest = time.monotonic() + TURN_SECONDS
        for one, job in zip(asked, jobs, strict=True):
            while not job.done.wait(LOOK_SECONDS):
                self._leave_late(jobs)
                if time.monotonic() > latest:
                    _call_off(jobs)
            if job.error:
                self.errors[one.request] = job.error
                del self._chains[one.slot]
        return [None if job.error else job.result for job in jobs]

    def _leave_late(self, jobs: Sequence[_Job]) -> None:
        """Wait no longer for those that take too long. Their threads cannot be ended; others come instead."""
        for job in jobs:
            if not job.done.is_set() and 0 < job.begun < time.monotonic() - SECONDS:
                self._stuck.add(job.chain.current)
                job.left = True
                job.error = f"its logits processor {job.chain.current} took more than {SECONDS:g} s"
                job.done.set()
                self._begin_thread()

    def _begin_thread(self) -> None:
        """Not by `concurrent.futures`, which waits for all of its threads before the process may end."""
        threading.Thread(target=_work, args=(self._queue,), name="logits-processor", daemon=True).start()


def _call_off(jobs: Sequence[_Job]) -> None:
    """Let those that have not begun be."""
    for job in jobs:
        if not job.begun and not job.done.is_set():
            job.called_off = True
            job.error = f"its logits processors had no turn in {TURN_SECONDS:g} s, which those of others took"
            job.done.set()


def _work(queue: SimpleQueue[_Job]) -> None:
    job = queue.get()
    while not job.run():
        job = queue.get()


class _Job:
    """A call that a thread makes, and what comes of it."""

    def __init__(self, chain: _Chain, apply: Callable[[], Floats]) -> None:
        self.chain = chain
        self.done = threading.Event()
        self.begun = 0.0
        self.left = False
        """Nobody waits for it any more."""
        self.called_off = False
        """Nobody does, and nothing has been called."""
        self.result: Floats | None = None
        self.error = ""
        self._apply = apply

    def run(self) -> bool:
        """Whether it was left, and another thread is there instead of this one."""
        if self.called_off:
            return False
        self.begun = time.monotonic()
        try:
            self.result = self._apply()
        except BaseException as error:  # code of others, which may even exit
            self.error = self.error or f"its logits processors failed: {type(error).__name__}: {error}"
        self.done.set()
        return self.left


class _Chain:
    """What one request brought, made on first use: that may import modules."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.current = ""
        """The one that is imported or called."""
        self._processors = processors
        self._functions: dict[int, Function] = {}

    def apply(self, prompt: list[int], output: list[int], logits: Floats, stuck: set[str]) -> Floats:
        """Raises what they raise, and ValueError for those in `stuck` and for what is no row of logits."""
        import torch

        row: Any = torch.from_numpy(logits)
        for place, processor in enumerate(self._processors):
            name = self.current = processor.qualname
            if name in stuck:
                raise ValueError(f"{name} once took more than {SECONDS:g} s and is not called again")
            if place not in self._functions:
                self._functions[place] = _function(processor)
            row = self._functions[place](prompt, output, row)
            if not isinstance(row, torch.Tensor) or row.shape != logits.shape:
                what = list(row.shape) if isinstance(row, torch.Tensor) else type(row).__name__
                raise ValueError(f"{name} gave {what} instead of a tensor [{len(logits)}]")
        found: Floats = row.detach().to("cpu", torch.float32).numpy()
        if np.isnan(found).any() or found.max() == np.inf or found.max() == -np.inf:
            raise ValueError("what they gave has NaN or infinity, or nothing above -infinity")
        return found


def _function(processor: Processor) -> Function:
    """Raises what importing and making it raises."""
    module, _, name = processor.qualname.rpartition(".")
    found: Any = getattr(import_module(module), name)
    if processor.arguments:
        args, kwargs = msgspec.json.decode(processor.arguments)
        found = found(*args, **kwargs)
    try:
        count = len(inspect.signature(found).parameters)
    except ValueError:  # built in
        count = 2
    return found if count == 3 else lambda prompt, output, logits: found(output, logits)
