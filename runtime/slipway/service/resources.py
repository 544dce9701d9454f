"""What the containers of a pod are promised, and what they may use at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipway.service import devices
from slipway.service.fields import InvalidService
from slipway.service.quantity import amount, written
from slipway.service.spec import Limits, Resources, ServiceSpec

if TYPE_CHECKING:
    from slipway.args import Resolved

WORKER_GIB = 4
"""Host memory of a process that drives a device: its libraries, and weights on their way."""
FIELDS = {"cpu": "cpu", "memory": "memory", "ephemeral-storage": "ephemeralStorage"}
"""Kubernetes' name of a resource → the document's."""

Amounts = dict[str, str]


def of_server(spec: ServiceSpec, resolved: Resolved) -> dict[str, Any]:
    """Requests and limits of the server's container, with the devices that it counts."""
    requests, limits = _requests(spec, resolved), _limits(spec)
    for amounts in (requests, limits):
        if "memory" in amounts:
            # What lies in /dev/shm counts against the container's limit: without its share there, a server
            # that fills it would be killed for memory that it was promised.
            shared = amount(shared_memory(spec, resolved))
            amounts["memory"] = written(amount(amounts["memory"]) + shared)
        if number := devices.count(spec, resolved):
            amounts[devices.resource_name(spec)] = str(number)
    return _given(requests, limits)


def of_fetch(spec: ServiceSpec, resolved: Resolved) -> dict[str, Any]:
    """Those of the container that ends before the server starts. They cost nothing: a pod needs the larger of
    what its containers ask for."""
    return _given(_requests(spec, resolved), _limits(spec))


def shared_memory(spec: ServiceSpec, resolved: Resolved) -> str:
    """The size of /dev/shm."""
    return spec.resources.shared_memory or f"{devices.workers(resolved)}Gi"


def check_resources(spec: ServiceSpec) -> None:
    """Raises InvalidService where a limit is below what is promised."""
    promised = _amounts(spec.resources)
    for name, limit in _amounts(spec.resources.limits).items():
        if name in promised and amount(limit) < amount(promised[name]):
            raise InvalidService(
                f"spec.resources.limits.{FIELDS[name]}",
                f"{limit} is less than {promised[name]}, the promise of spec.resources.{FIELDS[name]}. "
                "Raise the one, or lower the other.",
            )


def _requests(spec: ServiceSpec, resolved: Resolved) -> Amounts:
    """With devices a server that asks for nothing would be put where others take its CPU and its memory, and
    its devices would wait: it asks for what it needs at least."""
    limits = _amounts(spec.resources.limits)
    least: Amounts = {}
    if spec.devices.present:
        workers = devices.workers(resolved)
        least = {"cpu": str(workers + resolved["api_server_count"]), "memory": f"{WORKER_GIB * workers}Gi"}
    for name in least.keys() & limits.keys():
        least[name] = min(least[name], limits[name], key=amount)
    return limits | least | _amounts(spec.resources)


def _limits(spec: ServiceSpec) -> Amounts:
    limits = _amounts(spec.resources)
    if spec.devices.present:
        # A quota stops the threads that launch kernels in the middle of a step. On CPU it is what tells the
        # server how many threads to have.
        limits.pop("cpu", None)
    return limits | _amounts(spec.resources.limits)


def _amounts(wanted: Resources | Limits) -> Amounts:
    named = {"cpu": wanted.cpu, "memory": wanted.memory, "ephemeral-storage": wanted.ephemeral_storage}
    return {name: quantity for name, quantity in named.items() if quantity is not None}


def _given(requests: Amounts, limits: Amounts) -> dict[str, Any]:
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}
