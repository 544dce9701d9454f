"""The engine's part of the document, as the command line that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slipway.args.data_parallel import copies_here
from slipway.service.fields import InvalidService, shown, unknown_field
from slipway.service.origin import Setting, derived, fixed, said, words_of
from slipway.service.spec import S3Model, ServiceSpec
from slipway.sockets import EVERYWHERE

if TYPE_CHECKING:
    from slipway.args import Resolved

MODEL_FOLDER = PurePosixPath("/model")
"""Where a container finds a model that is mounted."""
CACHE = PurePosixPath("/cache")
"""Where it finds what outlives it, and may write."""
TLS_FOLDER = PurePosixPath("/etc/slipway/tls")
CA_FOLDER = PurePosixPath("/etc/slipway/ca")
CA_FILE = "ca.crt"
"""Authorities that are trusted, whatever their key is called."""


def container_arguments(spec: ServiceSpec, port: int) -> list[Setting]:
    """The words after `slipway serve` in a container."""
    return [
        _model(spec),
        Setting("host", ("--host", EVERYWHERE), fixed("all addresses of the pod")),
        Setting("port", ("--port", str(port)), fixed("clients see spec.service.port")),
        *arguments(spec),
        *_tls(spec),
        *_device(spec),
    ]


def arguments(spec: ServiceSpec) -> Iterator[Setting]:
    """What the document says of the server, wherever that runs."""
    from slipway.args.argv import settings

    model, drain = spec.model, spec.rollout.drain_seconds
    if model.hub and model.hub.revision:
        yield Setting("revision", ("--revision", model.hub.revision), said("spec.model.hub.revision"))
    if model.served_names:
        words = ("--served-model-name", *model.served_names)
        yield Setting("served_model_name", words, said("spec.model.servedNames"))
    for argument, words in settings(spec.engine):
        yield Setting(argument.name, words, said(f"spec.engine.{argument.camel}"))
    if drain is not None and "drainTimeout" not in spec.engine:
        yield Setting("drain_timeout", ("--drain-timeout", str(drain)), said("spec.rollout.drainSeconds"))


def fetched_to(source: S3Model, cache: PurePosixPath) -> PurePosixPath:
    """Where a folder or an object of a bucket comes to lie, so that services may share a cache: buckets of
    different stores may have one name."""
    host = urlsplit(source.endpoint).netloc.rpartition("@")[2].lower() if source.endpoint else ""
    store = f"s3@{host.replace(':', '_')}" if host else "s3"
    return cache / store / source.uri.removeprefix("s3://").rstrip("/")


def _model(spec: ServiceSpec) -> Setting:
    """What a container is told to serve."""
    model = spec.model
    if mounted := model.pvc or model.image:
        folder = str(MODEL_FOLDER / mounted.path) if mounted.path else str(MODEL_FOLDER)
        field = f"spec.model.{'pvc' if model.pvc else 'image'}"
        return Setting("model", (folder,), derived(field, "mounted there"))
    if model.s3:
        folder = str(fetched_to(model.s3, CACHE))
        return Setting("model", (folder,), derived("spec.model.s3.uri", "fetched there"))
    if model.hub:
        return Setting("model", (model.hub.id,), said("spec.model.hub.id"))
    return Setting("model", (model.path or "",), said("spec.model.path"))


def _tls(spec: ServiceSpec) -> Iterator[Setting]:
    """The files of the Secret, as they are mounted."""
    if (secret := spec.secrets.tls) is None:
        return
    files = {
        "ssl_certfile": ("certificate", secret.certificate),
        "ssl_keyfile": ("privateKey", secret.private_key),
        "ssl_ca_certs": ("authority", secret.authority),
    }
    for name, (field, key) in files.items():
        if key:
            words = (f"--{name.replace('_', '-')}", str(TLS_FOLDER / key))
            yield Setting(name, words, derived(f"spec.secrets.tls.{field}", "mounted there"))


def _device(spec: ServiceSpec) -> Iterator[Setting]:
    devices = spec.devices
    if devices.vendor in (None, "nvidia") and devices.present and "device" not in spec.engine:
        field = "spec.devices.vendor" if devices.vendor else "spec.devices.claims"
        # A pod that finds no GPU must fail, not serve slowly.
        yield Setting("device", ("--device", "cuda"), derived(field, "never the CPU instead"))


def resolved_of(spec: ServiceSpec) -> Resolved:
    """The arguments' resolved values under the document's own variables.

    Raises InvalidService at the field of `spec.engine` that the schema refuses, or at the variables.
    """
    from slipway.args import ArgumentError
    from slipway.args.schema import ARGUMENTS
    from slipway.envs import InvalidEnvironment

    try:
        _check_types(spec.engine)
        words = words_of(container_arguments(_without_files(spec), spec.service.port))
        return _resolved(tuple(words), tuple(literals(spec).items()))
    except InvalidEnvironment as error:
        path = "spec.env" if error.variable in literals(spec) else "spec.engine"
        raise InvalidService(path, str(error)) from None
    except ArgumentError as error:
        argument = ARGUMENTS.get(error.argument)
        path = f"spec.engine.{argument.camel}" if argument else "spec.engine"
        raise InvalidService(path, error.message) from None


@lru_cache(maxsize=64)  # a document is asked about more than once on its way to objects
def _resolved(words: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> Resolved:
    from slipway.args import resolve

    return resolve(words, dict(variables), dry_run=True)


def literals(spec: ServiceSpec) -> dict[str, str]:
    """The variables whose values stand in the document."""
    return {entry.name: entry.value for entry in spec.env if entry.value is not None}


def check_supported(spec: ServiceSpec) -> None:
    """Raises InvalidService where the document asks for what this release does not have, and its pods would
    only say so one after another. What an image of the user's own has, that image knows."""
    resolved = resolved_of(spec)
    copies, local = resolved["data_parallel_size"], copies_here(resolved)
    if copies > local:
        raise InvalidService(
            "spec.engine.dataParallelSize",
            f"{copies} with {local} on each node needs several nodes, which is not supported yet. Raise "
            "spec.replicas instead.",
            reason="MultiNodeNotSupported",
        )
    unbuilt = [] if spec.runtime.image else resolved.unbuilt()
    for argument, sentence in unbuilt:
        raise InvalidService(f"spec.engine.{argument.camel}", sentence, reason="NotSupported")


def grace_seconds(resolved: Resolved) -> int:
    """From SIGTERM to SIGKILL: drain grace, drain timeout and 10 s to end."""
    return int(resolved["drain_grace"]) + int(resolved["drain_timeout"]) + 10


def _without_files(spec: ServiceSpec) -> ServiceSpec:
    """The document without the template whose file only the container has."""
    template = spec.engine.get("chatTemplate")
    if not isinstance(template, str) or not template.startswith("/") or "{" in template:
        return spec
    return replace(spec, engine={k: v for k, v in spec.engine.items() if k != "chatTemplate"})


def _check_types(engine: Mapping[str, object]) -> None:
    """YAML's types are the arguments' own: the text "false" would turn a flag on."""
    from slipway.args.schema import CAMEL
    from slipway.args.values import from_yaml

    for name, value in engine.items():
        argument = CAMEL.get(name)
        if argument is None:
            raise unknown_field("spec.engine", name, list(CAMEL))
        if value is None:
            continue
        if argument.is_list and not isinstance(value, list):
            raise InvalidService(f"spec.engine.{name}", f"{shown(value)} is not a list.")
        for item in value if isinstance(value, list) else [value]:
            from_yaml(argument, item, name)
