"""The settings of the operator: one file, which the chart mounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from slipway.service import InvalidService, Policy
from slipway.service.facts import ClusterFacts
from slipway.service.fields import Range, read, shown
from slipway.service.forms import ObjectName
from slipway.service.profile import ServingProfile, read_profile
from slipway.service.yaml_text import parse_yaml

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Of the pod that this runs in, else `default`."""
    return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.is_file() else "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The fields of the file, in camel case, each with its default. Read once, as the operator starts."""

    namespaces: tuple[ObjectName, ...] = ()
    """To serve; empty: the whole cluster."""
    lease_namespace: ObjectName = field(default_factory=own_namespace)
    """Of the Lease that keeps one operator active."""
    lease_name: ObjectName = "slipway-operator"
    facts: ClusterFacts = field(default_factory=ClusterFacts)
    """Images, credentials, and who scrapes metrics."""
    policy: Policy = field(default_factory=Policy)
    """What documents may ask for."""
    profiles: Mapping[str, ServingProfile] = field(default_factory=dict)
    """By name, each as the spec of a ServingProfile; not for a whole cluster."""
    log_format: Literal["text", "json"] = "text"
    health_port: Annotated[int, Range(0, 65535)] = 8080
    """Of /healthz, /readyz and /metrics; 0: the system chooses."""

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """Where to list and watch: each namespace, or None for all of them."""
        return tuple(dict.fromkeys(self.namespaces)) or (None,)


def read_settings(text: str) -> Settings:
    """Raises InvalidService, which names the field at fault."""
    whole = _fields(parse_yaml(text, "settings file"), "settings")
    specs = _fields(whole.pop("profiles", None), "settings.profiles")
    profiles = {name: read_profile(name, spec) for name, spec in specs.items()}
    return read(Settings, whole, "settings", profiles=profiles)


def _fields(value: object, path: str) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidService(path, f"{shown(value)} is not a mapping of fields.")
    return value
