"""How far a server that loads has come: what it answers at /ready, asked for until it is ready.

The question goes to the pod itself, as the kubelet's does, and never holds up a reconciliation: `Loading.of`
gives the last answers and sends for the next ones. Where no answer comes (a NetworkPolicy, a mesh that wants
its own certificates) the status says "loading" without a number, and the questions become rare. A pod that is
ready is not asked.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from slipway_operator.looks import Look, Looks
from slipway_operator.shapes import Object, is_going, is_ready

INTERVAL = 5.0
LONGEST_INTERVAL = 60.0
"""Seconds between two questions to a pod: the first while it answers, up to the second while it does not."""
PATIENCE = 2.0
STALLED_SECONDS = 120.0
"""Without a byte more. Well before --load-timeout, after which the server ends itself."""
AT_ONCE = 16
"""Questions under way."""
LONGEST_ANSWER = 1024
MOVING = ("download", "load")
"""Phases that count bytes: elsewhere one step may take long."""
PHASES = (*MOVING, "warmup", "draining", "asleep", "stalled")


@dataclass(frozen=True, slots=True)
class Progress:
    """One answer of /ready: bytes, or steps of a warm-up. `total` is 0 where it is not known yet."""

    phase: str
    done: int
    total: int
    still_since: datetime.datetime | None = None
    """Since when not a byte has come, once that is too long."""


@dataclass(slots=True)
class Answer(Look):
    """What one pod answered."""

    progress: Progress | None = None
    moved_at: datetime.datetime | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Loading:
    """Progress of the pods that load, by their uid. Belongs to one event loop."""

    def __init__(self) -> None:
        self.looks: Looks[Answer] = Looks()
        self._room = asyncio.Semaphore(AT_ONCE)

    def of(self, pods: Sequence[Object], now: datetime.datetime) -> tuple[dict[str, Progress], float | None]:
        """The last answers by pod name, and in how many seconds more may be known; None: no pod loads."""
        known: dict[str, Progress] = {}
        waits: list[float] = []
        for pod in pods:
            address = ready_url(pod) if loads(pod) else None
            if address is None:
                self.looks.forget(pod)
                continue
            look = self.looks.at(pod, lambda: Answer(INTERVAL))
            if look.due:
                look.begin()
                look.task = asyncio.create_task(self._ask(look, address))
            if look.progress is not None:
                known[pod["metadata"]["name"]] = _stalled(look.progress, look.moved_at, now)
            waits.append(look.wait)
        return known, min(waits, default=None)

    async def _ask(self, look: Answer, address: str) -> None:
        async with self._room:
            try:
                answer = await asked(address)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                look.interval = min(look.interval * 2, LONGEST_INTERVAL)
                return
        look.interval = INTERVAL
        if answer != look.progress:
            look.moved_at = datetime.datetime.now(datetime.UTC)
        look.progress = answer


async def asked(address: str) -> Progress | None:
    """What a server says at this URL; None once it is ready.

    Raises aiohttp.ClientError, OSError, TimeoutError, and ValueError for what is no answer of ours.
    """
    # Not verified: certificates are for the Service's name, and here the pod's address is asked. Nothing
    # secret is sent, and of the answer only three values of known types are taken.
    tls = aiohttp.TCPConnector(ssl=False)
    patience = aiohttp.ClientTimeout(total=PATIENCE)
    async with (
        aiohttp.ClientSession(connector=tls, timeout=patience) as session,
        session.get(address, allow_redirects=False) as answer,
    ):
        return None if answer.status == 200 else parsed(await answer.content.read(LONGEST_ANSWER))


def parsed(body: bytes) -> Progress:
    """The progress in the body {phase, done, total}. Raises ValueError for anything else."""
    answer = json.loads(body)
    if not isinstance(answer, dict) or answer.get("phase") not in PHASES:
        raise ValueError("it names no phase of a server that loads")
    return Progress(answer["phase"], _count(answer.get("done")), _count(answer.get("total")))


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number of bytes or steps")
    return value


def loads(pod: Object) -> bool:
    """Whether its server runs and does not admit requests yet."""
    if is_ready(pod) or is_going(pod):
        return False
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(one["name"] == "server" and "running" in (one.get("state") or {}) for one in statuses)


def ready_url(pod: Object) -> str | None:
    """What the kubelet's readiness probe asks, of a pod of any version of ours; None where there is none."""
    host = (pod.get("status") or {}).get("podIP")
    containers = [one for one in pod["spec"].get("containers") or () if one["name"] == "server"]
    probe = next(((one.get("readinessProbe") or {}).get("httpGet") for one in containers), None)
    if not host or not probe:
        return None
    ports = {port.get("name"): port["containerPort"] for port in containers[0].get("ports") or ()}
    port = ports.get(probe["port"], probe["port"])
    host = f"[{host}]" if ":" in host else host
    return f"{str(probe.get('scheme') or 'HTTP').lower()}://{host}:{port}{probe.get('path') or '/'}"


def _stalled(last: Progress, moved_at: datetime.datetime | None, now: datetime.datetime) -> Progress:
    """The answer with the moment since which it has been the same, where that is too long ago."""
    moves = last.phase not in MOVING or not 0 <= last.done < last.total
    if moves or moved_at is None or (now - moved_at).total_seconds() < STALLED_SECONDS:
        return last
    return Progress(last.phase, last.done, last.total, moved_at)
