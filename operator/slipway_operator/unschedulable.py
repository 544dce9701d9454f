"""Why no node takes a pod: the scheduler's message, with the numbers that it leaves out."""

from __future__ import annotations

import re

from slipway.service.pod import ARCHITECTURE_LABEL
from slipway.service.quantity import stored
from slipway_operator import reasons, wordings
from slipway_operator.demand import allocatable, importance, labels, request, selected
from slipway_operator.reasons import Finding
from slipway_operator.shapes import (
    Object,
    Objects,
    about,
    condition,
    first_line,
    messages,
    name,
    shortened,
    spoken,
)
from slipway_operator.wordings import NODES, POST_FILTER, Source, meanings

_ABSENT = {
    wordings.CLAIM_ABSENT: ("PersistentVolumeClaim", "spec.model.pvc, spec.model.cache or spec.volumes"),
    wordings.TEMPLATE_ABSENT: ("ResourceClaimTemplate", "spec.devices.claims"),
    wordings.DEVICE_CLAIM_ABSENT: ("ResourceClaim", "spec.devices.claims"),
}
"""The kind of what is not there, and the fields that name it."""
_BYTES = ("memory", "ephemeral-storage", "hugepages")
_UNITS = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"))
_OUTLOOK = {
    "TriggeredScaleUp": "; the autoscaler adds a node",
    "Nominated": "; the autoscaler adds a node",
    "NotTriggerScaleUp": "; the autoscaler adds no node",
}
"""By the reason of an event of a pod's: the Cluster Autoscaler's, and Karpenter's where it makes a node."""


def unschedulable(pod: Object, nodes: Objects = (), events: Objects = ()) -> Finding | None:
    """Why the pod has no node, and whether one is being added; None where it has one, or the scheduler has
    not spoken yet."""
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("status") != "False":
        return None
    message = str(scheduled.get("message") or "")
    if scheduled.get("reason") == "SchedulingGated":
        gates = ", ".join(gate["name"] for gate in pod["spec"].get("schedulingGates") or ())
        return reasons.SCHEDULING_GATED.found(f"waits for the scheduling gate {gates}.")
    outlook, added = _autoscaler(pod, events)
    words = f"{added} The scheduler says: {shortened(message, 600)}"
    cause = _cause(pod)
    match = NODES.match(cause)
    total, rest = (int(match[2]), match[3].strip().rstrip(".")) if match else (0, cause or "no node fits")
    rows = dict(meanings(Source.PLACEMENT, rest))
    row = next(iter(rows), None)
    if row is wordings.INSUFFICIENT:
        missing = missing_resource(pod) or ""
        text = f"wants {_shortage(pod, missing, nodes, match)}{outlook}.{words}"
    elif row is wordings.DEVICES_TAKEN:
        text = f"wants {_claims(pod)}, and no node has them free{outlook}.{words}"
    elif row is wordings.DEVICES_ELSEWHERE:
        text = f"{_claims(pod)} are on a node that does not take the pod: {rest}{outlook}.{words}"
    elif row is wordings.VOLUME_HELD:
        text = (
            f"another pod holds {_volume_claims(pod)}, which one pod at a time can mount. End that pod, or "
            f"name a ReadWriteMany claim.{words}"
        )
    elif row is wordings.CLAIM_UNBOUND:
        text = f"{_volume_claims(pod)} is not bound to a volume. `kubectl describe pvc` says why.{words}"
    elif row is wordings.VOLUME_NOT_MADE:
        text = f"no volume was made for {_volume_claims(pod)}. `kubectl describe pvc` says why.{words}"
    elif row is not None and row.reason is reasons.CLAIM_MISSING:
        text = f"{_claim(rest)}{words if match else ''}"
    elif not total:
        text = f"{rest}{outlook}.{added}"
    else:
        advice = _foreign(pod, nodes) or " ".join(one.advice for one in rows if one.advice)
        text = f"none of {_counted(total)} fits: {rest}{outlook}. {advice}{words}"
    return (row.reason if row is not None else reasons.UNSCHEDULABLE).found(text)


def _cause(pod: Object) -> str:
    """What the scheduler says of the pod, without what preemption adds."""
    scheduled = condition(pod, "PodScheduled") or {}
    return POST_FILTER.sub("", str(scheduled.get("message") or "")).strip().rstrip(".")


def _autoscaler(pod: Object, events: Objects) -> tuple[str, str]:
    """What an autoscaler does for the pod, in a clause and in its own words; empty before it has spoken."""
    event = next(iter(about(events, pod, *_OUTLOOK)), None)
    if event is None:
        return "", ""
    return _OUTLOOK[event["reason"]], f" The autoscaler says: {first_line(spoken(event)).rstrip('.')}."


