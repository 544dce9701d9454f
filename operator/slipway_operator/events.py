"""Events: those we post when a condition changes, and those we read of a pod that waits."""

from __future__ import annotations

import datetime
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from slipway_operator import reasons
from slipway_operator.cluster import EVENT, POD_EVENT, Cluster, Object, Refused, Unreachable
from slipway_operator.conditions import AVAILABLE, READY, RECONCILING, STALLED
from slipway_operator.informer import place_of
from slipway_operator.looks import Look, Looks
from slipway_operator.shapes import condition, is_going, is_true, shortened, uid
from slipway_operator.writer import NotActive, Writer

BORROWED = frozenset({READY, RECONCILING, STALLED})
"""Conditions that repeat the reason of another."""
NOTE_LENGTH = 1024
BURST = 25
REFILL_SECONDS = 300.0
"""Requests for the Events of one service: 25 at once, and one more each five minutes, as client-go has it."""
RESERVE = 10
"""Of these only for what has not been said yet: what repeats must not hide it."""
SERIES_SECONDS = 600.0
"""What comes again within this time is the same Event once more."""
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
        note = item.get("message") or reason
        if known is reasons.NO_READY_POD and old.get(AVAILABLE, ("",))[0] == "True":
            cause = condition({"status": after}, READY)
            note, calm = f"{note} {cause['reason']}: {cause['message']}" if cause else note, False
        elif item["status"] != "True" and calm:
            continue  # not yet is no news
        found.setdefault(reason, Transition("Normal" if calm else "Warning", reason, note[:NOTE_LENGTH]))
    return [*found.values()]


@dataclass(slots=True)
class Series:
    """An Event, and how often it has come."""

    namespace: str
    name: str
    reason: str
    count: int
    written: int
    """What the API server knows of the count."""
    last: float
    """By the clock."""
    last_time: str

    @property
    def unwritten(self) -> int:
        return self.count - self.written

    def is_over(self, now: float) -> bool:
        return now - self.last >= SERIES_SECONDS


@dataclass(slots=True)
class Account:
    """What was posted of one service, and what may be."""

    tokens: float
    as_of: float
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    """By type and reason."""
    withheld: Counter[str] = field(default_factory=Counter)
    """By reason, since the last Event."""

    def refill(self, now: float) -> None:
        self.tokens = min(BURST, self.tokens + (now - self.as_of) / REFILL_SECONDS)
        self.as_of = now

    def spend(self, now: float, reserve: int = 0) -> bool:
        """Whether there is a token for a request beside the reserve; it is gone then."""
        self.refill(now)
        if self.tokens < 1 + reserve:
            return False
        self.tokens -= 1
        return True


class Recorder:
    """Posts Events, of a service only so many: what repeats raises the count of the Event that is there.

    One that cannot be posted is logged and lost: it repeats what the status says. Belongs to one event loop.
    """

    def __init__(self, writer: Writer, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._instance = instance
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    async def post(self, resource: Object, transition: Transition) -> None:
        now = self._clock()
        account = self._accounts.setdefault(uid(resource), Account(BURST, now))
        kind = transition.type, transition.reason
        if (known := account.series.get(kind)) and known.is_over(now):
            await self._write_count(account.series.pop(kind))
        if series := account.series.get(kind):
            series.count += 1
            series.last, series.last_time = now, _now()
            if account.spend(now, RESERVE):
                behind = max(account.series, key=lambda one: account.series[one].unwritten)
                if not await self._write_count(account.series[behind]):
                    account.series.pop(behind, None)  # the next one is a new Event
        elif account.spend(now):
            await self._create(resource, transition, account)
        else:
            account.withheld[transition.reason] += 1
            place = "/".join(place_of(resource))
            log.warning(
                "%s: event withheld, after too many: %s: %s", place, transition.reason, transition.note
            )

    async def tidy(self) -> None:
        """Write the counts of series that are over, and forget services that have none."""
        now = self._clock()
        for service, account in [*self._accounts.items()]:
            for kind in [kind for kind, series in account.series.items() if series.is_over(now)]:
                if series := account.series.pop(kind, None):
                    await self._write_count(series)
            account.refill(now)
            if not account.series and account.tokens == BURST:
                del self._accounts[service]

    async def write_counts(self) -> None:
        """Write the counts of all series; what can be written no more is logged."""
        for account in [*self._accounts.values()]:
            for series in [*account.series.values()]:
                await self._write_count(series)

    async def _write_count(self, series: Series) -> bool:
        """Bring the Event's count up to date; whether the Event is still there."""
        if not series.unwritten:
            return True
        count = series.count
        body = {"series": {"count": count, "lastObservedTime": series.last_time}}
        try:
            await self._writer.merge(EVENT, series.namespace, series.name, body)
        except (NotActive, Refused, Unreachable) as problem:
            place = f"{series.namespace}/{series.name}"
            log.info("%s: event %s came %d times: %s", place, series.reason, count, problem)
            return not (isinstance(problem, Refused) and problem.status == 404)
        series.written = count
        return True

    async def _create(self, resource: Object, transition: Transition, account: Account) -> None:
        metadata = resource["metadata"]
        now = _now()
        withheld, account.withheld = account.withheld, Counter()
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
            "note": _with_withheld(transition.note, withheld),
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
            account.withheld += withheld
            log.info("%s/%s: no event: %s", metadata["namespace"], metadata["name"], problem)
            return
        account.series[transition.type, transition.reason] = Series(
            namespace=metadata["namespace"],
            name=event["metadata"]["name"],
            reason=transition.reason,
            count=1,
            written=1,
            last=self._clock(),
            last_time=now,
        )


def _with_withheld(note: str, withheld: Counter[str]) -> str:
    """The note, and what was not posted before it."""
    if not withheld:
        return note
    counted = ", ".join(f"{reason} {count}" for reason, count in withheld.most_common())
    said = shortened(f" Too many events: {withheld.total()} were withheld before this one ({counted}).", 300)
    return shortened(note, NOTE_LENGTH - len(said)) + said


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
