"""Events: those we post when a condition changes, and those we read of a pod that waits."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from slipway_operator import reasons
from slipway_operator.cluster import EVENT, POD_EVENT, Cluster, Object, Refused, Unreachable
from slipway_operator.conditions import READY, RECONCILING, STALLED
from slipway_operator.looks import Look, Looks
from slipway_operator.shapes import is_going, is_true, uid
from slipway_operator.writer import NotActive, Writer

BORROWED = frozenset({READY, RECONCILING, STALLED})
"""Conditions that repeat the reason of another."""
FIRST_LOOK = 20.0
LONGEST_INTERVAL = 600.0
PODS_ASKED = 2
"""Pods of one template wait for the same cause."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transition:
    """A condition's new reason, worth an Event: its fields are the Event's."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def transitions(before: Object, after: Object) -> list[Transition]:
    """What changed from one .status to the next: each new status or reason of a condition, once."""
    old = {item["type"]: (item["status"], item.get("reason")) for item in before.get("conditions") or ()}
    found: dict[str, Transition] = {}
    for item in after.get("conditions") or ():
        reason = item.get("reason") or item["type"]
        if item["type"] in BORROWED or old.get(item["type"]) == (item["status"], item.get("reason")):
            continue
        known = reasons.BY_NAME.get(reason)
        calm = known is not None and known.calm
        if item["status"] != "True" and calm:
            continue  # not yet is no news
        note = (item.get("message") or reason)[:1024]
        found.setdefault(reason, Transition("Normal" if calm else "Warning", reason, note))
    return [*found.values()]


class Recorder:
    """Posts Events. One that cannot be posted is logged and lost: it repeats what the status says."""

    def __init__(self, writer: Writer, instance: str) -> None:
        self._writer = writer
        self._instance = instance

    async def post(self, resource: Object, transition: Transition) -> None:
        metadata = resource["metadata"]
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        event = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {
                # The time, as in the names of Kubernetes' own: `kubectl describe` lists by name what has
                # no lastTimestamp.
                "name": f"{metadata['name']}.{time.time_ns():x}",
                "namespace": metadata["namespace"],
            },
            "eventTime": now,
            **asdict(transition),
            "action": "Reconcile",
            "reportingController": "slipway.dev/operator",
            "reportingInstance": self._instance[:128],
            "regarding": {
                "apiVersion": resource["apiVersion"],
                "kind": resource["kind"],
                **{name: metadata[name] for name in ("name", "namespace", "uid")},
            },
        }
        try:
            await self._writer.create(EVENT, event)
        except (NotActive, Refused, Unreachable) as problem:
            log.info("%s/%s: no event: %s", metadata["namespace"], metadata["name"], problem)


@dataclass(slots=True)
class Seen(Look):
    """The events of one pod."""

    events: Sequence[Object] = ()


class PodEvents:
    """Events of pods that have waited for 20 s, asked for at doubling intervals."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.looks: Looks[Seen] = Looks()

    async def of(self, pods: Sequence[Object], now: datetime.datetime) -> tuple[list[Object], float | None]:
        """The events, and in how many seconds more may be known; None where no pod waits. Raises as `ask`."""
        for pod in pods:
            if not waits(pod):
                self.looks.forget(pod)
        waiting = sorted(
            filter(waits, pods), key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True
        )
        events: list[Object] = []
        waits_left: list[float] = []
        for pod in waiting[:PODS_ASKED]:
            made = datetime.datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            age = (now - made).total_seconds()
            if age < FIRST_LOOK:
                waits_left.append(FIRST_LOOK - age)
                continue
            look = await self._look(pod)
            events += look.events
            waits_left.append(look.wait)
        return events, min(waits_left, default=None)

    async def _look(self, pod: Object) -> Seen:
        look = self.looks.at(pod, Seen(FIRST_LOOK))
        if look.due:
            query = {"fieldSelector": f"involvedObject.uid={uid(pod)}", "limit": 50}
            page = await self._cluster.ask("GET", POD_EVENT.path(pod["metadata"]["namespace"]), query)
            look.events = page["items"]
            look.begin()
            look.interval = min(look.interval * 2, LONGEST_INTERVAL)
        return look


def waits(pod: Object) -> bool:
    """Whether the pod is not ready, and is to become so. What an autoscaler does for one that no node takes,
    its events alone say."""
    return not is_going(pod) and not is_true(pod, "Ready")
