"""The same service as a process of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.service.engine import arguments
from slipway.service.fields import InvalidService
from slipway.service.pod import secret_variables
from slipway.service.spec import ServiceSpec


@dataclass(frozen=True, slots=True)
class LocalStart:
    """What to start, and what of the document has no meaning here."""

    argv: list[str]
    """The words after `slipway`."""
    environ: dict[str, str]
    warnings: list[str]
    """What the cluster would do and this machine does not; the server itself says the rest."""


def local_start(
    spec: ServiceSpec,
    environ: Mapping[str, str],
    *,
    model: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
) -> LocalStart:
    """The server's command line and environment on this machine.

    `model` and `port` replace those of the document. Raises InvalidService where a secret is not in
    `environ` or the model is on a volume of a cluster.
    """
    words = arguments(
        spec,
        model=model or _model(spec),
        host=host,
        port=port or spec.service.port,
        tls=False,
    )
    wanted = dict(environ)
    wanted.update({entry.name: entry.value for entry in spec.env if entry.value is not None})
    _require(spec, environ)
    for files in spec.files:
        if not Path(files.mount_path).exists():
            source = files.config_map or files.secret
            raise InvalidService(
                "spec.files",
                f"{files.mount_path} holds {source} of a cluster and does not exist on this machine. "
                "Put the files there.",
            )
    return LocalStart(["serve", *words], wanted, _without_meaning(spec))


def _model(spec: ServiceSpec) -> str:
    model = spec.model
    if model.pvc or model.image:
        kind = "pvc" if model.pvc else "image"
        raise InvalidService(
            f"spec.model.{kind}",
            "a process on this machine cannot mount it. Name the model's folder with --model.",
        )
    if model.path and not Path(model.path).exists():
        raise InvalidService(
            "spec.model.path",
            f"{model.path} does not exist on this machine. Put the model there, or name it with --model.",
        )
    return model.hub or model.s3 or model.path or ""


def _require(spec: ServiceSpec, environ: Mapping[str, str]) -> None:
    """Values of Secrets and ConfigMaps come from the variables of this machine."""
    kept = dict(secret_variables(spec))
    for entry in spec.env:
        if reference := entry.secret or entry.config_map:
            kept[entry.name] = reference
    for name, reference in kept.items():
        if not environ.get(name):
            raise InvalidService(
                name,
                f"its value is the key {reference.key} of {reference.name} in a cluster, which a "
                f"process on this machine cannot read. Set the variable: export {name}=…",
            )


def _without_meaning(spec: ServiceSpec) -> list[str]:
    found = []
    if spec.secrets.tls:
        found.append("spec.secrets.tls stays in the cluster: this process speaks plain HTTP.")
    if spec.replicas > 1:
        found.append(f"spec.replicas is {spec.replicas}: one process runs here.")
    if spec.resources.cpu or spec.resources.memory:
        found.append("spec.resources binds nothing here: the process may use the whole machine.")
    return found
