"""The same service as one `podman run` command."""

from __future__ import annotations

import shlex

from slipway.service import firewall
from slipway.service.engine import MODEL_FOLDER, container_arguments, grace_seconds, resolve
from slipway.service.facts import Facts
from slipway.service.fields import InvalidService
from slipway.service.pod import CACHE, PORT, environment, image, read_only
from slipway.service.spec import ServiceSpec

UNITS = {"Ki": "k", "Mi": "m", "Gi": "g"}
"""Kubernetes' binary units in podman's spelling, which is binary too."""


def podman_command(spec: ServiceSpec, facts: Facts) -> str:
    """A line for a shell. Secrets come from variables of that shell, by name.

    Raises InvalidService where the document mounts what only a cluster has.
    """
    _refuse_cluster_only(spec)
    lines = [
        "podman run --rm",
        _words("--name", spec.name),
        _words("--publish", f"127.0.0.1:{spec.service.port}:{PORT}"),
        *_limits(spec),
        *_safety(spec),
        *_volumes(spec),
        *_environment(spec),
        *_devices(spec),
        image(spec, facts),
        shlex.join(["serve", *container_arguments(spec, PORT)]),
    ]
    return " \\\n  ".join(lines)


def _words(*words: str) -> str:
    return shlex.join(words)


def _refuse_cluster_only(spec: ServiceSpec) -> None:
    if spec.files:
        raise InvalidService(
            "spec.files", "podman has no ConfigMaps and Secrets of a cluster. Mount a folder instead."
        )
    if spec.secrets.tls:
        raise InvalidService(
            "spec.secrets.tls", "podman cannot read a Secret of a cluster. Remove it, or mount files."
        )
    if any(entry.config_map for entry in spec.env):
        raise InvalidService("spec.env", "podman cannot read a ConfigMap. Give the value itself.")
    if spec.devices.claims or spec.devices.profile:
        raise InvalidService("spec.devices", "podman has whole devices only. Use count.")


def _limits(spec: ServiceSpec) -> list[str]:
    grace = grace_seconds(resolve(spec, firewall.literals(spec)))
    limits = [_words("--stop-timeout", str(grace))]
    limits.append(_words("--shm-size", _size(spec.resources.shared_memory)))
    if spec.resources.memory:
        limits.append(_words("--memory", _size(spec.resources.memory)))
    if spec.resources.cpu:
        limits.append(_words("--cpus", _cpus(spec.resources.cpu)))
    return limits


def _size(quantity: str) -> str:
    for unit, letter in UNITS.items():
        if quantity.endswith(unit):
            return quantity.removesuffix(unit) + letter
    number = quantity.rstrip("mkMGTPi")
    scale = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ti": 2**40}
    unit = quantity[len(number) :]
    if unit not in scale:
        raise InvalidService("spec.resources", f"podman cannot express {quantity}. Use Mi or Gi.")
    return f"{int(float(number) * scale[unit])}b"


def _cpus(quantity: str) -> str:
    if quantity.endswith("m"):
        return f"{int(quantity.removesuffix('m')) / 1000:g}"
    return quantity


def _safety(spec: ServiceSpec) -> list[str]:
    options = ["--cap-drop=ALL", "--security-opt=no-new-privileges"]
    if read_only(spec):
        options.append("--read-only")
    options.append("--tmpfs=/tmp")
    if spec.security.run_as_user is not None:
        options.append(f"--userns=keep-id:uid={spec.security.run_as_user}")
    return options


def _volumes(spec: ServiceSpec) -> list[str]:
    model, cache = spec.model, spec.model.cache.pvc or f"{spec.name}-cache"
    volumes = [_words("--volume", f"{cache}:{CACHE}:U")]
    if model.pvc:
        volumes.append(_words("--volume", f"{model.pvc.name}:{MODEL_FOLDER}:ro"))
    if model.path:
        volumes.append(_words("--volume", f"{model.path}:{model.path}:ro"))
    if model.image:
        mount = f"type=image,source={model.image.reference},destination={MODEL_FOLDER}"
        volumes.append(_words("--mount", mount))
    return volumes


def _environment(spec: ServiceSpec) -> list[str]:
    options = []
    for entry in environment(spec):
        name, value = entry["name"], entry.get("value")
        # Without a value podman takes the variable from the shell that runs it.
        options.append(_words("--env", name if value is None else f"{name}={value}"))
    return options


def _devices(spec: ServiceSpec) -> list[str]:
    return [f"--device=nvidia.com/gpu={index}" for index in range(spec.devices.count)]
