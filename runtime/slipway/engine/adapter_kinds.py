"""The adapters of both kinds, to the core: a request names one, and its kind knows when it is there."""

from __future__ import annotations

from slipway.engine.adapters import AdapterError, Adapters, Answer
from slipway.engine.messages import AdapterRef
from slipway.engine.plan import AdapterChange
from slipway.engine.request import Request


class AdapterKinds:
    """Low-rank adapters, which the worker has, and prompt adapters, whose rows requests take along."""

    def __init__(self, low_rank: Adapters | None = None, prompts: Adapters | None = None) -> None:
        self.low_rank = low_rank or Adapters()
        self._prompts = prompts or Adapters()
        self._all = (self.low_rank, self._prompts)

    @property
    def changes(self) -> dict[int, AdapterChange]:
        """By place of the worker, for the next plan."""
        return self.low_rank.changes

    @property
    def num_waiting(self) -> int:
        """Requests whose adapters are not in memory."""
        return self.low_rank.num_waiting + self._prompts.num_waiting

    @property
    def has_prepared(self) -> bool:
        """`prepared` has news."""
        return self.low_rank.has_prepared or self._prompts.has_prepared

    @property
    def busy(self) -> bool:
        """One is being read, or waits for a place."""
        return self.low_rank.busy or self._prompts.busy

    def check(self, ref: AdapterRef) -> None:
        """Raises AdapterError where none of its kind is served."""
        if not self._of(ref).num_places:
            raise AdapterError(f"This engine serves no adapters, and none named {ref.name}.")

    def prepare(self, request: Request) -> bool:
        """Whether it has all that it computes with; else it waits until `prepared` names it."""
        ref = request.named
        return ref is None or self._of(ref).prepare(request, ref)

    def prepared(self) -> list[tuple[Request, AdapterError | None]]:
        """Requests that may be scheduled from now on, or whose adapter could not be read."""
        return [one for kind in self._all for one in kind.prepared()]

    def end(self, request: Request) -> bool:
        """Forget a request; whether it was still waiting here, so that nobody else knows of it."""
        return request.named is not None and self._of(request.named).end(request)

    def load(self, ref: AdapterRef, answer: Answer) -> None:
        """Read an adapter that nobody has asked for yet."""
        self._of(ref).load(ref, answer)

    def unload(self, number: int) -> None:
        """It goes when nobody holds it any more, nor waits for it."""
        for kind in self._all:
            kind.unload(number)

    def names(self, running: dict[int, int]) -> tuple[list[str], list[str]]:
        """Of the low-rank adapters of running and of waiting requests, sorted.

        running  requests that run, by their adapter's place
        """
        return self.low_rank.names(running) if self.low_rank.num_places else ([], [])

    def forget(self) -> None:
        """The worker has let go of all of them, while nobody held one and none was read."""
        for kind in self._all:
            kind.forget()

    def _of(self, ref: AdapterRef) -> Adapters:
        return self._prompts if ref.num_virtual else self.low_rank
