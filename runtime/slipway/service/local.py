"""The same service as a process of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slipway.service.companions import companions
from slipway.service.engine import arguments, fetched_to
from slipway.service.fields import InvalidService
from slipway.service.origin import words_of
from slipway.service.pod import secret_variables
from slipway.service.resources import others
from slipway.service.spec import ServiceSpec

DEMO_IMAGE = "demo-model"
"""Last part of the name of an image that holds the model of `slipway demo`."""


@dataclass(frozen=True, slots=True)
class LocalStart:
    """What to start, what to fetch before, and what of the document has no meaning here."""

    argv: list[str]
    """The words after `slipway`."""
    environ: dict[str, str]
    warnings: list[str]
    """What the cluster would do and this machine does not; the server itself says the rest."""
    before: list[str]
    """The words after `slipway` of what fetches the model; empty where the server does it."""
    demo: bool
    """The model is that of `slipway demo`, fetched as there."""


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
    demo = model is None and _is_demo(spec)
    served = model or local_model(spec, environ)
    place = ["--host", host, "--port", str(port or spec.service.port)]
    words = [served, *place, *words_of(arguments(spec))]
    wanted = dict(environ)
    wanted.update({entry.name: entry.value for entry in spec.env if entry.value is not None})
    _require(spec, environ)
    _require_folders(spec)
    before = [] if model else _fetch(spec, environ)
    return LocalStart(["serve", *words], wanted, _without_meaning(spec), before, demo)


def local_model(spec: ServiceSpec, environ: Mapping[str, str]) -> str:
    """The name or path of the model on this machine. Raises InvalidService where it cannot be here."""
    model = spec.model
    if _is_demo(spec):
        from slipway.load.demo import FILE_NAME

        return str(_cache(environ) / "demo" / FILE_NAME)
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
    if model.s3:
        return str(fetched_to(model.s3, PurePosixPath(_cache(environ))))
    return model.hub.id if model.hub else model.path or ""


def _fetch(spec: ServiceSpec, environ: Mapping[str, str]) -> list[str]:
    source = spec.model.s3
    if source is None:
        return []
    words = ["fetch", source.uri, local_model(spec, environ)]
    return [*words, "--endpoint", source.endpoint] if source.endpoint else words


def _is_demo(spec: ServiceSpec) -> bool:
    if spec.model.image is None:
        return False
    name = spec.model.image.reference.rsplit("/", 1)[-1]
    return name.partition("@")[0].partition(":")[0] == DEMO_IMAGE


def _cache(environ: Mapping[str, str]) -> Path:
    named = environ.get("SLIPWAY_CACHE") or environ.get("VLLM_CACHE_ROOT")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "slipway"


def _require(spec: ServiceSpec, environ: Mapping[str, str]) -> None:
    """What a document refers to comes from the variables of this machine."""
    kept = dict(secret_variables(spec))
    for entry in spec.env:
        if reference := entry.secret or entry.config_map:
            kept[entry.name] = reference
    elsewhere = {
        name: f"the key {reference.key} of {reference.name} in a cluster" for name, reference in kept.items()
    }
    elsewhere |= {entry.name: f"{entry.field} of a pod" for entry in spec.env if entry.field}
    for name, source in elsewhere.items():
        if not environ.get(name):
            raise InvalidService(
                name,
                f"its value is {source}, which a process on this machine cannot read. Set the variable: "
                f"export {name}=…",
            )


def _require_folders(spec: ServiceSpec) -> None:
    mounts = [("spec.files", files.mount_path, files.config_map or files.secret) for files in spec.files]
    mounts += [
        ("spec.volumes", volume.mount_path, volume.name) for volume in spec.volumes if volume.mount_path
    ]
    for path, folder, source in mounts:
        if not Path(folder).exists():
            raise InvalidService(
                path,
                f"{folder} holds {source} of a cluster and does not exist on this machine. "
                "Put the files there.",
            )


def _without_meaning(spec: ServiceSpec) -> list[str]:
    found = []
    if spec.secrets.tls:
        found.append("spec.secrets.tls stays in the cluster: this process speaks plain HTTP.")
    if spec.trusted_ca:
        found.append(
            "spec.trustedCA stays in the cluster: SSL_CERT_FILE and AWS_CA_BUNDLE of this shell say whom to "
            "trust."
        )
    if names := [container.name for _, container in companions(spec)]:
        found.append(f"spec.initContainers and spec.sidecars stay in the cluster: {', '.join(names)}.")
    if spec.replicas > 1:
        found.append(f"spec.replicas is {spec.replicas}: one process runs here.")
    if spec.resources.cpu or spec.resources.memory or others(spec):
        found.append("spec.resources binds nothing here: the process may use the whole machine.")
    if spec.model.s3 and spec.model.s3.secret:
        found.append(
            f"spec.model.s3.secret is {spec.model.s3.secret} of a cluster: this machine's own AWS_* "
            "variables are used."
        )
    return found
