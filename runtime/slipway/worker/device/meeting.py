"""Where ranks with devices of their own wait for each other, before they compute together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread

from slipway.dist.groups import Group
from slipway.worker.device.peer_memory import PeerMemory
from slipway_kernels.collective import Peers
from slipway_kernels.cpu import RankLeft


@dataclass(frozen=True, slots=True)
class Met:
    """The ranks once all of them are there.

    group   those of its stage; None where it is alone there
    peers   the same, where all read each other's memory
    before, behind   with the rank of its place in the stage before and in the one behind, each a group whose
                     first one's rows become the other's
    """

    group: Group | None = None
    peers: Peers | None = None
    memory: PeerMemory | None = None
    before: Group | None = None
    behind: Group | None = None

    def leave(self) -> None:
        if self.memory is not None:
            self.memory.leave()
        for group in filter(None, (self.group, self.before, self.behind)):
            group.leave()


class Meeting:
    """No call of torch's that waits for another process to connect can be told to end: a thread makes it,
    whose result is awaited.
    """

    met: Met | None = None
    left = False

    def __init__(self, meet: Callable[[], Met]) -> None:
        """meet: meets the others; it returns when all have called theirs"""
        self._meet = meet
        self._meeting: Future[Met | None] = Future()

    def wait(self) -> None:
        """Until all have come. Raises RankLeft, and what prevents it."""
        if self.met is None:
            Thread(target=self._met_beside, name="meeting", daemon=True).start()
            self.met = self._meeting.result()
            self.check()

    def leave(self) -> None:
        """One is lost: nothing waits for the others any more. In any thread."""
        self.left = True
        with suppress(InvalidStateError):
            self._meeting.set_result(None)
        if self.met is not None:
            self.met.leave()

    def check(self) -> None:
        """Raises RankLeft behind `leave`."""
        if self.left:
            raise RankLeft

    def _met_beside(self) -> None:
        with suppress(InvalidStateError):  # the others have been given up meanwhile
            try:
                self._meeting.set_result(self._meet())
            except Exception as error:
                self._meeting.set_exception(error)


@contextmanager
def lost() -> Iterator[None]:
    """What a group's call raises means that another rank is lost: shapes are the same on all."""
    try:
        yield
    except RuntimeError as error:
        raise RankLeft(str(error)) from error
