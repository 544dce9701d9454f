"""Asks for the finding of a current ReplicaSet's pods."""

from __future__ import annotations

from as_printed import Object, deployment, event, kept, pod, replica_set

from slipway_operator.explain import pods_summary
from slipway_operator.reasons import Finding

SETS = [replica_set(1, replicas=0), replica_set(2)]


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
