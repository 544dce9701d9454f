"""Why a resource does not serve, found in its pods, their events and its ReplicaSets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slipway_operator.containers import FETCH, container_finding
from slipway_operator.quantities import amount
from slipway_operator.reasons import Finding, finding
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
)
from slipway_operator.unschedulable import missing_resource, unschedulable

__all__ = ["Finding", "current_pods", "finding", "pods_summary"]

_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>\S+), requested: (?P<asked>.+?), "
    r"used: (?P<used>.+?), limited: (?P<limit>\S+)"
)
_LIMIT_RANGE = re.compile(r"(?:maximum|minimum) \S+ usage per|must specify (?:limits|requests)|failed quota")
_ADMISSION = re.compile(
    r"violates PodSecurity|admission webhook|ValidatingAdmissionPolicy|denied|security context constraint"
)
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def pods_summary(
    pods: Objects,
    events: Objects,
    replica_sets: Objects,
    deployment: Object | None,
    nodes: Objects = (),
    progress: Mapping[str, Object] | None = None,
) -> Finding | None:
    """What stands between the pods and serving, the most telling cause first; None where nothing does.

    Only the current template counts: pods of older ReplicaSets are on their way out, and matter where they
    hold the room that a new pod needs. `nodes` gives numbers to a shortage, and `progress` (pod name → body
    of /ready) to loading; both may be empty.
    """
    current = current_replica_set(replica_sets, deployment)
    mine = current_pods(pods, current)
    for pod in mine:
        if not is_ready(pod) and (found := container_finding(pod, events)):
            return found
    if current is not None and (refused := _not_created(current, events, deployment)):
        return refused
    serving = [pod for pod in pods if is_ready(pod) and pod not in mine]
    for pod in mine:
        if found := unschedulable(pod, nodes):
            return _spare(found) if serving and missing_resource(pod) else found
    if not mine and (found := _over(pods, current)):
        return found
    waiting = [pod for pod in mine if not is_ready(pod)]
    if found := next((step for pod in waiting if (step := _step(pod, progress or {}))), None):
        return found
    wanted = _wanted(current)
    if wanted > len(mine):
        return finding("Scheduling", f"{len(mine)} of {wanted} pods are made.")
    return None


def current_pods(pods: Objects, current: Object | None) -> list[Object]:
    """The pods of a ReplicaSet (all, where there is none) that live, oldest first."""
    mine = [pod for pod in pods if current is None or owned_by(pod, current)]
    living = [pod for pod in mine if not is_going(pod) and not is_over(pod)]
    return sorted(living, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), name(pod)))


def _wanted(current: Object | None) -> int:
    return int((current or {}).get("spec", {}).get("replicas") or 0)


def _spare(found: Finding) -> Finding:
    short, _, said = found.message.partition(". ")
    return finding(
        "RolloutNeedsSpareDevice",
        f"a new pod {short}; the old ones serve on. Set spec.rollout.maxSurge to 0 and "
        f"spec.rollout.maxUnavailable to 1, or add what is missing. {said}",
    )


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
    words = first_line(re.sub(r'^(?:Error creating: )?pods "[^"]*" is forbidden: ', "", message), 600)
    if match := _QUOTA.search(words):
        return finding(
            "QuotaExceeded",
            f"wants {match['asked']}, quota {match['quota']} has {match['limit']}, of which "
            f"{match['used']} is used. Lower spec.resources or spec.replicas, or have the quota raised.",
        )
    if _LIMIT_RANGE.search(words):
        return finding("QuotaExceeded", f"{words.rstrip('.')}. Change spec.resources.")
    if _ADMISSION.search(words):
        return finding("AdmissionRefused", f"{words.rstrip('.')}.")
    return finding("PodsNotCreated", f"{words.rstrip('.')}.")


def _over(pods: Objects, current: Object | None) -> Finding | None:
    """Why a node ended or refused the pods of the ReplicaSet."""
    mine = [pod for pod in pods if current is None or owned_by(pod, current)]
    for pod in sorted(mine, key=name):
        status = pod.get("status") or {}
        if status.get("phase") == "Failed" and status.get("reason") and not is_going(pod):
            node = pod["spec"].get("nodeName") or "the node"
            words = first_line(str(status.get("message") or ""))
            return finding("NodeRefused", f"{node} ended {name(pod)} as {status['reason']}: {words}")
    return None


def _step(pod: Object, progress: Mapping[str, Object]) -> Finding | None:
    """How far a pod has come that nothing is wrong with."""
    status = pod.get("status") or {}
    if not pod["spec"].get("nodeName"):
        return finding("Scheduling", "waits for the scheduler.")
    for container in status.get("initContainerStatuses") or ():
        if "running" in (container.get("state") or {}):
            what = "the model is fetched" if container["name"] == FETCH else f"{container['name']} runs"
            return finding("Fetching", f"{what} before the server starts.")
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    if not any("running" in state for state in states):
        return finding("Starting", f"the container starts on {pod['spec']['nodeName']}.")
    return _loading(progress.get(name(pod)) or {})


def _loading(body: Object) -> Finding:
    phase = {"load": "weights"}.get(str(body.get("phase")), str(body.get("phase")))
    done, total = amount(body.get("done")) or 0, amount(body.get("total")) or 0
    if not body.get("phase"):
        return finding("Loading", "the server loads the model.")
    if phase == "draining":
        return finding("Starting", "the server drains its requests and ends.")
    if not total:
        return finding("Loading", f"{phase}.")
    return finding("Loading", f"{phase} {int(100 * done / total)} %{_of(int(total), phase)}.")


def _of(total: int, phase: str) -> str:
    if phase == "warmup":
        return f" of {total} steps"
    for size, unit in _UNITS:
        if total >= size:
            return f" of {total / size:.1f} {unit}"
    return ""
