"""The accelerators of a service: their names in Kubernetes, and how many each pod needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.args.data_parallel import copies_here
from slipway.service.fields import InvalidService
from slipway.service.spec import DeviceClaim, ServiceSpec

if TYPE_CHECKING:
    from slipway.args import Resolved


@dataclass(frozen=True, slots=True)
class Vendor:
    """How one vendor's devices are asked for."""

    resource: str
    """Extended resource of the vendor's device plugin, and key of the taint on its nodes."""
    kind: str
    """What the registry of variables calls such devices."""


VENDORS = {
    "nvidia": Vendor("nvidia.com/gpu", "cuda"),
    "amd": Vendor("amd.com/gpu", "rocm"),
    "intel": Vendor("gpu.intel.com/i915", "xpu"),
    "habana": Vendor("habana.ai/gaudi", "hpu"),
    "google": Vendor("google.com/tpu", "tpu"),
}
MIG = "nvidia.com/mig-"
"""Begins the names of resources that are slices of a device."""
WITH_IMAGE = ("nvidia",)
"""Vendors for whose devices this release has a runtime image."""
WHOLE_INSTANCE = (
    "a compute instance has fewer slices (c) than its GPU instance (g). For all of them leave the c out, as "
    "in 2g.20gb"
)


def kind(spec: ServiceSpec) -> str:
    """cpu, cuda, rocm, xpu, hpu or tpu. Claims without a vendor are for CUDA, as our image is."""
    if spec.devices.vendor:
        return VENDORS[spec.devices.vendor].kind
    return "cuda" if spec.devices.claims else "cpu"


def workers(resolved: Resolved) -> int:
    """Parallel workers of one pod, each on a device of its own where there are devices."""
    return int(resolved["tensor_parallel_size"] * resolved["pipeline_parallel_size"] * copies_here(resolved))


def count(spec: ServiceSpec, resolved: Resolved) -> int:
    """Devices that a pod asks the device plugin for; none with claims, which bring their own."""
    return workers(resolved) if spec.devices.vendor and not spec.devices.claims else 0


def resource_name(spec: ServiceSpec) -> str:
    """Extended resource of the pods, or nothing on CPU and with claims."""
    devices = spec.devices
    if devices.vendor is None or devices.claims:
        return ""
    if devices.profile:
        return f"{MIG}{devices.profile.replace('+', '.')}"
    return devices.resource or VENDORS[devices.vendor].resource


def is_device(spec: ServiceSpec, name: str) -> bool:
    """Whether a resource of this name is an accelerator, of the pods or of anybody."""
    usual = [vendor.resource for vendor in VENDORS.values()]
    shared = tuple(f"{resource}." for resource in usual)  # as NVIDIA's plugin renames those of several pods
    return name in (resource_name(spec), *usual) or name.startswith((MIG, *shared))


def taint(spec: ServiceSpec) -> str:
    """Key of the taint that keeps other pods off the nodes with such devices, or nothing on CPU."""
    if not spec.devices.present:
        return ""
    return VENDORS[spec.devices.vendor or "nvidia"].resource


def check_devices(spec: ServiceSpec, resolved: Resolved) -> None:
    """Raises InvalidService where the document's devices contradict each other or its arguments."""
    devices = spec.devices
    _check_claims(devices.claims)
    if devices.count is not None and devices.claims:
        raise InvalidService("spec.devices", "count and claims exclude each other. Keep one.")
    if devices.count is not None and not devices.vendor and not spec.profile:
        raise InvalidService(
            "spec.devices.vendor",
            f"a count of {devices.count} does not say whose devices: name one of {', '.join(VENDORS)}.",
        )
    if devices.profile and (devices.vendor != "nvidia" or devices.claims):
        raise InvalidService(
            "spec.devices.profile",
            "a MIG profile is for devices that are counted, of vendor nvidia. A claim names its own.",
        )
    if devices.profile and "c." in devices.profile:
        computing, of_all, _ = devices.profile.split(".", 2)
        if int(computing[0]) >= int(of_all[0]):
            raise InvalidService("spec.devices.profile", f"{devices.profile}: {WHOLE_INSTANCE}.")
    if devices.resource and (not devices.vendor or devices.profile or devices.claims):
        raise InvalidService(
            "spec.devices.resource",
            f"{devices.resource} is for whole devices of a vendor, which are counted. Name the vendor, and "
            "leave out profile and claims.",
        )
    if devices.vendor and devices.vendor not in WITH_IMAGE and not spec.runtime.image:
        raise InvalidService(
            "spec.runtime.image",
            f"it must be given: Slipway has no image for devices of {devices.vendor}. "
            "Name one that runs `slipway serve` on them.",
        )
    wanted = workers(resolved)
    if wanted == 0:
        raise InvalidService(
            "spec.engine.dataParallelSizeLocal",
            "0 leaves the pod without an engine. Leave it out, or give 1.",
        )
    if devices.count not in (None, wanted):
        raise InvalidService(
            "spec.devices.count",
            f"{devices.count} is not {_product(resolved)} = {wanted}, the workers of a pod, each with a "
            "device of its own. Leave count out, or change the sizes under spec.engine.",
        )


def _check_claims(claims: tuple[str | DeviceClaim, ...]) -> None:
    shared: list[str] = []
    for index, claim in enumerate(claims):
        if isinstance(claim, str):
            continue
        path, name = f"spec.devices.claims[{index}]", claim.resource_claim_name
        if (name is None) == (claim.resource_claim_template_name is None):
            raise InvalidService(
                path, "exactly one of resourceClaimName and resourceClaimTemplateName is needed."
            )
        if name in shared:
            raise InvalidService(path, f"the ResourceClaim {name} stands there twice, and a pod has it once.")
        shared += [name] if name else []


def _product(resolved: Resolved) -> str:
    return (
        f"tensor parallel size {resolved['tensor_parallel_size']} × pipeline parallel size "
        f"{resolved['pipeline_parallel_size']} × local data parallel size {copies_here(resolved)}"
    )
