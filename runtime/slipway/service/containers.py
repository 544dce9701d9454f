"""A pod as containers of one machine, for programs that know no pods: podman, Quadlet, Compose.

Everything comes from the pod template, so that the container on a laptop has the arguments, variables and
mounts that it has in a cluster. What only a cluster can give is refused at the field that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipway.service.companions import companions
from slipway.service.engine import CACHE
from slipway.service.facts import Facts
from slipway.service.fields import InvalidService
from slipway.service.pod import as_given, pod_template
from slipway.service.quantity import amount
from slipway.service.resources import others
from slipway.service.spec import ServiceSpec
from slipway.service.storage import AUTHORITIES

UNITS = {"Ki": "k", "Mi": "m", "Gi": "g"}
"""Kubernetes' binary units in the spelling of these programs, which is binary too."""
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
"""Kinds of devices whose names CDI and Kubernetes share: their vendors' toolkits describe each device."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Secret:
    """A variable whose value is one key of a Secret."""

    variable: str
    name: str
    key: str
    optional: bool


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """At /dev/shm."""

    size: str


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder that goes with the container."""

    path: str
    size: str | None = None
    """The most that it holds."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A folder that outlives it, by its name."""

    name: str
    path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class ImageVolume:
    """The files of an image."""

    reference: str
    path: str


Mount: TypeAlias = SharedMemory | Scratch | Volume | ImageVolume


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where a container looks up names of hosts, beside what its machine knows."""

    lines: tuple[tuple[str, str], ...]
    """Of /etc/hosts: name and address."""
    servers: tuple[str, ...]
    searches: tuple[str, ...]
    options: tuple[str, ...]
    """Of the resolver, such as ndots:2."""


@dataclass(frozen=True, slots=True)
class Container:
    """What is told to run. `words` follow the image's entry point."""

    image: str
    words: tuple[str, ...]
    variables: Mapping[str, str]
    secrets: tuple[Secret, ...]
    mounts: tuple[Mount, ...]
    devices: Mapping[str, int]
    """How many of each kind."""
    memory: str | None
    cpus: str | None
    user: str | None
    groups: tuple[str, ...]
    label: Mapping[str, str]
    """Parts of the SELinux context, such as level and type."""
    hosts: Hosts
    read_only: bool


@dataclass(frozen=True, slots=True)
class Containers:
    """Of a whole pod, on one address of the machine."""

    name: str
    before: tuple[Container, ...]
    """They end by themselves, in this order, before the server starts."""
    server: Container
    host_port: int
    port: int
    ready_path: str
    """Answers 200 on `port` where the server would take a request."""
    grace_seconds: int
    """From SIGTERM to SIGKILL."""


def containers(spec: ServiceSpec, facts: Facts, program: str) -> Containers:
    """For `program`, which errors name. Raises InvalidService where it cannot have what the pod has."""
    if beside := companions(spec):
        path, first = beside[0]
        raise InvalidService(
            path,
            f"{program} starts the server alone. Run {first.name} by a command of your own, and remove it "
            "here.",
        )
    pod: Object = pod_template(spec, facts)["spec"]
    before, (server,) = pod.get("initContainers", []), pod["containers"]
    (port,) = server["ports"]
    return Containers(
        spec.name,
        tuple(_container(spec, pod, container, program) for container in before),
        _container(spec, pod, server, program),
        spec.service.port,
        port["containerPort"],
        server["readinessProbe"]["httpGet"]["path"],
        pod["terminationGracePeriodSeconds"],
    )


def _container(spec: ServiceSpec, pod: Object, container: Object, program: str) -> Container:
    limits = container.get("resources", {}).get("limits", {})
    memory, cpu, security = limits.get("memory"), limits.get("cpu"), pod.get("securityContext", {})
    user = security.get("runAsUser")
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    variables, secrets = _environment(container, program)
    return Container(
        image=container["image"],
        words=tuple(map(as_given, container["args"])),
        variables=variables,
        secrets=secrets,
        mounts=tuple(
            _mount(spec, volumes[mount["name"]], mount, program) for mount in container["volumeMounts"]
        ),
        devices=dict(_devices(spec, container, program)),
        memory=_size("spec.resources.memory", memory, program) if memory else None,
        cpus=f"{float(amount(cpu)):g}" if cpu else None,
        # Group 0 as in the image: its folders are writable for that group and for no user.
        user=None if user is None else f"{user}:{security.get('runAsGroup', 0)}",
        groups=tuple(map(str, security.get("supplementalGroups", []))),
        label=security.get("seLinuxOptions", {}),
        hosts=_hosts(pod),
        read_only=container["securityContext"]["readOnlyRootFilesystem"],
    )


