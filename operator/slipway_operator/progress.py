"""How far a server that loads has come, and what memory it takes: what it answers at /ready.

The question goes to the pod itself, as the kubelet's does, and never holds up a reconciliation: `Loading.of`
gives the last answers and sends for the next ones. Where no answer comes (a NetworkPolicy, a mesh that wants
its own certificates) the status says "loading" without a number, and the questions become rare. Of pods that
are ready one is asked, until it has said what it measured. Because a server that has not come up yet refuses
as well, a pod that becomes ready is asked anew.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from slipway.service.companions import SERVER
from slipway_operator.looks import Look, Looks
from slipway_operator.memory import Memory, count
from slipway_operator.memory import parsed as memory_of
from slipway_operator.shapes import Object, is_going, is_ready, name, uid

INTERVAL = 5.0
LONGEST_INTERVAL = 60.0
"""Seconds between two questions to a pod: the first while it answers, up to the second while it does not."""
PATIENCE = 2.0
STALLED_SECONDS = 120.0
"""Without a byte more. Well before --load-timeout, after which the server ends itself."""
LONG_STEP_SECONDS = 1800.0
"""The same where no bytes are counted, and one step may take long: the default of --load-timeout."""
AT_ONCE = 64
"""Questions under way; where nobody answers each takes PATIENCE."""
LONGEST_ANSWER = 1024
COUNTING = ("download", "load")
"""Phases that count bytes: elsewhere one step may take long."""
MOVING = (*COUNTING, "warmup")
"""Phases that lead to a server that is ready."""
PHASES = (*MOVING, "draining", "asleep", "stalled")


@dataclass(frozen=True, slots=True)
class Progress:
    """One answer of /ready: bytes, or steps of a warm-up. `total` is 0 where it is not known yet."""

    phase: str
    done: int
    total: int
    still_since: datetime.datetime | None = None
    """Since when nothing has changed, once that is too long."""

    @property
    def counts(self) -> bool:
        """Whether the next byte is to come soon."""
        return self.phase in COUNTING and 0 <= self.done < self.total

    @property
    def moves(self) -> bool:
        """Whether it comes nearer to being ready."""
        return self.phase in MOVING and self.still_since is None


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of /ready."""

    progress: Progress | None
    """None: the server is ready."""
    memory: Memory | None
    """None: it does not know, or not yet."""


