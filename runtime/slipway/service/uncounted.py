"""Devices that nobody counted: how a container gets some by another way than those that its pod asks for.

Container runtimes hand them out for a variable, and for a mount at a place of theirs, which neither the
scheduler nor a quota sees. (Annotations of CDI are for a policy to bound: nobody sets them by accident.)
"""

from __future__ import annotations

from collections.abc import Iterator

from slipway.service.companions import companions
from slipway.service.fields import InvalidService
from slipway.service.spec import ServiceSpec
from slipway.service.usual_variables import DEVICE_VARIABLES, HIDING, UNCOUNTED

MOUNTS = ("/var/run/nvidia-container-devices/", "/run/nvidia-container-devices/")
"""What is mounted below names devices of NVIDIA's, where its container runtime reads them from there."""


def check_uncounted(spec: ServiceSpec) -> None:
    """Raises InvalidService where a document that asks for no devices would get them all the same.

    A profile may say any of it, for a cluster without a device plugin: whoever writes it runs the cluster.
    """
    for path, name in _ways(spec):
        raise InvalidService(path, f"{name} may not be set: {UNCOUNTED}.")


def _ways(spec: ServiceSpec) -> Iterator[tuple[str, str]]:
    """Each with its field."""
    beside = companions(spec)
    for path, entries in (("spec", spec.env), *((path, one.env) for path, one in beside)):
        for index, entry in enumerate(entries):
            if entry.name in DEVICE_VARIABLES and entry.value not in HIDING:
                yield f"{path}.env[{index}]", entry.name
    mounted: list[tuple[str, str | None]] = []
    mounted += [(f"spec.files[{index}]", one.mount_path) for index, one in enumerate(spec.files)]
    mounted += [(f"spec.volumes[{index}]", one.mount_path) for index, one in enumerate(spec.volumes)]
    for path, container in beside:
        places = enumerate(container.volume_mounts)
        mounted += [(f"{path}.volumeMounts[{index}]", one.mount_path) for index, one in places]
    for path, place in mounted:
        if place and f"{place}/".startswith(MOUNTS):
            yield f"{path}.mountPath", place