def _hosts(pod: Object) -> Hosts:
    config = pod.get("dnsConfig", {})
    return Hosts(
        tuple(
            (name, alias["ip"]) for alias in pod.get("hostAliases", []) for name in alias.get("hostnames", [])
        ),
        tuple(config.get("nameservers", [])),
        tuple(config.get("searches", [])),
        tuple(
            f"{option['name']}:{option['value']}" if option.get("value") else option["name"]
            for option in config.get("options", [])
        ),
    )


def _size(field: str, quantity: str, program: str) -> str:
    for unit, letter in UNITS.items():
        number = quantity.removesuffix(unit)
        if number != quantity and number.isdigit():
            return number + letter
    size = amount(quantity)
    if size.denominator != 1:
        raise InvalidService(
            field, f"{program} cannot express {quantity}, which is no whole byte. Use Mi or Gi."
        )
    return f"{size}b"


def _mount(spec: ServiceSpec, volume: Object, mount: Object, program: str) -> Mount:
    path, read_only = mount["mountPath"], mount.get("readOnly", False)
    if "subPath" in mount:
        raise InvalidService("spec.volumes", f"{program} mounts all of {volume['name']}. Remove its subPath.")
    match volume:
        case {"emptyDir": {"sizeLimit": size}} if path == "/dev/shm":
            return SharedMemory(_size("spec.resources.sharedMemory", size, program))
        case {"emptyDir": _} if path == str(CACHE):
            # A volume of that name, so that the next start finds what this one fetched.
            return Volume(f"{spec.name}-cache", path, read_only)
        case {"emptyDir": {"sizeLimit": size}}:
            return Scratch(path, _size("spec.volumes", size, program))
        case {"emptyDir": _}:
            return Scratch(path)
        case {"persistentVolumeClaim": {"claimName": claim}}:
            return Volume(claim, path, read_only)
        case {"image": {"reference": reference}}:
            return ImageVolume(reference, path)
        case {"csi": {"driver": driver}}:
            raise InvalidService(
                "spec.volumes", f"{program} has no CSI driver {driver}. Remove {volume['name']}."
            )
        case {"projected": _}:
            raise InvalidService(
                "spec.volumes",
                f"{program} has no tokens and no objects of a cluster. Remove {volume['name']}.",
            )
    if volume["name"] == AUTHORITIES:
        field, instead = (
            "spec.trustedCA",
            "Put the authorities into an image of your own: spec.runtime.image.",
        )
    elif volume["name"] == "tls":
        field, instead = "spec.secrets.tls", "Remove it, and serve TLS from a proxy before this port."
    else:
        field, instead = "spec.files", "Put the files into an image of your own: spec.runtime.image."
    raise InvalidService(field, f"{program} has no ConfigMaps and Secrets of a cluster to mount. {instead}")


def _environment(container: Object, program: str) -> tuple[dict[str, str], tuple[Secret, ...]]:
    variables: dict[str, str] = {}
    secrets = []
    for entry in container.get("env", []):
        name = entry["name"]
        match entry:
            case {"valueFrom": {"secretKeyRef": reference}}:
                optional = reference.get("optional", False)
                secrets.append(Secret(name, reference["name"], reference["key"], optional))
            case {"valueFrom": _}:
                raise InvalidService(
                    "spec.env", f"{program} cannot read what {name} refers to. Give its value."
                )
            case _:
                variables[name] = as_given(entry.get("value", ""))
    return variables, tuple(secrets)


def _devices(spec: ServiceSpec, container: Object, program: str) -> Iterator[tuple[str, int]]:
    resources = container.get("resources", {})
    if resources.get("claims"):
        raise InvalidService("spec.devices.claims", f"{program} has no ResourceClaims. Use vendor and count.")
    for resource, count in resources.get("limits", {}).items():
        if resource in (NVIDIA, AMD):
            yield resource, int(count)
        elif resource in others(spec):
            raise InvalidService(
                f"spec.resources.{resource}",
                f"{program} has no resources but CPU, memory and devices. Remove it.",
            )
        elif "/" in resource:
            raise InvalidService(
                "spec.devices",
                f"{program} has no device of the kind {resource}, only whole ones of {NVIDIA} and {AMD}. "
                "Remove the profile or choose another vendor.",
            )
