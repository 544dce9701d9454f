"""Reads what the API server prints: conditions, owners, events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]
Objects = Sequence[Object]

REVISION = "deployment.kubernetes.io/revision"


def uid(thing: Object) -> str:
    return str(thing["metadata"].get("uid") or "")


def name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def condition(thing: Object | None, kind: str) -> Object | None:
    """The condition of that type in the status."""
    found = ((thing or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == kind), None)


def is_true(thing: Object | None, kind: str) -> bool:
    return (condition(thing, kind) or {}).get("status") == "True"


def is_false(thing: Object | None, kind: str) -> bool:
    return (condition(thing, kind) or {}).get("status") == "False"


def controller(thing: Object) -> Object | None:
    """The reference to the owner that controls it."""
    owners: Objects = thing["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def owned_by(thing: Object, *owners: Object) -> bool:
    """Whether one of them controls it."""
    reference = controller(thing)
    return reference is not None and any(reference["uid"] == uid(owner) for owner in owners)


def is_ready(pod: Object) -> bool:
    """Whether a Service would send it requests."""
    return is_true(pod, "Ready") and not is_going(pod)


def is_going(pod: Object) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def has_ended(pod: Object) -> bool:
    """Whether one of its containers has ended, and runs again or is to."""
    status = pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any("terminated" in (one.get("lastState") or {}) for one in statuses)


def is_over(pod: Object) -> bool:
    """Whether all its containers have ended for good, as after an eviction."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def users(pods: Iterable[Object], claim: str) -> frozenset[str]:
    """The uids of the pods that have a node and mount this claim: Kubernetes keeps it for them."""
    return frozenset(
        uid(pod) for pod in pods if pod["spec"].get("nodeName") and not is_over(pod) and claim in claims(pod)
    )


def claims(pod: Object) -> set[str]:
    """The names of the PersistentVolumeClaims that it mounts."""
    volumes = pod["spec"].get("volumes") or ()
    named = ((one.get("persistentVolumeClaim") or {}).get("claimName") for one in volumes)
    return {str(claim) for claim in named if claim}


def sidecars(pod: Object) -> frozenset[str]:
    """The init containers that do not end before the others start, but run beside them."""
    initial = pod["spec"].get("initContainers") or ()
    return frozenset(one["name"] for one in initial if is_sidecar(one))


def is_sidecar(initial: Object) -> bool:
    """Whether an init container is one of these."""
    return bool(initial.get("restartPolicy") == "Always")


def current_replica_set(replica_sets: Objects, deployment: Object | None) -> Object | None:
    """The one of the newest revision of the Deployment's template."""
    own = [one for one in replica_sets if deployment is None or owned_by(one, deployment)]
    return max(own, key=_revision, default=None)


def _revision(replica_set: Object) -> int:
    annotations = replica_set["metadata"].get("annotations") or {}
    return int(annotations.get(REVISION) or 0)


def messages(events: Iterable[Object], thing: Object, *reasons: str) -> list[str]:
    """What events of these reasons say of an object, newest first."""
    return [spoken(event) for event in about(events, thing, *reasons)]


def about(events: Iterable[Object], thing: Object, *reasons: str) -> list[Object]:
    """The events of these reasons that regard an object, newest first."""
    found = [event for event in events if event.get("reason") in reasons and _regards(event, thing)]
    return sorted(found, key=lambda event: (_seen(event), spoken(event)), reverse=True)


def spoken(event: Object) -> str:
    return str(event.get("message") or event.get("note") or "")


def _regards(event: Object, thing: Object) -> bool:
    regarded = event.get("involvedObject") or event.get("regarding") or {}
    if regarded.get("uid") and uid(thing):
        return bool(regarded["uid"] == uid(thing))
    return bool(regarded.get("name") == name(thing))


def _seen(event: Object) -> str:
    """RFC 3339 in UTC, which sorts as text; microseconds only break ties."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp") or event.get("deprecatedLastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return max((str(time).rstrip("Z") for time in times if time), default="")


def first_line(text: str, limit: int = 300) -> str:
    """Its first line that says something, cut at `limit` characters."""
    line = next((" ".join(one.split()) for one in text.splitlines() if one.strip()), "")
    return shortened(line, limit)


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
