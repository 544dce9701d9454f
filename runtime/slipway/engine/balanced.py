"""Several engines as one: their requests are balanced, and they are ready, asked and dead together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from slipway.engine.balance import Balance
from slipway.engine.client import Client, EngineClient, OnStats, State
from slipway.engine.launch import Address, Parent
from slipway.engine.messages import PARTS, AdapterRef, AddRequest, Failed, Loading, Ready, Stats
from slipway.engine.stream import EngineDead, Stream
from slipway.exits import ENGINE_DIED

PHASES = ("download", "load", "warmup")
"""Of a start, in their order."""

T = TypeVar("T")


def connect(
    addresses: Sequence[Address], parents: Iterable[Parent], *, client_id: int = 0, by_prefix: bool = True
) -> Client:
    """The client of all engines at these addresses, of which each has its parent.

    by_prefix  they keep prefixes
    """
    clients = [
        EngineClient(
            address.socket_path, client_id=client_id, engine=parent, rank=address.rank, name=address.name
        )
        for address, parent in zip(addresses, parents, strict=True)
    ]
    return clients[0] if len(clients) == 1 else BalancedClient(clients, by_prefix=by_prefix)


class BalancedClient:
    """A `Client` of several engines. One that dies takes the others with it."""

    def __init__(self, clients: Sequence[EngineClient], *, by_prefix: bool = True) -> None:
        self._clients = clients
        self._balance = Balance(len(clients), by_prefix=by_prefix)
        self.ranks = [rank for client in clients for rank in client.ranks]
        for client in clients:
            client.ended = self._balance.ended

    @property
    def state(self) -> State:
        states = {client.state for client in self._clients}
        return "dead" if "dead" in states else "loading" if "loading" in states else "ready"

    @property
    def progress(self) -> Loading | None:
        return summed(client.progress for client in self._clients)

    @property
    def ready(self) -> Ready | None:
        known = [client.ready for client in self._clients if client.ready is not None]
        return least(known) if len(known) == len(self._clients) else None

    @property
    def failure(self) -> Failed | None:
        return next((client.failure for client in self._clients if client.failure is not None), None)

    @property
    def asleep(self) -> bool:
        return any(client.asleep for client in self._clients)

    @property
    def heartbeat_age(self) -> float:
        return self._quietest.heartbeat_age

    @property
    def quietest(self) -> str:
        return self._quietest.quietest

    @property
    def _quietest(self) -> EngineClient:
        return max(self._clients, key=lambda client: client.heartbeat_age)

    async def run(self, *, on_stats: OnStats) -> None:
        def heard(rank: int, stats: Stats) -> None:
            self._balance.heard(self.ranks.index(rank), stats.num_running + stats.num_waiting)
            on_stats(rank, stats)

        running = [asyncio.create_task(client.run(on_stats=heard)) for client in self._clients]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for client in self._clients:
                client.give_up(self._cause())
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def wait_ready(self) -> Ready:
        ready = least(await asyncio.gather(*(client.wait_ready() for client in self._clients)))
        self._balance.block_size = ready.block_size
        return ready

    async def wait_dead(self) -> Failed:
        waiting = [asyncio.create_task(client.wait_dead()) for client in self._clients]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in waiting:
                task.cancel()

    def submit(self, request: AddRequest) -> Stream:
        if self.state != "ready":
            raise EngineDead(self._cause())
        if request.request_id in self._balance:
            raise ValueError(f"request id {request.request_id!r} is in use by a running request")
        place = self._balance.choose(request)
        try:
            return self._clients[place].submit(request)
        except Exception:
            self._balance.ended(request.request_id)
            raise

    def abort(self, request_id: str) -> None:
        place = self._balance.where(request_id)
        if place is not None:
            self._clients[place].abort(request_id)

    @property
    def idle_seconds(self) -> float:
        return max(client.idle_seconds for client in self._clients)

    async def compute_one(self) -> None:
        await self._of_all(lambda client: client.compute_one())

    async def call(self, method: str, *arguments: str, timeout: float | None = None) -> str:
        """A refusal is that of the first engine that refuses. Where only some can fall asleep, they wake."""
        if method in ("reset_prefix_cache", "sleep"):
            self._balance.forget_prefixes()
        answers = await self._of_all(lambda client: client.call(method, *arguments, timeout=timeout))
        if method == "sleep" and len(set(map(_agreed, answers))) > 1:
            slept = [c for c, answer in zip(self._clients, answers, strict=True) if _agreed(answer)]
            await asyncio.gather(*(client.call("wake_up", *PARTS, timeout=timeout) for client in slept))
        return together([(client.quietest, a) for client, a in zip(self._clients, answers, strict=True)])

    async def load_adapter(self, adapter: AdapterRef, *, timeout: float | None = None) -> str:
        verdicts = await self._of_all(lambda client: client.load_adapter(adapter, timeout=timeout))
        wrong = next((verdict for verdict in verdicts if verdict != "ok"), None)
        if wrong is None:
            return "ok"
        for client, verdict in zip(self._clients, verdicts, strict=True):
            if verdict == "ok":
                client.forget_adapter(adapter.number)
        return wrong

    async def unload_adapter(self, number: int, *, timeout: float | None = None) -> None:
        await self._of_all(lambda client: client.unload_adapter(number, timeout=timeout))

    def forget_adapter(self, number: int) -> None:
        for client in self._clients:
            client.forget_adapter(number)

    async def close(self) -> None:
        await self._of_all(lambda client: client.close())

    async def _of_all(self, ask: Callable[[EngineClient], Awaitable[T]]) -> list[T]:
        return await asyncio.gather(*map(ask, self._clients))

    def _cause(self) -> Failed:
        if self.state == "loading":
            return Failed(0, "Loading", "the model is still loading")
        return self.failure or Failed(ENGINE_DIED.code, ENGINE_DIED.reason, ENGINE_DIED.message)


def summed(progress: Iterable[Loading | None]) -> Loading | None:
    """How far engines have come in the phase of the last of them; those ahead of it have done all of it."""
    known = list(progress)
    seen = [one for one in known if one is not None]
    if len(seen) < len(known):
        return None
    phase = min((one.phase for one in seen), key=PHASES.index)
    within = [one for one in seen if one.phase == phase]
    ahead = (len(seen) - len(within)) * max(one.total for one in within)
    return Loading(
        phase,
        sum(one.done for one in within) + ahead,
        sum(one.total for one in within) + ahead,
        seen[0].memory,
    )


def least(readies: Sequence[Ready]) -> Ready:
    """What every engine can serve: they have one model, and memory of their own."""
    first = readies[0]
    phases = dict.fromkeys(phase for ready in readies for phase in ready.startup_seconds)
    return Ready(
        max_model_len=min(ready.max_model_len for ready in readies),
        vocab_size=first.vocab_size,
        num_blocks=min(ready.num_blocks for ready in readies),
        block_size=first.block_size,
        dtype=first.dtype,
        architecture=first.architecture,
        startup_seconds={
            phase: max(ready.startup_seconds.get(phase, 0.0) for ready in readies) for phase in phases
        },
        warnings=list(dict.fromkeys(warning for ready in readies for warning in ready.warnings)),
        asleep=tuple(part for part in PARTS if any(part in ready.asleep for ready in readies)),
        pools=first.pools,
        hidden_size=first.hidden_size,
        max_stretched_len=min(ready.max_stretched_len for ready in readies),
        memory=first.memory,
    )


def together(answers: Sequence[tuple[str, str]]) -> str:
    """One answer of several engines to a question, each behind the engine's name."""
    refusals = [(name, answer) for name, answer in answers if not _agreed(answer)]
    if not refusals:
        results = [result for _, answer in answers if (result := answer.removeprefix("ok").strip())]
        return f"ok {', '.join(results)}".strip()
    name, refusal = refusals[0]
    if refusal.startswith("failed: "):
        return f"failed: {name}: {refusal.removeprefix('failed: ')}"
    return f"{name[:1].upper()}{name[1:]}: {refusal}"


def _agreed(answer: str) -> bool:
    return answer.partition(" ")[0] == "ok"
