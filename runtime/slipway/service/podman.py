"""The same pod under podman: one container, or one that fetches the model and then the server."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from slipway.service.containers import (
    Container,
    Containers,
    Hosts,
    ImageVolume,
    Mount,
    Scratch,
    SharedMemory,
    Volume,
    containers,
)
from slipway.service.facts import Facts
from slipway.service.spec import ServiceSpec

PROGRAM = "podman"

Option = tuple[str, str | None]
"""`podman run --NAME VALUE`; a flag has no value."""


def podman_command(spec: ServiceSpec, facts: Facts) -> str:
    """A line for a shell. Secrets come from variables of that shell, by name.

    Raises InvalidService where the document mounts what only a cluster has.
    """
    pod = containers(spec, facts, PROGRAM)
    lines = [_line(container, options(container)) for container in pod.before]
    return " && \\\n".join([*lines, _line(pod.server, server_options(pod))])


def server_options(pod: Containers) -> list[Option]:
    """Of the server, which has a name and a port."""
    return [
        ("name", pod.name),
        ("publish", f"127.0.0.1:{pod.host_port}:{pod.port}"),
        ("stop-timeout", str(pod.grace_seconds)),
        *options(pod.server),
    ]


def options(container: Container) -> list[Option]:
    """All but secrets."""
    return [
        *_limits(container),
        *_safety(container),
        *_names(container.hosts),
        *map(_mount, container.mounts),
        *(("env", f"{name}={value}") for name, value in container.variables.items()),
        *(
            ("device", f"{kind}={index}")
            for kind, count in container.devices.items()
            for index in range(count)
        ),
    ]


def words(option: Option) -> list[str]:
    """An option as the words of a command line."""
    name, value = option
    return [f"--{name}"] if value is None else [f"--{name}", value]


def _line(container: Container, given: list[Option]) -> str:
    # Without a value podman takes the variable from the shell that runs it.
    secrets = [("env", secret.variable) for secret in container.secrets]
    return " \\\n  ".join(
        [
            "podman run --rm",
            *(shlex.join(words(option)) for option in [*given, *secrets]),
            shlex.quote(container.image),
            shlex.join(container.words),
        ]
    )


def _limits(container: Container) -> Iterator[Option]:
    if container.memory:
        yield "memory", container.memory
    if container.cpus:
        yield "cpus", container.cpus


def _safety(container: Container) -> Iterator[Option]:
    yield "cap-drop", "ALL"
    yield "security-opt", "no-new-privileges"
    if container.read_only:
        yield "read-only", None
    if container.user:
        yield "user", container.user
    yield from (("group-add", group) for group in container.groups)
    yield from (("security-opt", f"label={part}:{value}") for part, value in container.label.items())


def _names(hosts: Hosts) -> Iterator[Option]:
    yield from (("add-host", f"{name}:{address}") for name, address in hosts.lines)
    yield from (("dns", address) for address in hosts.servers)
    yield from (("dns-search", domain) for domain in hosts.searches)
    yield from (("dns-option", option) for option in hosts.options)


def _mount(mount: Mount) -> Option:
    match mount:
        case SharedMemory(size):
            return "shm-size", size
        case Scratch(path, size):
            return "tmpfs", f"{path}:size={size}" if size else path
        case Volume(name, path, read_only):
            return "volume", f"{name}:{path}:{'ro' if read_only else 'U'}"
        case ImageVolume(reference, path):
            return "mount", f"type=image,source={reference},destination={path}"
