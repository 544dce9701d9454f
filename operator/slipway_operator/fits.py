"""Whether the model fits the devices that nodes have, asked of a pod without devices before a rollout.

What cannot be answered holds nothing up: the server answers the same question when it starts.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.service.devices import MIG, kind, resource_name
from slipway.service.fields import camel
from slipway.service.fit_pod import FIT
from slipway.service.spec import ServiceSpec
from slipway_operator import conditions, reasons
from slipway_operator.demand import admitted, labels, resources
from slipway_operator.informer import place_of
from slipway_operator.memory import count
from slipway_operator.reasons import Finding
from slipway_operator.shapes import Object, condition, is_over, name, shortened

GPU = "nvidia.com/gpu"
SHARES = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage")
"""With these a pod has a part of a device. Labels do not say how much memory that is."""
UNCOUNTED = ("cpuOffload", "speculative")
"""How fields of spec.engine begin for which the estimate is too high: it would refuse what runs."""
PARTS = ("SHARED", "MIG")
"""In the name of a product that may be a part of a device. Two ranks cannot share one device."""
PATIENCE = datetime.timedelta(seconds=300)
"""How long the answer may take. A node has to be found for the pod, and its image pulled."""
MOST_KINDS = 6
"""Of devices. Their answers fit into a termination message."""
_PASSING = "node.kubernetes.io/"
"""Taints of nodes that are cordoned or not ready begin so. Such nodes still have their devices."""
_BYTES = 1 << 30

log = logging.getLogger(__name__)


def is_asked(whole: ServiceSpec, pod_spec: Object) -> bool:
    """Whether a pod that asks could answer rightly for this service.

    whole  the document with its profile's parts
    """
    affinity = pod_spec.get("affinity") or {}
    placed = any("requiredDuringSchedulingIgnoredDuringExecution" in one for one in affinity.values())
    made_by_the_pod = whole.model.path is not None and whole.init_containers
    return (
        kind(whole) == "cuda"
        and bool(resource_name(whole))
        and not resources(pod_spec) & set(SHARES)
        and not any(field.startswith(UNCOUNTED) for field in whole.engine)
        and not (placed or made_by_the_pod or whole.model.image)
    )


def devices_of(nodes: Iterable[Object], whole: ServiceSpec, pod_spec: Object) -> list[str]:
    """The kinds of devices on which the pod might come to run, each as labels of a node; none where nodes do
    not say it, or may not be seen."""
    resource = resource_name(whole)
    most: dict[tuple[str, ...], int] = {}
    for node in nodes:
        # A node has none of them at the moment while its device plugin starts anew.
        known = (node.get("status") or {}).get("allocatable") or {}
        if not admitted(_lasting(node), pod_spec) or resource not in known:
            continue
        said = labels(node)
        # A name of an administrator's own may mean one of several kinds that a node has.
        of_all = resource in (GPU, f"{GPU}.shared") or resource.startswith(MIG)
        prefix = resource if f"{resource}.product" in said else GPU if of_all else ""
        product, mib = said.get(f"{prefix}.product", ""), said.get(f"{prefix}.memory", "")
        if not product or not mib.isdecimal() or not int(mib):
            continue
        # A slice has the capability of its device, which has no other label.
        capability = (said.get(f"{GPU}.compute.{part}", "") for part in ("major", "minor"))
        facts = (product, mib, *capability)
        number = said.get(f"{prefix}.count", "")
        if any(part in product for part in PARTS):
            number = "1"
        most[facts] = max(most.get(facts, 0), int(number) if number.isdecimal() else 0)
    # What does not fit the largest fits no smaller one.
    largest = sorted(most.items(), key=lambda item: (-int(item[0][1]), item))
    return [_text(*facts, str(number or "")) for facts, number in largest][:MOST_KINDS]


def _text(*facts: str) -> str:
    names = ("product", "memory", "compute.major", "compute.minor", "count")
    return ",".join(f"{GPU}.{name}={value}" for name, value in zip(names, facts, strict=True) if value)


def _lasting(node: Object) -> Object:
    """The node without what says that it takes no pods now."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return {**node, "spec": {"taints": [one for one in taints if not one["key"].startswith(_PASSING)]}}


