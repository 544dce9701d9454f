"""The same pod under podman: one container, or one that fetches the model and then the server.

Everything comes from the pod template, so that the container on a laptop has the arguments, variables and
mounts that it has in a cluster. What only a cluster can give is refused at the field that asks for it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.service.engine import CACHE
from slipway.service.facts import Facts
from slipway.service.fields import InvalidService
from slipway.service.pod import as_given, pod_template
from slipway.service.quantity import amount
from slipway.service.spec import ServiceSpec

UNITS = {"Ki": "k", "Mi": "m", "Gi": "g"}
"""Kubernetes' binary units in podman's spelling, which is binary too."""
CDI_KINDS = ("nvidia.com/gpu", "amd.com/gpu")
"""Device names that podman and Kubernetes share: their vendors' toolkits describe each device to podman."""

Option = tuple[str, str | None]
"""`podman run --NAME VALUE`; a flag has no value."""
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Secret:
    """A variable whose value is one key of a Secret, which podman knows as `name-key`."""

    variable: str
    name: str
    key: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Container:
    """What podman is told to run. `words` follow the image."""

    image: str
    options: tuple[Option, ...]
    secrets: tuple[Secret, ...]
    words: tuple[str, ...]


def podman_command(spec: ServiceSpec, facts: Facts) -> str:
    """A line for a shell. Secrets come from variables of that shell, by name.

    Raises InvalidService where the document mounts what only a cluster has.
    """
    return " && \\\n".join(_line(container) for container in containers(spec, facts))


def containers(spec: ServiceSpec, facts: Facts) -> list[Container]:
    """In the order of their start; all but the last end by themselves. Raises InvalidService."""
    pod: Object = pod_template(spec, facts)["spec"]
    before, (server,) = pod.get("initContainers", []), pod["containers"]
    return [
        *(_container(spec, pod, container, []) for container in before),
        _container(spec, pod, server, list(_of_the_server(spec, pod, server))),
    ]


def grace_seconds(spec: ServiceSpec, facts: Facts) -> int:
    """From SIGTERM to SIGKILL."""
    return int(pod_template(spec, facts)["spec"]["terminationGracePeriodSeconds"])


def _line(container: Container) -> str:
    options = [
        *container.options,
        # Without a value podman takes the variable from the shell that runs it.
        *(("env", secret.variable) for secret in container.secrets),
    ]
    return " \\\n  ".join(
        [
            "podman run --rm",
            *(shlex.join(words(option)) for option in options),
            shlex.quote(container.image),
            shlex.join(container.words),
        ]
    )


def words(option: Option) -> list[str]:
    """An option as the words of a command line."""
    name, value = option
    return [f"--{name}"] if value is None else [f"--{name}", value]


def _container(spec: ServiceSpec, pod: Object, container: Object, own: list[Option]) -> Container:
    variables, secrets = _environment(container)
    options = [
        *own,
        *_limits(container),
        *_safety(pod, container),
        *_mounts(spec, pod, container),
        *variables,
        *_devices(container),
    ]
    return Container(
        container["image"], tuple(options), tuple(secrets), tuple(map(as_given, container["args"]))
    )


def _of_the_server(spec: ServiceSpec, pod: Object, container: Object) -> Iterator[Option]:
    (port,) = container["ports"]
    yield "name", spec.name
    yield "publish", f"127.0.0.1:{spec.service.port}:{port['containerPort']}"
    yield "stop-timeout", str(pod["terminationGracePeriodSeconds"])


def _limits(container: Object) -> Iterator[Option]:
    limits = container.get("resources", {}).get("limits", {})
    if memory := limits.get("memory"):
        yield "memory", _size("spec.resources.memory", memory)
    if cpu := limits.get("cpu"):
        yield "cpus", f"{float(amount(cpu)):g}"


def _size(field: str, quantity: str) -> str:
    for unit, letter in UNITS.items():
        number = quantity.removesuffix(unit)
        if number != quantity and number.isdigit():
            return number + letter
    size = amount(quantity)
    if size.denominator != 1:
        raise InvalidService(
            field, f"podman cannot express {quantity}, which is no whole byte. Use Mi or Gi."
        )
    return f"{size}b"


def _safety(pod: Object, container: Object) -> Iterator[Option]:
    yield "cap-drop", "ALL"
    yield "security-opt", "no-new-privileges"
    if container.get("securityContext", {}).get("readOnlyRootFilesystem"):
        yield "read-only", None
    context = pod.get("securityContext", {})
    if (user := context.get("runAsUser")) is not None:
        # Group 0 as in the image: its folders are writable for that group and for no user.
        yield "user", f"{user}:{context.get('runAsGroup', 0)}"


def _mounts(spec: ServiceSpec, pod: Object, container: Object) -> Iterator[Option]:
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        yield _mount(spec, volumes[mount["name"]], mount)


def _mount(spec: ServiceSpec, volume: Object, mount: Object) -> Option:
    path, read_only = mount["mountPath"], mount.get("readOnly", False)
    match volume:
        case {"emptyDir": {"sizeLimit": size}} if path == "/dev/shm":
            return "shm-size", _size("spec.resources.sharedMemory", size)
        case {"emptyDir": _} if path == str(CACHE):
            # A volume of that name, so that the next start finds what this one fetched.
            return "volume", f"{spec.name}-cache:{path}:U"
        case {"emptyDir": _}:
            return "tmpfs", path
        case {"persistentVolumeClaim": {"claimName": claim}}:
            return "volume", f"{claim}:{path}:{'ro' if read_only else 'U'}"
        case {"image": {"reference": reference}}:
            return "mount", f"type=image,source={reference},destination={path}"
    if volume["name"] == "tls":
        field, instead = "spec.secrets.tls", "Remove it, and serve TLS from a proxy before this port."
    else:
        field, instead = "spec.files", "Put the files into an image of your own: spec.runtime.image."
    raise InvalidService(field, f"podman has no ConfigMaps and Secrets of a cluster to mount. {instead}")


def _environment(container: Object) -> tuple[list[Option], list[Secret]]:
    variables: list[Option] = []
    secrets = []
    for entry in container.get("env", []):
        name = entry["name"]
        match entry:
            case {"valueFrom": {"secretKeyRef": reference}}:
                optional = reference.get("optional", False)
                secrets.append(Secret(name, reference["name"], reference["key"], optional))
            case {"valueFrom": _}:
                raise InvalidService("spec.env", f"podman cannot read what {name} refers to. Give its value.")
            case _:
                variables.append(("env", f"{name}={as_given(entry.get('value', ''))}"))
    return variables, secrets


def _devices(container: Object) -> Iterator[Option]:
    resources = container.get("resources", {})
    if resources.get("claims"):
        raise InvalidService("spec.devices.claims", "podman has no ResourceClaims. Use vendor and count.")
    for resource, count in resources.get("limits", {}).items():
        if resource in CDI_KINDS:
            yield from (("device", f"{resource}={index}") for index in range(int(count)))
        elif "/" in resource:
            raise InvalidService(
                "spec.devices",
                f"podman has no device of the kind {resource}, only whole ones of {' and '.join(CDI_KINDS)}. "
                "Remove the profile or choose another vendor.",
            )
