"""What clients are told: the news of their requests, and the state of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from slipway.dist.frames import FrameTooLarge
from slipway.engine.adapter_kinds import AdapterKinds
from slipway.engine.grammar import Grammars
from slipway.engine.messages import Delta, Stats, StepDone
from slipway.engine.scheduler import Scheduler
from slipway.engine.wire import Hub


class Core(Protocol):
    """Where requests wait and run."""

    scheduler: Scheduler
    grammars: Grammars
    adapters: AdapterKinds


class News:
    """Sends each client a frame a step, with deltas or as a heartbeat.

    What is counted belongs to the core: the first client reports it, so that sums stay right.
    """

    def __init__(self, hub: Hub, core: Core) -> None:
        self._hub = hub
        self._core = core
        self.clients: set[int] = set()
        """Those that are connected."""
        self.num_steps = 0
        """Since the start."""
        self._num_generated = 0
        """Tokens that no Stats has told of yet."""

    def send(
        self,
        deltas: Mapping[int, Sequence[Delta]],
        num_step_tokens: Sequence[int] = (),
        step_seconds: Sequence[float] = (),
    ) -> list[tuple[int, str]]:
        """By client, its requests' news; of a step, also its tokens and its time.

        Gives the requests that end by this: no frame holds their news, and that is what they were told.
        """
        too_large: list[tuple[int, str]] = []
        self._num_generated += sum(len(delta.token_ids) for of_one in deltas.values() for delta in of_one)
        for client_id in sorted(deltas):
            stats = self._stats(list(num_step_tokens), list(step_seconds))
            num_step_tokens = step_seconds = ()
            try:
                self._hub.send(client_id, StepDone(list(deltas[client_id]), stats))
            except FrameTooLarge:
                self._hub.send(client_id, StepDone([], stats))
                too_large += self._send_apart(client_id, deltas[client_id], stats)
        return too_large

    def heartbeat(self) -> None:
        self.send({client_id: [] for client_id in self.clients})

    def _stats(self, num_step_tokens: list[int], step_seconds: list[float]) -> Stats:
        """The state now, and what was counted since the last ones."""
        scheduler, adapters = self._core.scheduler, self._core.adapters
        num_prepared_for = self._core.grammars.num_waiting + adapters.num_waiting
        running, waiting = adapters.names(scheduler.running_adapters)
        stats = Stats(
            len(scheduler.running),
            len(scheduler.waiting) + num_prepared_for,
            scheduler.cache.pool.usage,
            self.num_steps,
            num_step_tokens,
            step_seconds,
            scheduler.prefix_queries,
            scheduler.prefix_hits,
            scheduler.num_preemptions,
            num_deferred=scheduler.num_deferred + num_prepared_for,
            num_swapped=len(scheduler.cache.swapped),
            swap_usage=scheduler.cache.host.usage,
            prompt_tokens=scheduler.prompt_tokens,
            generation_tokens=self._num_generated,
            speculated=scheduler.guessing.counts() if scheduler.guessing else None,
            running_adapters=running,
            waiting_adapters=waiting,
        )
        scheduler.prefix_queries = scheduler.prefix_hits = scheduler.num_preemptions = 0
        scheduler.prompt_tokens = self._num_generated = 0
        return stats

    def _send_apart(self, client_id: int, deltas: Sequence[Delta], told: Stats) -> list[tuple[int, str]]:
        """News in a frame each; the requests whose own fill no frame."""
        stats = msgspec.structs.replace(
            told,
            num_step_tokens=[],
            step_seconds=[],
            prefix_queries=0,
            prefix_hits=0,
            preemptions=0,
            prompt_tokens=0,
            generation_tokens=0,
            speculated=None,
        )
        too_large = []
        for delta in deltas:
            try:
                self._hub.send(client_id, StepDone([delta], stats))
            except FrameTooLarge as error:
                too_large.append((client_id, delta.request_id))
                ended = Delta(delta.request_id, [], "error", error=str(error), unfit=True)
                self._hub.send(client_id, StepDone([ended], stats))
        return too_large