def stands(resource: Object) -> Finding | None:
    """The refusal of this document, if the status has one. It stays while no node with devices is known."""
    before = condition(resource, conditions.FITS) or {}
    same = before.get("observedGeneration") == resource["metadata"].get("generation")
    if not same or before.get("reason") != reasons.NO_DEVICE_FITS.name:
        return None
    return reasons.NO_DEVICE_FITS.found(str(before.get("message")))


def judged(resource: Object, pod: Object, live: Object | None, now: datetime.datetime) -> Finding | None:
    """Why the rollout waits, by what the pod has said so far; None: it goes on.

    pod   that asks
    live  the same in the cluster, where it is there
    """
    answer = None if live is None else _answer(live)
    over = live is not None and is_over(live)
    if answer is None and not over and now - _since(resource, live, now) < PATIENCE:
        waits = "" if live is None else _waits(live)
        return reasons.ASKING.found(f"Pod {name(pod)} asks whether the model fits the nodes' devices.{waits}")
    try:
        devices = _parsed(answer or "")
        if any(device.fits for device in devices):
            return None
        return reasons.NO_DEVICE_FITS.found(_sentence(devices))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        said = shortened(" ".join((answer or "it was not run").split()), 300)
        service = "/".join(place_of(resource))
        log.warning("%s: rolling out, though pod %s did not say what fits: %s", service, name(pod), said)
        return None


@dataclass(frozen=True, slots=True)
class _Device:
    name: str
    memory: int
    fits: bool
    short: str
    instead: tuple[str, ...]


def _answer(pod: Object) -> str | None:
    """What its container has left; None while it has not ended."""
    ended = _state(pod).get("terminated")
    return str(ended.get("message") or "") if ended else None


def _waits(pod: Object) -> str:
    """A sentence with the cause why the pod has not begun; empty where none is known."""
    waiting, placed = _state(pod).get("waiting") or {}, condition(pod, "PodScheduled") or {}
    unplaced = placed.get("message") if placed.get("status") == "False" else None
    said = unplaced or waiting.get("message") or waiting.get("reason")
    return f" It waits: {shortened(str(said), 300)}" if said else ""


def _state(pod: Object) -> Object:
    """Of its container; empty before the kubelet has seen it."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((one.get("state") or {} for one in states if one["name"] == FIT), {})


def _since(resource: Object, live: Object | None, now: datetime.datetime) -> datetime.datetime:
    """When the first pod was made that asks for this rollout. A lost pod is replaced by another; another
    generation of the document is another question."""
    before = condition(resource, conditions.FITS) or {}
    asked = before.get("reason") == reasons.ASKING.name
    same = before.get("observedGeneration") == resource["metadata"].get("generation")
    times = [before.get("lastTransitionTime")] if asked and same else []
    times += [live["metadata"].get("creationTimestamp")] if live is not None else []
    return min((datetime.datetime.fromisoformat(time) for time in times if time), default=now)


def _parsed(answer: str) -> list[_Device]:
    """Raises ValueError and others where it is none."""
    found = [
        _Device(
            name=_plain(one["device"]),
            memory=count(one["memory"]),
            fits=one["fits"] is True,
            short=_plain(one.get("short", "")),
            instead=tuple(map(_change, one.get("instead", ()))),
        )
        for one in json.loads(answer)["fit"]
    ]
    if not found:
        raise ValueError
    return found


def _plain(text: object) -> str:
    """As the API server keeps it: a text that it changed would be written again and again."""
    if not isinstance(text, str):
        raise TypeError
    return shortened(text.encode("utf-8", "replace").decode(), 400)


def _change(one: Mapping[str, Any]) -> str:
    if set(one) == {"device"}:
        return f"on {_plain(one['device'])}"
    return "with " + " and ".join(f"spec.engine.{camel(key)}: {_plain(str(one[key]))}" for key in one)


def _sentence(devices: list[_Device]) -> str:
    names = " or ".join(f"{one.name} ({one.memory / _BYTES:.1f} GiB)" for one in devices)
    largest = max(devices, key=lambda one: one.memory)
    would = f" It would fit {', or '.join(largest.instead)}." if largest.instead else ""
    return (
        f"The model does not fit {names}. {largest.short}{would} "
        "spec.rollout.fit: Off starts it all the same."
    )
