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

from slipway.service.devices import kind, resource_name
from slipway.service.fields import camel
from slipway.service.fit_pod import FIT
from slipway.service.spec import ServiceSpec
from slipway_operator import reasons
from slipway_operator.demand import admitted, allocatable, labels, resources
from slipway_operator.reasons import Finding
from slipway_operator.shapes import Object, condition, is_over, name, shortened

GPU = "nvidia.com/gpu"
SHARES = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage")
"""With these a pod has a part of a device, of which its labels know nothing."""
PATIENCE = datetime.timedelta(seconds=300)
"""For the pod, from its making: a node that is found, an image that is pulled."""
MOST_KINDS = 6
"""Of devices, of which the answers have room where the pod leaves them."""
_FACTS = ("product", "memory", "compute.major", "compute.minor")
_BYTES = 1 << 30

log = logging.getLogger(__name__)


def is_asked(whole: ServiceSpec, pod_spec: Object) -> bool:
    """Whether labels of nodes say what devices the pod may get. With claims nothing does.

    whole  the document with its profile's parts
    """
    return kind(whole) == "cuda" and bool(resource_name(whole)) and not resources(pod_spec) & set(SHARES)


def devices_of(nodes: Iterable[Object], whole: ServiceSpec, pod_spec: Object) -> list[str]:
    """The kinds of devices on which the pod might come to run, each as labels of a node; none where nodes do
    not say it, or may not be seen."""
    resource = resource_name(whole)
    most: dict[tuple[str, ...], int] = {}
    for node in nodes:
        if not admitted(node, pod_spec) or not allocatable(node, resource)[0]:
            continue
        said = labels(node)
        prefix = resource if f"{resource}.product" in said else GPU
        facts = tuple(said.get(f"{prefix}.{fact}", "") for fact in _FACTS)
        if facts[0] and _mib(facts):
            most[facts] = max(most.get(facts, 0), int(allocatable(node, resource)[0]))
    # What does not fit the largest fits no smaller one.
    largest = sorted(most.items(), key=lambda item: (-_mib(item[0]), item))
    return [_text(facts, count) for facts, count in largest][:MOST_KINDS]


def _mib(facts: tuple[str, ...]) -> int:
    return int(facts[1]) if facts[1].isdecimal() else 0


def _text(facts: tuple[str, ...], count: int) -> str:
    said = [f"{GPU}.{name}={value}" for name, value in zip(_FACTS, facts, strict=True) if value]
    return ",".join([*said, f"{GPU}.count={count}"])


def judged(service: str, pod: Object, live: Object | None, now: datetime.datetime) -> Finding | None:
    """Why the rollout waits, by what the pod has said so far; None: it goes on.

    pod   that asks
    live  the same in the cluster, where it is there
    """
    answer = None if live is None else _answer(live)
    if live is None or (answer is None and not is_over(live) and now - _made(live) < PATIENCE):
        waits = "" if live is None else _waits(live)
        return reasons.ASKING.found(f"Pod {name(pod)} asks whether the model fits the nodes' devices.{waits}")
    try:
        devices = _parsed(answer or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        said = shortened(" ".join((answer or "it was not run").split()), 300)
        log.warning("%s: rolling out, though pod %s did not say what fits: %s", service, name(pod), said)
        return None
    if any(device.fits for device in devices):
        return None
    return reasons.NO_DEVICE_FITS.found(_sentence(devices))


@dataclass(frozen=True, slots=True)
class _Device:
    name: str
    memory: int
    fits: bool
    short: str
    instead: tuple[str, ...]


def _answer(pod: Object) -> str | None:
    """What its container has left; None while it has not ended."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    ended = [one["state"].get("terminated") for one in states if one["name"] == FIT and one.get("state")]
    return str(ended[0].get("message") or "") if ended and ended[0] else None


def _waits(pod: Object) -> str:
    """Why it has not begun, where that is said."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    waiting = [((one.get("state") or {}).get("waiting") or {}) for one in states if one["name"] == FIT]
    unplaced = condition(pod, "PodScheduled") or {}
    said = unplaced.get("message") if unplaced.get("status") == "False" else None
    said = said or next((one.get("message") or one.get("reason") for one in waiting), None)
    return f" It waits: {shortened(str(said), 300)}" if said else ""


def _made(pod: Object) -> datetime.datetime:
    return datetime.datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


def _parsed(answer: str) -> list[_Device]:
    """Raises ValueError and others where it is none."""
    found = [
        _Device(
            name=str(one["device"]),
            memory=int(one["memory"]),
            fits=one["fits"] is True,
            short=str(one.get("short", "")),
            instead=tuple(map(_change, one.get("instead", ()))),
        )
        for one in json.loads(answer)["fit"]
    ]
    if not found:
        raise ValueError
    return found


def _change(one: Mapping[str, Any]) -> str:
    if set(one) == {"device"}:
        return f"on {one['device']}"
    return "with " + " and ".join(f"spec.engine.{camel(key)}: {value}" for key, value in one.items())


def _sentence(devices: list[_Device]) -> str:
    names = " or ".join(f"{one.name} ({one.memory / _BYTES:.1f} GiB)" for one in devices)
    largest = max(devices, key=lambda one: one.memory)
    would = f" It would fit {', or '.join(largest.instead)}." if largest.instead else ""
    return (
        f"The model does not fit {names}. {shortened(largest.short, 400)}{would} "
        "spec.rollout.fit: Off starts it all the same."
    )
