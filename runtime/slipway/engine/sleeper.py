"""Putting the engine to sleep: its worker gives memory back until it is woken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from slipway.engine.executor import Worker
from slipway.engine.messages import PARTS, Part
from slipway.exits import Exit

log = logging.getLogger("slipway.engine")

Tell = Callable[[tuple[Part, ...]], None]


class Asleep(Exception):
    """A request came while the engine sleeps."""


class Sleeper:
    """What of a worker is asleep. Level 1 keeps the weights, level 2 drops them and reads them again.

    The parts wake one by one, so that weights may be there before the pages that would lie beside them.
    """

    def __init__(self, worker: Worker, tell: Tell, *, warm_up: bool) -> None:
        """tell: every client of what is asleep now. warm_up: when all is awake, as at the start."""
        self.asleep: tuple[Part, ...] = ()
        self._worker = worker
        self._tell = tell
        self._warm_up = warm_up

    def idle(self) -> bool:
        """As the worker's; there is nothing useful to be done while it sleeps."""
        return not self.asleep and self._worker.idle()

    def check(self) -> None:
        """Raises Asleep where no request can be computed."""
        if self.asleep:
            raise Asleep("the engine sleeps")

    def sleep(self, level: int) -> str:
        """The answer to a call, while no request is live: `ok`, or what prevents it.

        Where one rank of several refuses, those that have fallen asleep are woken again.
        """
        try:
            self._worker.sleep(keep_weights=level == 1)
        except Exit as error:
            return f"failed: fall asleep: {_said(error)}{self._undone()}"
        self._become(PARTS)
        return "ok"

    def _undone(self) -> str:
        """Wakes what was awake. Where that fails all counts as asleep, and the rest of the answer says so."""
        try:
            for part in PARTS:
                if part not in self.asleep:
                    self._worker.wake(part)
        except Exception as error:
            log.exception("what has fallen asleep does not wake")
            self._become(PARTS)
            return f" What had fallen asleep sleeps on, until a call wakes it: {_said(error)}"
        return ""

    def wake(self, parts: Iterable[Part]) -> str:
        """The answer to a call: `ok`, or why what is asleep stays so. What is awake already is so still."""
        if not self.asleep:
            return "ok"
        try:
            for part in parts:
                self._worker.wake(part)
                left = tuple(one for one in self.asleep if one != part)
                if not left and self._warm_up:
                    self._worker.warm_up()
                self._become(left)
        except Exception as error:  # the disk's, a library's or the device's; the files may come back
            log.exception("the engine sleeps on")
            return f"failed: wake up, and sleeps on: {_said(error)}"
        return "ok"

    def _become(self, asleep: tuple[Part, ...]) -> None:
        if asleep != self.asleep:
            self.asleep = asleep
            self._tell(asleep)


def _said(error: Exception) -> str:
    return f"{error} {error.hint}" if isinstance(error, Exit) else str(error) or type(error).__name__
