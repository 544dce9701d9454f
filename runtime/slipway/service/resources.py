"""What the containers of a pod are promised, and what they may use at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipway.service import devices
from slipway.service.companions import companions
from slipway.service.fields import InvalidService
from slipway.service.quantity import amount, written
from slipway.service.spec import Limits, Resources, ServiceSpec

if TYPE_CHECKING:
    from slipway.args import Resolved

WORKER_GIB = 4
"""Host memory of a process that drives a device: its libraries, and weights on their way."""
HUGE_PAGES = "hugepages-"
"""Begins the names of resources that are memory in pages of one size, which ends them."""
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
        amounts |= others(spec)
    return _given(requests, limits)


def of_fetch(spec: ServiceSpec, resolved: Resolved) -> dict[str, Any]:
    """Those of the container that ends before the server starts. They cost nothing: a pod needs the larger of
    what its containers ask for."""
    return _given(_requests(spec, resolved), _limits(spec))


def shared_memory(spec: ServiceSpec, resolved: Resolved) -> str:
    """The size of /dev/shm."""
    return spec.resources.shared_memory or f"{devices.workers(resolved)}Gi"


def others(spec: ServiceSpec) -> Amounts:
    """Extended resources and huge pages, of which Kubernetes promises exactly what it limits."""
    return {**spec.resources.limits.others, **spec.resources.others}


def page_sizes(amounts: Mapping[str, object]) -> list[str]:
    """Of the huge pages among the resources, such as 2Mi."""
    return [name.removeprefix(HUGE_PAGES) for name in amounts if name.startswith(HUGE_PAGES)]


def check_resources(spec: ServiceSpec, resolved: Resolved) -> None:
    """Raises InvalidService where a limit is below what is promised, and where Kubernetes would not take an
    extended resource."""
    promised = _amounts(spec.resources)
    for name, limit in _amounts(spec.resources.limits).items():
        if name in promised and amount(limit) < amount(promised[name]):
            raise InvalidService(
                f"spec.resources.limits.{FIELDS[name]}",
                f"{limit} is less than {promised[name]}, the promise of spec.resources.{FIELDS[name]}. "
                "Raise the one, or lower the other.",
            )
    for place, amounts in (("", spec.resources.others), (".limits", spec.resources.limits.others)):
        for name, quantity in amounts.items():
            if wrong := _wrong_name(spec, name) or _wrong_quantity(name, quantity):
                raise InvalidService(f"spec.resources{place}.{name}", wrong)
    for name in spec.resources.others.keys() & spec.resources.limits.others.keys():
        asked, limit = spec.resources.others[name], spec.resources.limits.others[name]
        if amount(asked) != amount(limit):
            raise InvalidService(
                f"spec.resources.limits.{name}",
                f"{limit} is not {asked}, as spec.resources.{name} has it: of such a resource Kubernetes "
                "promises exactly the limit. Leave out one of the two.",
            )
    needed = _requests(spec, resolved).keys() & {"cpu", "memory"}
    if (sizes := page_sizes(others(spec))) and not needed and not spec.profile:
        raise InvalidService(
            "spec.resources",
            f"{HUGE_PAGES}{sizes[0]} alone makes no pod: Kubernetes wants cpu or memory beside huge pages. "
            "Set spec.resources.memory.",
        )
    _check_media(spec)


def _check_media(spec: ServiceSpec) -> None:
    """A folder in huge pages is mounted where the pod asks for such pages, whichever container does."""
    asked: list[Mapping[str, object]] = [others(spec)]
    for _, container in companions(spec):
        asked += [amounts for amounts in container.resources.values() if isinstance(amounts, Mapping)]
    sizes = sorted({size for amounts in asked for size in page_sizes(amounts)})
    for index, volume in enumerate(spec.volumes):
        medium, _, size = ((volume.empty_dir and volume.empty_dir.medium) or "").partition("-")
        if (
            medium != "HugePages"
            or (size in sizes if size else len(sizes) == 1)
            or (spec.profile and not sizes)
        ):
            continue
        if size or not sizes:
            wanted = f"{HUGE_PAGES}{size or '2Mi'}"
            wrong = f"no container asks for these pages. Add {wanted} to spec.resources."
        else:
            media = " or ".join(f"HugePages-{one}" for one in sizes)
            wrong = f"the pod asks for pages of several sizes. Choose one of them: {media}."
        raise InvalidService(f"spec.volumes[{index}].emptyDir.medium", wrong)


def _wrong_name(spec: ServiceSpec, name: str) -> str:
    """Why the document may not ask for the resource by its name, or nothing."""
    if devices.is_device(spec, name):
        return (
            "devices are asked for by spec.devices: vendor, and resource or profile where it is not the "
            "vendor's usual one. Remove it here."
        )
    domain, _, _ = name.partition("/")
    if domain.endswith("kubernetes.io") or domain.startswith("requests."):
        return "Kubernetes keeps names of this domain for itself. Name what a device plugin offers."
    return ""


def _wrong_quantity(name: str, quantity: str) -> str:
    number = amount(quantity)
    if sizes := page_sizes({name: quantity}):
        whole = (number / amount(sizes[0])).denominator == 1
        return "" if whole else f"{quantity} is no multiple of {sizes[0]}, the size of a page."
    return "" if number.denominator == 1 else f"{quantity} is not a whole number, and parts cannot be had."


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
