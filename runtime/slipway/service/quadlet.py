"""The same pod as a Quadlet unit: systemd starts podman, restarts it and stops it with time to drain."""

from __future__ import annotations

from collections.abc import Iterator

from slipway.exits import CATALOGUE
from slipway.service.containers import Container, Containers, Secret, containers
from slipway.service.facts import Facts
from slipway.service.fields import InvalidService, shown
from slipway.service.podman import PROGRAM, Option, options, server_options, words
from slipway.service.spec import ServiceSpec

KEYS = {
    "name": "ContainerName",
    "publish": "PublishPort",
    "volume": "Volume",
    "mount": "Mount",
    "tmpfs": "Tmpfs",
    "device": "AddDevice",
    "cap-drop": "DropCapability",
}
"""Options of podman that Quadlet has a key for, and takes whole: a quote would be part of the value."""
FLAGS: dict[Option, str] = {
    ("read-only", None): "ReadOnly=true",
    ("security-opt", "no-new-privileges"): "NoNewPrivileges=true",
}
DOUBLED = {ord("%"): "%%", ord("$"): "$$"}
"""Specifiers and variables: systemd looks for them in the command that Quadlet makes."""
ESCAPES = {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n", ord("\r"): r"\r", ord("\t"): r"\t", **DOUBLED}
PULL_SECONDS = 1800
"""Pulling the image counts as starting, and systemd's 90 s are short for gigabytes."""
MARGIN_SECONDS = 10
"""Beyond the grace period, so that podman's SIGKILL comes before systemd's."""


def quadlet_unit(spec: ServiceSpec, facts: Facts) -> str:
    """A `.container` file for podman 4.6 or newer. Secrets are podman's, named `secret-key`.

    Raises InvalidService where the document mounts what only a cluster has.
    """
    pod = containers(spec, facts, PROGRAM)
    sections = {
        "Unit": [f"Description=Slipway: {spec.name}"],
        "Container": [*_container(pod)],
        "Service": [*_service(pod)],
        "Install": ["WantedBy=default.target"],
    }
    secrets = {_name(secret) for container in (*pod.before, pod.server) for secret in _required(container)}
    texts = ["\n".join(_heading(spec.name, sorted(secrets)))]
    texts += ["\n".join([f"[{name}]", *lines]) for name, lines in sections.items()]
    return "\n\n".join(texts) + "\n"


def _heading(name: str, secrets: list[str]) -> Iterator[str]:
    yield f"# Save as ~/.config/containers/systemd/{name}.container, then:"
    for secret in secrets:
        yield f"#   podman secret create {secret} FILE"
    yield "#   systemctl --user daemon-reload"
    yield f"#   systemctl --user start {name}"


def _container(pod: Containers) -> Iterator[str]:
    server = pod.server
    if not server.image.isprintable() or " " in server.image:
        raise InvalidService("spec.runtime.image", f"{shown(server.image)} is not the name of an image.")
    yield f"Image={server.image}"
    for option in server_options(pod):
        yield FLAGS.get(option) or _key(option)
    for secret in _required(server):
        yield f"Secret={_secret(secret)}"
    yield f"Exec={_joined(server.words)}"


def _key(option: Option) -> str:
    name, value = option
    if name in KEYS and value is not None and value.isprintable():
        return f"{KEYS[name]}={value.translate(DOUBLED)}"
    if name == "env" and value is not None:
        return f"Environment={_quoted(value)}"
    return f"PodmanArgs={_joined(words(option))}"


def _service(pod: Containers) -> Iterator[str]:
    for container in pod.before:
        secrets = (("secret", _secret(secret)) for secret in _required(container))
        given = [word for option in (*options(container), *secrets) for word in words(option)]
        command = ["/usr/bin/podman", "run", "--rm", *given, container.image, *container.words]
        yield f"ExecStartPre={_joined(command)}"
    final = (str(code.code) for code in CATALOGUE if not code.retry)
    yield "Restart=on-failure"
    yield f"RestartPreventExitStatus={' '.join(final)}"
    yield f"TimeoutStartSec={PULL_SECONDS}"
    yield f"TimeoutStopSec={pod.grace_seconds + MARGIN_SECONDS}"


def _required(container: Container) -> list[Secret]:
    """podman does not start without a secret that it is told of: the optional ones stay out."""
    return [secret for secret in container.secrets if not secret.optional]


def _secret(secret: Secret) -> str:
    return f"{_name(secret)},type=env,target={secret.variable}"


def _name(secret: Secret) -> str:
    return f"{secret.name}-{secret.key}"


def _joined(parts: tuple[str, ...] | list[str]) -> str:
    return " ".join(map(_quoted, parts))


def _quoted(word: str) -> str:
    """A word as systemd splits it."""
    escaped = word.translate(ESCAPES)
    plain = word and not any(character.isspace() or character in "'\"\\;#" for character in word)
    return escaped if plain else f'"{escaped}"'
