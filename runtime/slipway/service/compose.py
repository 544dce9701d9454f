"""The same pod as a Compose file, for `docker compose` and `podman-compose`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slipway.service.containers import (
    NVIDIA,
    Container,
    Containers,
    ImageVolume,
    Scratch,
    Secret,
    SharedMemory,
    Volume,
    containers,
)
from slipway.service.engine import CACHE
from slipway.service.facts import Facts
from slipway.service.spec import ServiceSpec
from slipway.service.yaml_text import print_yaml

PROGRAM = "Compose"
RESTARTS = 3
"""After a failure. Compose knows no exit statuses that end for good, so that there must be an end."""
PROBE = (
    "import http.client, sys; asked = http.client.HTTPConnection('127.0.0.1', {port}, timeout=5); "
    "asked.request('GET', '{path}'); sys.exit(asked.getresponse().status != 200)"
)
"""In the image, which has no curl. No proxy of the environment stands between."""
START_SECONDS = 1800
"""In which a server that is not ready loads, and is not unhealthy."""

Object = dict[str, Any]


def compose_file(spec: ServiceSpec, facts: Facts) -> str:
    """A compose.yaml of one project. Secrets come from variables of the shell, by name.

    Raises InvalidService where the document mounts what only a cluster has.
    """
    pod = containers(spec, facts, PROGRAM)
    fetches = {f"{pod.name}-fetch": _service(container) for container in pod.before}
    done = {name: {"condition": "service_completed_successfully"} for name in fetches}
    server = _service(pod.server) | _of_the_server(pod) | ({"depends_on": done} if done else {})
    project: Object = {"name": pod.name, "services": {**fetches, pod.name: server}}
    mounts = [mount for container in (*pod.before, pod.server) for mount in container.mounts]
    project["volumes"] = {mount.name: _volume(mount) for mount in mounts if isinstance(mount, Volume)}
    return "\n".join(_heading(pod)) + "\n" + print_yaml(project)


def _heading(pod: Containers) -> Iterator[str]:
    yield "# Save as compose.yaml, then:"
    for secret in (secret for container in (*pod.before, pod.server) for secret in container.secrets):
        wanted = "optionally, " if secret.optional else ""
        yield f"#   export {secret.variable}=…   # {wanted}the key {secret.key} of the Secret {secret.name}"
    yield "#   docker compose up --detach --wait"


def _service(container: Container) -> Object:
    made: Object = {
        "image": container.image,
        "command": [_literal(word) for word in container.words],
        "environment": {
            **{name: _literal(value) for name, value in container.variables.items()},
            **{secret.variable: _from_shell(secret) for secret in container.secrets},
        },
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": container.read_only,
    }
    made["security_opt"] += [f"label:{part}:{value}" for part, value in container.label.items()]
    hosts = container.hosts
    given = {
        "user": container.user,
        "group_add": list(container.groups),
        "mem_limit": container.memory,
        "cpus": container.cpus,
        "extra_hosts": [f"{name}={address}" for name, address in hosts.lines],
        "dns": list(hosts.servers),
        "dns_search": list(hosts.searches),
        "dns_opt": list(hosts.options),
    }
    made |= {name: value for name, value in given.items() if value}
    return made | _mounts(container) | _devices(container)


def _of_the_server(pod: Containers) -> Object:
    probe = PROBE.format(port=pod.port, path=pod.ready_path)
    return {
        "ports": [f"127.0.0.1:{pod.host_port}:{pod.port}"],
        "healthcheck": {
            "test": ["CMD", "python", "-c", probe],
            "interval": "5s",
            "timeout": "10s",
            "start_period": f"{START_SECONDS}s",
        },
        "restart": f"on-failure:{RESTARTS}",
        "stop_grace_period": f"{pod.grace_seconds}s",
    }


def _mounts(container: Container) -> Object:
    made: Object = {}
    for mount in container.mounts:
        match mount:
            case SharedMemory(size):
                made["shm_size"] = size
            case Scratch(path, size):
                made.setdefault("tmpfs", []).append(f"{path}:size={size}" if size else path)
            case Volume(name, path, read_only):
                made.setdefault("volumes", []).append(f"{name}:{path}{':ro' if read_only else ''}")
            case ImageVolume(reference, path):
                image = {"type": "image", "source": reference, "target": path}
                made.setdefault("volumes", []).append(image)
    return made


def _volume(volume: Volume) -> Object:
    """One that only gives must be there; the cache may begin empty. Neither is named after the project."""
    return {"name": volume.name} | ({"external": True} if volume.path != str(CACHE) else {})


def _devices(container: Container) -> Object:
    made: Object = {}
    for kind, count in container.devices.items():
        if kind == NVIDIA:
            wanted = {"driver": "nvidia", "device_ids": [str(index) for index in range(count)]}
            reserved = {"devices": [wanted | {"capabilities": ["gpu"]}]}
            made["deploy"] = {"resources": {"reservations": reserved}}
        else:
            made["devices"] = [f"{kind}={index}" for index in range(count)]
    return made


def _literal(text: str) -> str:
    """Text in which Compose looks for no variables."""
    return text.replace("$", "$$")


def _from_shell(secret: Secret) -> str | None:
    """Null takes the variable where it is set."""
    if secret.optional:
        return None
    return f"${{{secret.variable}:?set it to the key {secret.key} of the Secret {secret.name}}}"
