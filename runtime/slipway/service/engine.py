"""The engine's part of the document, as the command line that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from slipway.args.data_parallel import copies_here
from slipway.service.fields import InvalidService, shown, unknown_field
from slipway.service.spec import ServiceSpec
from slipway.sockets import EVERYWHERE

if TYPE_CHECKING:
    from slipway.args import Resolved

MODEL_FOLDER = PurePosixPath("/model")
"""Where a container finds a model that is mounted."""
CACHE = PurePosixPath("/cache")
"""Where it finds what outlives it, and may write."""
TLS_FOLDER = PurePosixPath("/etc/slipway/tls")


def model_in_container(spec: ServiceSpec) -> str:
    """What a container is told to serve."""
    model = spec.model
    if mounted := model.pvc or model.image:
        return str(MODEL_FOLDER / mounted.path) if mounted.path else str(MODEL_FOLDER)
    if model.s3:
        return str(fetched_to(model.s3.uri, CACHE))
    return model.hub.id if model.hub else model.path or ""


def fetched_to(uri: str, cache: PurePosixPath) -> PurePosixPath:
    """Where a folder or an object of a bucket comes to lie, so that services may share a cache."""
    return cache / "s3" / uri.removeprefix("s3://").rstrip("/")


def arguments(spec: ServiceSpec, *, model: str, host: str, port: int, tls: bool) -> list[str]:
    """The words after `slipway serve`. With `tls`, the files are those of the mounted Secret."""
    from slipway.args.argv import render_argv

    words = [model, "--host", host, "--port", str(port)]
    if spec.model.hub and spec.model.hub.revision:
        words += ["--revision", spec.model.hub.revision]
    if spec.model.served_names:
        words += ["--served-model-name", *spec.model.served_names]
    words += render_argv(dict(spec.engine))
    if spec.rollout.drain_seconds is not None and "drainTimeout" not in spec.engine:
        words += ["--drain-timeout", str(spec.rollout.drain_seconds)]
    if tls and (secret := spec.secrets.tls):
        words += ["--ssl-certfile", str(TLS_FOLDER / secret.certificate)]
        words += ["--ssl-keyfile", str(TLS_FOLDER / secret.private_key)]
        if secret.authority:
            words += ["--ssl-ca-certs", str(TLS_FOLDER / secret.authority)]
    return words


def container_arguments(spec: ServiceSpec, port: int) -> list[str]:
    """The same in a container, which listens on all of its addresses."""
    words = arguments(spec, model=model_in_container(spec), host=EVERYWHERE, port=port, tls=True)
    if spec.devices.vendor in (None, "nvidia") and spec.devices.present and "device" not in spec.engine:
        words += ["--device", "cuda"]  # a pod that finds no GPU must fail, not serve slowly
    return words


def resolved_of(spec: ServiceSpec) -> Resolved:
    """The arguments' resolved values under the document's own variables.

    Raises InvalidService at the field of `spec.engine` that the schema refuses, or at the variables.
    """
    from slipway.args import ArgumentError
    from slipway.args.schema import ARGUMENTS
    from slipway.envs import InvalidEnvironment

    try:
        _check_types(spec.engine)
        words = container_arguments(_without_files(spec), spec.service.port)
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
