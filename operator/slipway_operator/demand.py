"""What pods ask of nodes, and what nodes have: the scheduler's arithmetic, as far as we tell of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from slipway.service.quantity import stored
from slipway_operator.shapes import Object, Objects, is_sidecar

_REPELLING = ("NoSchedule", "NoExecute")


def request(pod_spec: Object, resource: str) -> tuple[Fraction, str]:
    """What a pod wants of it, as a number and as it is written."""
    containers = [*(pod_spec.get("containers") or ()), *filter(is_sidecar, _initial(pod_spec))]
    texts = list(_requests(containers, resource))
    total = sum((stored(text) or Fraction(0) for text in texts), Fraction(0))
    for text in _requests((one for one in _initial(pod_spec) if not is_sidecar(one)), resource):
        if (one := stored(text) or Fraction(0)) > total:
            total, texts = one, [text]
    return total, texts[0] if len(texts) == 1 else str(float(total)).removesuffix(".0") if texts else ""


def resources(pod_spec: Object) -> set[str]:
    """All that some container of the pod asks for."""
    containers = [*(pod_spec.get("containers") or ()), *_initial(pod_spec)]
    return {resource for container in containers for resource in _asked(container)}


def allocatable(node: Object, resource: str) -> tuple[Fraction, str]:
    """What pods may take of it on a node, as a number and as it is written."""
    text = str(((node.get("status") or {}).get("allocatable") or {}).get(resource) or "0")
    return stored(text) or Fraction(0), text


def selected(node: Object, pod_spec: Object) -> bool:
    """Whether the pod's nodeSelector admits the node."""
    return (pod_spec.get("nodeSelector") or {}).items() <= labels(node).items()


def labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def admitted(node: Object, pod_spec: Object) -> bool:
    """Whether selector and taints let the pod onto the node. Affinity is not looked at."""
    spec = node.get("spec") or {}
    tolerations = pod_spec.get("tolerations") or ()
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in _REPELLING]
    return (
        selected(node, pod_spec)
        and not spec.get("unschedulable")
        and all(any(_tolerates(one, taint) for one in tolerations) for taint in taints)
    )


def lacking(pod_spec: Object, node: Object, pods: Iterable[Object]) -> list[str]:
    """Of which resources the node has too little for the pod beside these pods, devices first."""
    taken = list(pods)
    short = [
        resource
        for resource in resources(pod_spec)
        if allocatable(node, resource)[0] - sum(request(pod["spec"], resource)[0] for pod in taken)
        < request(pod_spec, resource)[0]
    ]
    return sorted(short, key=importance)


def importance(resource: str) -> tuple[bool, bool, str]:
    """Order of what to tell: devices before memory before CPU."""
    return "/" not in resource, resource != "memory", resource


def _initial(pod_spec: Object) -> Objects:
    return pod_spec.get("initContainers") or ()


def _requests(containers: Iterable[Object], resource: str) -> Iterator[str]:
    for container in containers:
        asked = _asked(container)
        if resource in asked:
            yield str(asked[resource])


def _asked(container: Object) -> Mapping[str, Any]:
    """Where only a limit is given, it is the request too."""
    given = container.get("resources") or {}
    return {**(given.get("limits") or {}), **(given.get("requests") or {})}


def _tolerates(toleration: Object, taint: Object) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if (effect and effect != taint["effect"]) or (key and key != taint["key"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(key) and toleration.get("value", "") == taint.get("value", "")