def unclaimed(pod: Object, events: Objects) -> Finding | None:
    """Why the scheduler does not even look at the pod: a ResourceClaim of it cannot be made."""
    if pod["spec"].get("nodeName"):
        return None
    said = next(iter(messages(events, pod, "FailedResourceClaimCreation")), None)
    return reasons.CLAIM_MISSING.found(_claim(first_line(said))) if said else None


def lacks_room(pod: Object) -> bool:
    """Whether the pod would find a node if others went: it is resources or devices that it waits for."""
    return missing_resource(pod) is not None or wordings.DEVICES_TAKEN.search(_cause(pod)) is not None


def _claim(words: str) -> str:
    """What is wrong with a claim, and what to do."""
    row, match = next(meanings(Source.PLACEMENT, words), (None, None))
    if row in _ABSENT and match is not None:
        kind, fields = _ABSENT[row]
        return f"{kind} {match['name']} does not exist. Create it, or correct its name in {fields}."
    if row is wordings.DEVICE_CLASS_ABSENT and match is not None:
        return (
            f"DeviceClass {match['name']} does not exist. Install the driver of the devices, or correct the "
            f"templates in spec.devices.claims."
        )
    return f"{words.rstrip('.')}."


def _claims(pod: Object) -> str:
    """`the devices of claim two-gpus`"""
    named = [
        str(one.get("resourceClaimTemplateName") or one.get("resourceClaimName"))
        for one in pod["spec"].get("resourceClaims") or ()
    ]
    return f"the devices of {'claim' if len(named) == 1 else 'claims'} {', '.join(named)}"


def _volume_claims(pod: Object) -> str:
    """`claim weights`"""
    volumes = pod["spec"].get("volumes") or ()
    named = sorted(
        {one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one}
    )
    return f"{'claim' if len(named) == 1 else 'one of the claims'} {', '.join(named)}"


def missing_resource(pod: Object) -> str | None:
    """The resource of which no node has enough, devices before memory before CPU; None for other causes."""
    found = {match["resource"] for match in wordings.INSUFFICIENT.pattern.finditer(_cause(pod))}
    return min(found, key=importance, default=None)


def _shortage(pod: Object, resource: str, nodes: Objects, match: re.Match[str] | None) -> str:
    """`nvidia.com/gpu 8, node0 has 4`"""
    wanted, text = request(pod["spec"], resource)
    asked = f"{resource} {_readable(resource, text)}".rstrip()
    if resource == "memory" and (shared := _shared_memory(pod)):
        asked += f" ({shared} of it /dev/shm)"
    has = {name(node): allocatable(node, resource) for node in nodes if selected(node, pod["spec"])}
    best = max(sorted(has), key=lambda node: has[node][0], default=None)
    if best is None:
        return f"{asked}{_lacking(match, resource) if match else ''}"
    if not has[best][0]:
        admitted = " that its nodeSelector admits" if len(has) < len(nodes) else ""
        return f"{asked}, no node{admitted} has any"
    free = "" if has[best][0] < wanted else ", not enough of it free"
    return f"{asked}, {best} has {_readable(resource, has[best][1])}{free}"


def _foreign(pod: Object, nodes: Objects) -> str:
    """What to do where no node can run the pod's image."""
    wanted = (pod["spec"].get("nodeSelector") or {}).get(ARCHITECTURE_LABEL)
    if not wanted or not nodes or any(labels(node).get(ARCHITECTURE_LABEL) == wanted for node in nodes):
        return ""
    return f"No node is {wanted}, as the image is. Add one, or name another image in spec.runtime.image."


def _readable(resource: str, text: str) -> str:
    """An amount of bytes in the largest unit that it fills; others as they are written."""
    octets = stored(text)
    if octets is None or not resource.startswith(_BYTES):
        return text
    for size, unit in _UNITS:
        if octets >= size:
            return f"{float(octets / size):.1f}".removesuffix(".0") + unit
    return text


def _shared_memory(pod: Object) -> str:
    """The size of /dev/shm, which spec.resources.memory does not count."""
    volumes = pod["spec"].get("volumes") or ()
    return next((str(one["emptyDir"].get("sizeLimit")) for one in volumes if one["name"] == "shm"), "")


def _lacking(match: re.Match[str], resource: str) -> str:
    found = wordings.INSUFFICIENT.pattern.finditer(match[3])
    counts = {one["resource"]: one["nodes"] for one in found}
    return f", too little free on {counts.get(resource) or 'some'} of {_counted(int(match[2]))}"


def _counted(nodes: int) -> str:
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"
