"""Asks for the finding of a current ReplicaSet's pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from as_printed import NOW, Object, deployment, event, kept, pod, replica_set

from slipway_operator import reasons
from slipway_operator.pod_findings import pods_findings
from slipway_operator.progress import Progress
from slipway_operator.reasons import Finding

SETS = [replica_set(1, replicas=0), replica_set(2)]


def pods_summary(
    pods: list[Object],
    events: list[Object],
    replica_sets: list[Object],
    deployment: Object | None,
    nodes: Sequence[Object] = (),
    progress: Mapping[str, Progress] | None = None,
) -> Finding | None:
    """What counts most of that which stands between the pods and serving."""
    return reasons.first(pods_findings(pods, events, replica_sets, deployment, nodes, progress, now=NOW))


def explained(
    *pods: Object, events: list[Object] | None = None, nodes: list[Object] | None = None
) -> Finding:
    found = pods_summary([*map(kept, pods)], events or [], SETS, deployment(), nodes or [])
    assert found is not None
    assert found.condition == found.reason.condition
    return found


def first(found: Finding) -> str:
    return found.message.split(". ")[0]


def of_container(status: Object, *events: tuple[str, str], **more: object) -> Finding:
    broken = pod(containers=[status], **more)  # type: ignore[arg-type]
    return explained(broken, events=[event(broken, reason, text) for reason, text in events])
