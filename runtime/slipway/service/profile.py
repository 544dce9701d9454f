"""A serving profile: what whoever runs the cluster settles once, for the services that choose it.

It has fields of an InferenceService's spec, in the same places. What a service says itself goes before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from slipway import envs
from slipway.args.compatibility import misfits, read_schema
from slipway.service import firewall
from slipway.service.devices import check_devices
from slipway.service.engine import container_arguments, resolved_of
from slipway.service.fields import InvalidService, identity, read, shown
from slipway.service.labels import check_labels
from slipway.service.origin import words_of
from slipway.service.pod_parts import EnvVar
from slipway.service.resources import check_resources
from slipway.service.spec import (
    API_VERSION,
    Devices,
    Metadata,
    Model,
    Resources,
    Runtime,
    Scheduling,
    Security,
    ServiceSpec,
    TrustedCa,
)
from slipway.service.uncounted import check_uncounted
from slipway.service.yaml_text import parse_yaml

PROFILE_KIND = "ServingProfile"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProfile:
    """Devices, image and place for services that choose it by `spec.profile`."""

    name: str
    runtime: Runtime = field(default_factory=Runtime)
    env: tuple[EnvVar, ...] = ()
    """Variables of the servers, beside a service's own."""
    trusted_ca: TrustedCa | None = None
    """Whose certificates servers trust: a ConfigMap in the namespace of each."""
    devices: Devices = field(default_factory=Devices)
    resources: Resources = field(default_factory=Resources)
    scheduling: Scheduling = field(default_factory=Scheduling)
    security: Security = field(default_factory=Security)
    schema: Mapping[str, object] | None = None
    """What the image prints with `--print-schema=short` and has in its label `dev.slipway.schema`: arguments
    that it does not take are refused before a pod starts. For an image of another version than ours."""


PARTS = tuple(one.name for one in fields(ServingProfile) if one.name not in ("name", "schema"))


def load_profile(text: str) -> ServingProfile:
    """The one ServingProfile in the YAML text. Raises InvalidService."""
    document: Any = parse_yaml(text, PROFILE_KIND)
    match document:
        case {"apiVersion": version, "kind": kind, "metadata": {"name": str(name)}}:
            if (version, kind) == (API_VERSION, PROFILE_KIND):
                return read_profile(name, document.get("spec"))
    raise InvalidService("document", f"{shown(document)} is no {PROFILE_KIND} of {API_VERSION} with a name.")


def read_profile(name: str, spec: object) -> ServingProfile:
    """The profile of this name. Raises InvalidService where no service could choose it."""
    try:
        profile = read(ServingProfile, {} if spec is None else spec, "spec", name=name)
        _check_schema(profile)
        check_profiled(ServiceSpec(metadata=Metadata(name="any"), model=Model(path="/model")), profile)
    except InvalidService as error:
        raise InvalidService(
            "spec.profile", f"{PROFILE_KIND} {name} cannot be used: {error}", reason="ProfileInvalid"
        ) from None
    return profile


def _check_schema(profile: ServingProfile) -> None:
    if profile.schema is None:
        return
    if profile.runtime.image is None:
        raise InvalidService(
            "spec.schema",
            "it says what runtime.image takes, and there is none. Name the image, or leave it out.",
        )
    try:
        read_schema(profile.schema)
    except ValueError as error:
        raise InvalidService("spec.schema", str(error)) from None


def misfits_of(spec: ServiceSpec, profile: ServingProfile | None) -> list[str] | None:
    """What the image would refuse of a document with its profile's parts; None without its schema."""
    if profile is None or profile.schema is None or spec.runtime.image != profile.runtime.image:
        return None
    words = words_of(container_arguments(spec, spec.service.port))
    return list(misfits(read_schema(profile.schema), spec.engine, words))


def check_profiled(spec: ServiceSpec, profile: ServingProfile | None) -> ServiceSpec:
    """The document with what its profile adds. Raises InvalidService where the two do not go together."""
    whole = with_profile(spec, profile)
    if not whole.devices.present:
        check_uncounted(spec)
    if profile is not None:
        # Whoever writes profiles runs the cluster.
        firewall.check_env(whole, envs.BY_NAME)
        check_devices(whole, resolved_of(whole))
        check_resources(whole, resolved_of(whole))
        check_labels(whole)
    return whole


def with_profile(spec: ServiceSpec, profile: ServingProfile | None) -> ServiceSpec:
    """The document with what its profile adds, and which needs none any more."""
    if profile is None:
        return spec
    parts = {name: _over(getattr(profile, name), getattr(spec, name)) for name in PARTS}
    # A service that names devices means those: half of them from here and half from there would be none.
    devices = replace(profile.devices, count=spec.devices.count)
    parts["devices"] = spec.devices if spec.devices.present else devices
    return replace(spec, profile=None, **parts)


def _over(base: Any, own: Any) -> Any:
    """What is the service's own where it says anything; maps and lists have both."""
    if base is not None and is_dataclass(own):
        both = {one.name: _over(getattr(base, one.name), getattr(own, one.name)) for one in fields(own)}
        return replace(own, **both)  # type: ignore[type-var]
    match own:
        case Mapping():
            return {**base, **own}
        case tuple():
            named = [identity(item) for item in own]
            return (*(item for item in base if identity(item) not in named), *own)
    return base if own is None else own
