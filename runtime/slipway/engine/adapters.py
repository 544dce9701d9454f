"""Which adapters are in memory, in which place of the worker, and who waits for one to be read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from slipway.engine.messages import AdapterRef
from slipway.engine.plan import NO_PLACE, AdapterChange
from slipway.engine.request import Request
from slipway.load.errors import LoadError

NICENESS = 5
"""Of the thread that reads: steps under way have three quarters of a core that it wants, too."""
ReadAdapter = Callable[[AdapterRef, int], int]
"""Makes an adapter ready for a place, in a thread beside the core's; for NO_PLACE it is read and not kept.
Gives the tokens that it adds to the vocabulary.

Raises LoadError."""
Answer = Callable[[str], None]
"""Told "ok", or what is wrong with an adapter."""


class AdapterError(Exception):
    """A request's adapter cannot be read; the message says why."""


def no_adapters(adapter: AdapterRef, place: int) -> int:
    raise LoadError("UnsupportedFormat", "This engine serves no adapters.", argument="enable_lora")


@dataclass(slots=True, eq=False)
class _Held:
    """An adapter in its place. `users` are live requests with it that wait for nothing else here."""

    ref: AdapterRef
    place: int
    used: int
    users: int = 0
    closing: bool = False
    """Others wait for places: when its users have ended, it goes. Who asks for it now waits behind them."""
    unloaded: bool = False


@dataclass(slots=True, eq=False)
class _Wanted:
    """An adapter that is not there yet, and who waits for it; `answers` wait until it has been read."""

    ref: AdapterRef
    requests: dict[Request, None] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    place: int = NO_PLACE
    """That is kept for it while it is read; NO_PLACE: it is read to see whether it is fit."""
    reading: Future[int] | None = None
    unloaded: bool = False
    """It goes when its requests have ended."""


