"""Why a resource does not serve, found in its pods, their events and its ReplicaSets."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from slipway.service.companions import FETCH, SERVER
from slipway_operator import reasons, wordings
from slipway_operator.container_findings import container_findings
from slipway_operator.progress import Progress
from slipway_operator.reasons import Finding
from slipway_operator.shapes import (
    Object,
    Objects,
    condition,
    current_replica_set,
    first_line,
    is_going,
    is_over,
    is_ready,
    messages,
    name,
    owned_by,
    shortened,
    sidecars,
)
from slipway_operator.unschedulable import lacks_room, unclaimed, unschedulable
from slipway_operator.volume_types import volume_advice
from slipway_operator.wordings import FORBIDDEN, Source, meanings

_LACKING = {
    wordings.ACCOUNT_ABSENT: ("ServiceAccount", "spec.runtime.serviceAccountName"),
    wordings.PRIORITY_ABSENT: ("PriorityClass", "spec.scheduling.priorityClassName"),
    wordings.RUNTIME_ABSENT: ("RuntimeClass", "spec.scheduling.runtimeClassName"),
}
"""The kind of what is not there, and the field that names it."""
_REPLACED_WITHIN = datetime.timedelta(seconds=60)
_FETCH_HAS_BEGUN = datetime.timedelta(seconds=90)
"""After which a fetch that runs has met what refused the one before: it asks for a minute. Each request ends
within three, so that a fetch that runs moves."""
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def pods_findings(
    pods: Objects,
    events: Objects,
    replica_sets: Objects,
    deployment: Object | None,
    nodes: Objects = (),
    progress: Mapping[str, Progress] | None = None,
    *,
    now: datetime.datetime,
) -> list[Finding]:
    """What stands between the pods and serving, in no order; empty where nothing does.

    Only the current template counts: pods of older ReplicaSets are on their way out, and matter where they
    hold the room that a new pod needs. `nodes` gives numbers to a shortage, and `progress` (by pod name)
    to loading; both may be empty.
    """
    current = current_replica_set(replica_sets, deployment)
    mine = current_pods(pods, current)
    serving = any(is_ready(pod) and pod not in mine for pod in pods)
    found: list[Finding] = []
    for pod in mine:
        if is_ready(pod):
            continue
        if broken := container_findings(pod, events, moving(pod, progress or {}, now)):
            found += broken
        elif nowhere := unschedulable(pod, nodes, events) or unclaimed(pod, events):
            found += _spare(nowhere) if serving and lacks_room(pod) else [nowhere]
        else:
            step = _step(pod, progress or {})
            ended = _over([other for other in pods if _replaces(pod, other)], events, current)
            found.append(
                ended.reason.found(f"{ended.message} In its place: {step.message}") if ended else step
            )
    refused = _not_created(current, events, deployment) if current is not None else None
    ended = None if mine else _over(pods, events, current)
    found += [one for one in (refused, ended) if one is not None]
    wanted = _wanted(current)
    if not found and wanted > len(mine):
        found.append(reasons.SCHEDULING.found(f"{len(mine)} of {wanted} pods are made."))
    return found


def moving(pod: Object, progress: Mapping[str, Progress], now: datetime.datetime) -> frozenset[str]:
    """Its containers that bring the model nearer: the server as it says; the fetch says nothing, and runs."""
    known = progress.get(name(pod))
    found = {SERVER} if known is not None and known.moves else set()
    for status in (pod.get("status") or {}).get("initContainerStatuses") or ():
        since = ((status.get("state") or {}).get("running") or {}).get("startedAt")
        if status["name"] == FETCH and since:
            again = "terminated" in (status.get("lastState") or {})
            if not again or now - datetime.datetime.fromisoformat(since) > _FETCH_HAS_BEGUN:
                found.add(FETCH)
    return frozenset(found)


def current_pods(pods: Objects, current: Object | None) -> list[Object]:
    """The pods of a ReplicaSet (all, where there is none) that live, oldest first."""
    mine = [pod for pod in pods if current is None or owned_by(pod, current)]
    living = [pod for pod in mine if not is_going(pod) and not is_over(pod)]
    return sorted(living, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), name(pod)))


def _wanted(current: Object | None) -> int:
    return int((current or {}).get("spec", {}).get("replicas") or 0)


def _spare(found: Finding) -> list[Finding]:
    """That old pods have the room, and that the new one has no node for it."""
    short, _, said = found.message.partition(". ")
    text = (
        f"a new pod {short}; the old ones serve on. Set spec.rollout.maxSurge to 0 and "
        f"spec.rollout.maxUnavailable to 1, or add what is missing. {said}"
    )
    return [reasons.ROLLOUT_NEEDS_SPARE_DEVICE.found(text), found.reason.found(text)]


def _not_created(current: Object, events: Objects, deployment: Object | None) -> Finding | None:
    """Why the ReplicaSet cannot make its pods."""
    status = current.get("status") or {}
    if int(status.get("replicas") or 0) >= _wanted(current):
        return None
    failure = condition(current, "ReplicaFailure") or condition(deployment, "ReplicaFailure")
    said = [str(failure.get("message") or "")] if failure and failure.get("status") == "True" else []
    message = next(iter(said or messages(events, current, "FailedCreate")), None)
    if message is None:
        return None
    words = shortened(FORBIDDEN.sub("", " ".join(message.split())), 600)
    if advice := volume_advice(message):
        return reasons.ADMISSION_REFUSED.found(f"{advice}. The API server says: {words}")
    row, match = next(meanings(Source.ADMISSION, words), (None, None))
    if row is None or match is None:
        return reasons.PODS_NOT_CREATED.found(f"{words.rstrip('.')}.")
    if row is wordings.QUOTA:
        return row.reason.found(
            f"wants {match['asked']}, quota {match['quota']} has {match['limit']}, of which "
            f"{match['used']} is used. Lower spec.resources or spec.replicas, or have the quota raised.",
        )
    if row is wordings.LIMIT_RANGE:
        return row.reason.found(f"{words.rstrip('.')}. Change spec.resources.")
    if row in _LACKING:
        kind, field = _LACKING[row]
        return row.reason.found(f"{kind} {match['name']} does not exist. Create it, or correct {field}.")
    return row.reason.found(refusal(words, "the pod") or f"{words.rstrip('.')}.")


def refusal(words: str, what: str) -> str | None:
    """Who refuses `what`, and why, without the ceremony; None where it is no policy and no webhook."""
    words = " ".join(words.split())
    for kind, row in (("policy", wordings.POLICY), ("webhook", wordings.WEBHOOK)):
        if match := row.search(words):
            why = match["why"] or "it does not say why"
            return f"the {kind} {match['name']} refuses {what}: {why.rstrip('.')}."
    if match := wordings.WEBHOOK_AWAY.search(words):
        why = f": {match['why'].rstrip('.')}" if match["why"] else ""
        return f"the webhook {match['name']}, which decides on {what}, cannot be asked{why}."
    return None


def _over(pods: Objects, events: Objects, current: Object | None) -> Finding | None:
    """Why a node ended or refused the pods of the ReplicaSet."""
    mine = [pod for pod in pods if current is None or owned_by(pod, current)]
    for pod in sorted(mine, key=_last_seen, reverse=True):
        if is_over(pod) and not is_going(pod):
            node = pod["spec"].get("nodeName") or "the node"
            return reasons.NODE_REFUSED.found(f"{node} ended the pod{_ending(pod, events)}")
    return None


def _ending(pod: Object, events: Objects) -> str:
    """How the node ended it, and what to do. A server that stops in time leaves no word in the status."""
    status = pod.get("status") or {}
    said = str(status.get("message") or "") or next(filter(None, messages(events, pod, "Evicted")), "")
    reason = status.get("reason") or ("Evicted" if said else "")
    if not reason:
        return ", which stopped in order. `kubectl get events` may say why."
    words = first_line(said).rstrip(".") if said else "no reason given"
    row = next((row for row, _ in meanings(Source.NODE, words)), None)
    return f" as {reason}: {words}.{f' {row.advice}' if row else ''}"


def _replaces(pod: Object, other: Object) -> bool:
    """Whether the pod was made because the other had ended, as after an eviction."""
    made = datetime.datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    return is_over(other) and abs(made - _last_seen(other)) < _REPLACED_WITHIN


def _last_seen(pod: Object) -> datetime.datetime:
    """When something of its status last changed."""
    status = pod.get("status") or {}
    times = [one.get("lastTransitionTime") for one in status.get("conditions") or ()]
    times += [status.get("startTime"), pod["metadata"]["creationTimestamp"]]
    return max(datetime.datetime.fromisoformat(time) for time in times if time)


def _step(pod: Object, progress: Mapping[str, Progress]) -> Finding:
    """How far a pod has come that nothing is wrong with."""
    status = pod.get("status") or {}
    if not pod["spec"].get("nodeName"):
        return reasons.SCHEDULING.found("waits for the scheduler.")
    beside = sidecars(pod)
    for container in status.get("initContainerStatuses") or ():
        if "running" in (container.get("state") or {}) and container["name"] not in beside:
            what = "the model is fetched" if container["name"] == FETCH else f"{container['name']} runs"
            return reasons.FETCHING.found(f"{what} before the server starts.")
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    if not any("running" in state for state in states):
        return reasons.STARTING.found(f"the container starts on {pod['spec']['nodeName']}.")
    return _loading(progress.get(name(pod)))


def _loading(progress: Progress | None) -> Finding:
    if progress is None:
        return reasons.LOADING.found("the server loads the model.")
    match progress.phase:
        case "draining":
            return reasons.STARTING.found("the server drains its requests and ends.")
        case "asleep":
            return reasons.ASLEEP.found("the server sleeps until POST /wake_up wakes it.")
        case "stalled":
            return reasons.ENGINE_STALLED.found(
                "the server was idle, and a step that it tried does not come back: the device may hang. "
                "Where it stays so the server ends and starts again."
            )
    phase = "weights" if progress.phase == "load" else progress.phase
    share = f" {int(100 * progress.done / progress.total)} %{_of(progress)}" if progress.total else ""
    so_far = f"{phase}{share}"
    if progress.still_since is None:
        return reasons.LOADING.found(f"{so_far}.")
    if not progress.counts:
        return reasons.LOADING.found(f"{so_far}, unchanged since {progress.still_since:%H:%M} UTC.")
    return reasons.LOAD_STALLED.found(
        f"no byte since {progress.still_since:%H:%M} UTC, {so_far}. Check the network and the volume; after "
        "spec.engine.loadTimeout seconds the server starts again by itself.",
    )


def _of(progress: Progress) -> str:
    if progress.phase == "warmup":
        return f" of {progress.total} steps"
    for size, unit in _UNITS:
        if progress.total >= size:
            return f" of {progress.total / size:.1f} {unit}"
    return ""
