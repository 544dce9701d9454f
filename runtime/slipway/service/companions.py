"""The containers that a document puts beside the server: their names, variables and mounts."""

from __future__ import annotations

from slipway.service.fields import InvalidService
from slipway.service.firewall import check_plain_env
from slipway.service.pod_parts import Container
from slipway.service.spec import ServiceSpec
from slipway.service.storage import NEVER_RENEWED

SERVER, FETCH = "server", "fetch"
OURS = (SERVER, FETCH)
"""Names of our containers: what serves, and the init container that brings the model into the cache."""


def companions(spec: ServiceSpec) -> list[tuple[str, Container]]:
    """Each with its field, in the order of their start."""
    lists = {"initContainers": spec.init_containers, "sidecars": spec.sidecars}
    return [
        (f"spec.{name}[{index}]", container)
        for name, containers in lists.items()
        for index, container in enumerate(containers)
    ]


def check_companions(spec: ServiceSpec) -> None:
    """Raises InvalidService at the first that could not stand beside the others."""
    volumes = {volume.name: volume for volume in spec.volumes}
    names: set[str] = set()
    for path, container in companions(spec):
        name = container.name
        if name in OURS:
            raise InvalidService(
                f"{path}.name", f"{name} is a container of the operator's own. Choose another name."
            )
        if name in names:
            raise InvalidService(f"{path}.name", f"another container is called {name}. Choose another name.")
        names.add(name)
        check_plain_env(container.env, f"{path}.env")
        for index, mount in enumerate(container.volume_mounts):
            if mount.name not in volumes:
                raise InvalidService(
                    f"{path}.volumeMounts[{index}].name", f"spec.volumes has no {mount.name}. Add it there."
                )
            if mount.sub_path and volumes[mount.name].projected and container in spec.sidecars:
                raise InvalidService(f"{path}.volumeMounts[{index}].subPath", f"{NEVER_RENEWED}.")