class Adapters:
    """Keeps as many adapters in memory as there are places; the least recently used go first.

    A request holds its adapter from when it may be scheduled to its end. One whose adapter is not in memory
    waits until that has been read, in a thread of its own that yields to all others; nobody else waits for
    that. Where every place is held, places are closed, one for each adapter that is wanted: so an adapter
    that everybody asks for does not keep another out for ever. Who loads one waits for no place: where none
    is left, it is read to answer, and again when a request names it.

    Invariants: a place is free, kept by one adapter that is read, or held by one; `changes` tells the worker
    of every place whose adapter it does not know yet.
    """

    argument = "--enable-lora"
    """Without which none of the kind are served."""

    def __init__(
        self, read: ReadAdapter = no_adapters, num_places: int = 0, wake: Callable[[], None] = lambda: None
    ) -> None:
        """wake: called from the reading thread when `prepared` has news."""
        self.num_places = num_places
        self.changes: dict[int, AdapterChange] = {}
        """By place, for the next plan."""
        self._read = read
        self._wake = wake
        self._thread: ThreadPoolExecutor | None = None
        self._free = list(range(num_places - 1, -1, -1))
        self._held: dict[int, _Held] = {}
        """By number."""
        self._held_by: dict[Request, _Held] = {}
        self._wanted: dict[int, _Wanted] = {}
        """By number, in the order of asking: those that wait for a place."""
        self._reading: dict[int, _Wanted] = {}
        """By number: those that are read."""
        self._ready: dict[Request, None] = {}
        """That hold their adapters, which `prepared` has not told."""
        self._added: dict[int, int] = {}
        """By number: tokens that it added to the vocabulary when it was read first."""
        self._clock = 0

    @property
    def num_waiting(self) -> int:
        """Requests whose adapters are not in memory."""
        waits = (*self._wanted.values(), *self._reading.values())
        return sum(len(wanted.requests) for wanted in waits) + len(self._ready)

    @property
    def has_prepared(self) -> bool:
        """`prepared` has news."""
        under_way = (one.reading for one in self._reading.values()) if self._reading else ()
        return bool(self._ready) or any(future is not None and future.done() for future in under_way)

    def names(self, running: dict[int, int]) -> tuple[list[str], list[str]]:
        """Of the adapters of running and of waiting requests, sorted.

        running  requests that run, by their adapter's place
        """
        runs = {held.ref.name for held in self._held.values() if held.place in running}
        waits = {held.ref.name for held in self._held.values() if held.users > running.get(held.place, 0)}
        for wanted in (*self._wanted.values(), *self._reading.values()):
            if wanted.requests:
                waits.add(wanted.ref.name)
        return sorted(runs), sorted(waits)

    def prepare(self, request: Request, ref: AdapterRef) -> bool:
        """Whether its adapter is there; else the request waits until `prepared` names it."""
        held = self._held.get(ref.number)
        if held is not None and not held.closing:
            self._hold(request, held)
            return True
        self._want(ref).requests[request] = None
        self._begin()
        return False

    def load(self, ref: AdapterRef, answer: Answer) -> None:
        """Read an adapter that nobody has asked for yet."""
        if not self.num_places:
            answer(f"This engine serves no such adapters: start it with {self.argument}.")
        elif ref.number in self._held:
            answer("ok")
        else:
            wanted = self._reading.get(ref.number) or self._wanted.get(ref.number)
            if wanted is None:
                wanted = _Wanted(ref)
                self._read_for(wanted, self._place())
            wanted.answers.append(answer)

    def unload(self, number: int) -> None:
        """It goes when nobody holds it any more, nor waits for it."""
        for waits in (self._wanted, self._reading):
            if number in waits:
                waits[number].unloaded = True
        held = self._held.get(number)
        if held is not None:
            held.unloaded = True
            if not held.users:
                self._drop(held)
                self._begin()
        elif number not in self._wanted and number not in self._reading:
            self._added.pop(number, None)

    def prepared(self) -> list[tuple[Request, AdapterError | None]]:
        """Requests that may be scheduled from now on, or whose adapter could not be read."""
        done = [one for one in self._reading.values() if one.reading is not None and one.reading.done()]
        failed: list[tuple[Request, AdapterError | None]] = []
        for wanted in done:
            del self._reading[wanted.ref.number]
            error = self._unfit(wanted)
            if error is None:
                self._take_in(wanted)
                continue
            if not isinstance(error, Exception):
                raise error
            self._give_back(wanted.place)
            why = told(wanted.ref, error)
            for answer in wanted.answers:
                answer(why)
            failed += [(request, AdapterError(why)) for request in wanted.requests]
        ready, self._ready = self._ready, {}
        self._begin()
        return [*failed, *((request, None) for request in ready)]

    def end(self, request: Request) -> bool:
        """Forget a request; whether it was still waiting here, so that nobody else knows of it."""
        held = self._held_by.pop(request, None)
        if held is not None:
            held.users -= 1
            if not held.users and held.unloaded:
                self._drop(held)
            if not held.users and self._wanted:
                self._begin()
            waited = request in self._ready
            self._ready.pop(request, None)
            return waited
        number = request.named.number if request.named else 0
        for waits in (self._wanted, self._reading):
            wanted = waits.get(number)
            if wanted is not None and request in wanted.requests:
                del wanted.requests[request]
                if waits is self._wanted and not wanted.requests and not wanted.answers:
                    del self._wanted[number]
                    self._begin()
                return True
        return False

    @property
    def busy(self) -> bool:
        """One is being read, or waits for a place."""
        return bool(self._wanted or self._reading or self._ready)

    def forget(self) -> None:
        """The worker has let go of all of them, while nobody held one and none was read."""
        self._free += [held.place for held in self._held.values()]
        self._held.clear()
        self.changes.clear()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _want(self, ref: AdapterRef) -> _Wanted:
        number = ref.number
        return self._reading.get(number) or self._wanted.setdefault(number, _Wanted(ref))

    def _hold(self, request: Request, held: _Held) -> None:
        held.users += 1
        held.used = self._tick()
        self._held_by[request] = held
        self._give(request, held.place)

    def _give(self, request: Request, place: int) -> None:
        """The request computes with what is in that place from now on."""
        request.adapter = place

    def _tell(self, place: int, adapter: AdapterRef | None) -> None:
        """What the place has from now on."""
        self.changes[place] = AdapterChange(place, adapter)

    def _unfit(self, wanted: _Wanted) -> BaseException | None:
        """Why what was read cannot be served.

        Its requests were made for as many tokens as it had when it was read first: none that is not there may
        come to the worker.
        """
        assert wanted.reading is not None
        error, ref = wanted.reading.exception(), wanted.ref
        if error is not None:
            return error
        added = wanted.reading.result()
        known = self._added.setdefault(ref.number, added)
        if added == known:
            return None
        message = (
            f"The adapter {ref.name} in {ref.folder} adds {added} tokens to the vocabulary, "
            f"and added {known} when it was loaded."
        )
        return LoadError("BadCheckpoint", message, hint="Load it again in its place, or restart the server.")

    def _take_in(self, wanted: _Wanted) -> None:
        """What has been read without fault goes to its place, or its requests wait for one."""
        for answer in wanted.answers:
            answer("ok")
        if wanted.place == NO_PLACE:
            if wanted.requests:
                self._wanted[wanted.ref.number] = _Wanted(
                    wanted.ref, wanted.requests, unloaded=wanted.unloaded
                )
            return
        held = _Held(wanted.ref, wanted.place, self._tick(), unloaded=wanted.unloaded)
        self._held[wanted.ref.number] = held
        self._tell(wanted.place, wanted.ref)
        self._hold_all(wanted, held)
        if held.unloaded and not held.users:
            self._drop(held)

    def _hold_all(self, wanted: _Wanted, held: _Held) -> None:
        for request in wanted.requests:
            self._hold(request, held)
        self._ready |= wanted.requests

    def _begin(self) -> None:
        """Give places to adapters that are wanted, the first one first, and read them."""
        for number, wanted in list(self._wanted.items()):
            held = self._held.get(number)
            if held is not None:  # it was to go, and somebody else's place was enough
                held.closing = False
                self._hold_all(self._wanted.pop(number), held)
                for answer in wanted.answers:
                    answer("ok")
                continue
            place = self._place()
            if place == NO_PLACE:
                break
            self._read_for(self._wanted.pop(number), place)
        self._close_places()

    def _read_for(self, wanted: _Wanted, place: int) -> None:
        wanted.place = place
        self.changes.pop(place, None)  # its next one comes with what is read now
        self._reading[wanted.ref.number] = wanted
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "adapters", initializer=_yield_to_others)
        wanted.reading = self._thread.submit(self._read, wanted.ref, place)
        wanted.reading.add_done_callback(lambda _: self._wake())

    def _place(self) -> int:
        """A free one, else that of the adapter that was used longest ago of those that nobody holds; NO_PLACE
        where all are held."""
        if self._free:
            return self._free.pop()
        idle = [held for held in self._held.values() if not held.users]
        if not idle:
            return NO_PLACE
        oldest = min(idle, key=lambda held: (not held.closing, held.used))
        del self._held[oldest.ref.number]
        return oldest.place

    def _give_back(self, place: int) -> None:
        """Nobody has it; what the worker still keeps there goes."""
        if place != NO_PLACE:
            self._free.append(place)
            self._tell(place, None)

    def _close_places(self) -> None:
        """As many as are wanted and not under way, of those whose last request came longest ago."""
        open_ones = sorted(
            (one for one in self._held.values() if not one.closing), key=lambda held: held.used
        )
        closing = len(self._held) - len(open_ones)
        if not self._wanted:
            for held in self._held.values() if closing else ():
                held.closing = False
        for held in open_ones[: max(0, len(self._wanted) - closing)]:
            held.closing = True

    def _drop(self, held: _Held) -> None:
        del self._held[held.ref.number]
        self._added.pop(held.ref.number, None)
        self._give_back(held.place)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def told(ref: AdapterRef, error: Exception) -> str:
    """Why an adapter cannot be read, as a sentence."""
    if isinstance(error, LoadError):
        return str(error)
    return f"The adapter {ref.name} in {ref.folder} cannot be read: {type(error).__name__}: {error}"


def _yield_to_others() -> None:
    with suppress(OSError):  # where the system does not let us, it reads as any other thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