@dataclass(slots=True)
class Answer(Look):
    """What one pod answered."""

    said: Said | None = None
    said_at: datetime.datetime | None = None
    moved_at: datetime.datetime | None = None
    ready: bool = False
    """Whether the pod is: once that changes, the questions begin anew."""
    back_off: float = INTERVAL
    """Seconds to the next question if one brings nothing: no answer, or a ready server has not measured."""
    over: bool = False
    """It is ready, and has no more to say, or does not answer us."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def known(self, now: datetime.datetime) -> Said | None:
        """The last answer, with the moment since which it has been the same where that is too long ago. None
        where there is none, or the server loaded then and has said nothing since for long: nobody asked, or
        it does not answer any more."""
        if self.said is None or self.said_at is None or self.moved_at is None:
            return None
        last = self.said.progress
        if last is None or last.phase not in MOVING:
            return self.said
        if (now - self.said_at).total_seconds() >= STALLED_SECONDS:
            return None
        patience = STALLED_SECONDS if last.counts else LONG_STEP_SECONDS
        if (self.said_at - self.moved_at).total_seconds() < patience:
            return self.said
        return replace(self.said, progress=replace(last, still_since=self.moved_at))

    def awaited(self, now: datetime.datetime) -> bool:
        """Whether nothing is known, and an answer is on its way: a new operator knows nothing of any pod
        before it."""
        return self.known(now) is None and self.is_asked

    @property
    def is_asked(self) -> bool:
        """Whether a question is under way, or waits for its turn."""
        return self.task is not None and not self.task.done()

    def miss(self) -> None:
        self.again_at += self.back_off - self.interval  # `begin` counted on something to read by then
        self.back_off = min(self.back_off * 2, LONGEST_INTERVAL)
        self.over = self.ready and self.back_off == LONGEST_INTERVAL  # it serves: nobody waits for a number


class Loading:
    """Progress of the pods that load, by their uid. Belongs to one event loop."""

    def __init__(self) -> None:
        self.looks: Looks[Answer] = Looks()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._asked = 0
        """Questions under way, and those that wait for room."""

    def of(
        self, pods: Sequence[Object], now: datetime.datetime, measures: Object | None = None
    ) -> tuple[dict[str, Said], float | None]:
        """The last answers by pod name, and in how many seconds more may be known; None: nobody is asked.

        measures  the ready pod of which it is of interest what memory it takes
        """
        known: dict[str, Said] = {}
        waits: list[float] = []
        for pod in pods:
            address = ready_url(pod) if loads(pod) or pod is measures else None
            if address is None:
                self.looks.forget(pod)
                continue
            new = Answer(INTERVAL, ready=is_ready(pod))
            look = self.looks.at(pod, new)
            if look.ready != new.ready:
                look = self.looks[uid(pod)] = new
            if look.due and not look.over and not look.is_asked:
                look.begin()
                look.task = asyncio.create_task(self._ask(look, address))
                self._asked += 1
            if (said := look.known(now)) is not None:
                known[name(pod)] = said
            if look.due and look.is_asked:
                waits.append(INTERVAL + PATIENCE * self._asked / AT_ONCE)
            elif not look.over:
                waits.append(look.wait)
        return known, min(waits, default=None)

    def awaited(self, pods: Sequence[Object], now: datetime.datetime) -> frozenset[str]:
        """The names of the pods of which nothing is known, and whose answer is on its way."""
        looks = {name(pod): self.looks.get(uid(pod)) for pod in pods}
        return frozenset(pod for pod, look in looks.items() if look is not None and look.awaited(now))

    async def _ask(self, look: Answer, address: str) -> None:
        try:
            async with self._room:
                look.begin()
                said = await asked(address)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            look.miss()
            return
        finally:
            self._asked -= 1
        look.said_at = datetime.datetime.now(datetime.UTC)
        if look.said is None or said.progress != look.said.progress:
            look.moved_at = look.said_at
        look.said = said
        if said.progress is not None or not look.ready:
            look.back_off = INTERVAL
        elif said.memory is not None and not said.memory.measured:
            look.miss()  # it does so some seconds later, or its kernel does not say
        else:
            look.over = True


def memories(pods: Sequence[Object], said: Mapping[str, Said]) -> dict[str, Memory]:
    """What these pods say of memory, by their names."""
    answers = {name(pod): said[name(pod)] for pod in pods if name(pod) in said}
    return {pod: answer.memory for pod, answer in answers.items() if answer.memory is not None}


async def asked(address: str) -> Said:
    """What a server says at this URL.

    Raises aiohttp.ClientError, OSError, TimeoutError, and ValueError for what is no answer of ours.
    """
    # Not verified: certificates are for the Service's name, and here the pod's address is asked. Nothing
    # secret is sent, and of the answer only values of known types are taken.
    tls = aiohttp.TCPConnector(ssl=False)
    patience = aiohttp.ClientTimeout(total=PATIENCE)
    async with (
        aiohttp.ClientSession(connector=tls, timeout=patience) as session,
        session.get(address, allow_redirects=False) as answer,
    ):
        body = await answer.content.read(LONGEST_ANSWER)
        if answer.status != 200:
            return parsed(body)
        try:
            return Said(None, memory_of(json.loads(body)))
        except ValueError:  # servers of others may say anything
            return Said(None, None)


def parsed(body: bytes) -> Said:
    """What is in the body {phase, done, total, memory} of a server that loads. Raises ValueError for anything
    else."""
    answer = json.loads(body)
    if not isinstance(answer, dict) or answer.get("phase") not in PHASES:
        raise ValueError("it names no phase of a server that loads")
    progress = Progress(answer["phase"], count(answer.get("done")), count(answer.get("total")))
    return Said(progress, memory_of(answer))


def loads(pod: Object) -> bool:
    """Whether its server runs and does not admit requests yet."""
    if is_ready(pod) or is_going(pod):
        return False
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(one["name"] == SERVER and "running" in (one.get("state") or {}) for one in statuses)


def ready_url(pod: Object) -> str | None:
    """What the kubelet's readiness probe asks, of a pod of any version of ours; None where there is none."""
    host = (pod.get("status") or {}).get("podIP")
    containers = [one for one in pod["spec"].get("containers") or () if one["name"] == SERVER]
    probe = next(((one.get("readinessProbe") or {}).get("httpGet") for one in containers), None)
    if not host or not probe:
        return None
    ports = {port.get("name"): port["containerPort"] for port in containers[0].get("ports") or ()}
    port = ports.get(probe["port"], probe["port"])
    host = f"[{host}]" if ":" in host else host
    return f"{str(probe.get('scheme') or 'HTTP').lower()}://{host}:{port}{probe.get('path') or '/'}"
