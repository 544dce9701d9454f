"""The settings of the operator: flags, each with an environment variable beside it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slipway.service import Facts, Policy
from slipway.service.fields import convert, written
from slipway.service.peers import Peer
from slipway.service.profile import ServingProfile, read_profile
from slipway.service.spec import TrustedCa

PREFIX = "SLIPWAY_OPERATOR_"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULTS = Facts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`namespaces` empty means the whole cluster."""

    namespaces: tuple[str, ...] = ()
    lease_namespace: str = "default"
    lease_name: str = "slipway-operator"
    cpu_image: str = DEFAULTS.cpu_image
    cuda_image: str = DEFAULTS.cuda_image
    cpu_architecture: str = DEFAULTS.cpu_architecture
    cuda_architecture: str = DEFAULTS.cuda_architecture
    image_pull_secrets: tuple[str, ...] = ()
    trusted_ca: TrustedCa | None = None
    openshift: bool = False
    allow_code: bool = False
    permitted_arguments: frozenset[str] = frozenset()
    permitted_env: frozenset[str] = frozenset()
    images: tuple[str, ...] = ()
    service_accounts: frozenset[str] = frozenset()
    file_paths: tuple[str, ...] = ()
    profiles: Mapping[str, ServingProfile] = field(default_factory=dict)
    monitoring_labels: Mapping[str, str] = field(default_factory=dict)
    scrapers: Sequence[Mapping[str, Any]] = DEFAULTS.scrapers
    log_format: Literal["text", "json"] = "text"
    health_port: int = 8080

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """Where to list and watch: each namespace, or None for all of them."""
        return self.namespaces or (None,)

    @property
    def policy(self) -> Policy:
        """What documents may ask for."""
        return Policy(
            allow_code=self.allow_code,
            arguments=self.permitted_arguments,
            env=self.permitted_env,
            images=self.images,
            service_accounts=self.service_accounts,
            file_paths=self.file_paths,
        )


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting on the command line; its environment twin is read where the flag is absent."""

    name: str
    field: str
    meaning: str
    read: Callable[[list[str]], Any]
    """From all values given for it. Raises ValueError with a sentence."""
    switch: bool = False

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper().replace("-", "_")


def _words(values: list[str]) -> tuple[str, ...]:
    """Values of a flag that may be repeated; commas part them too."""
    return tuple(dict.fromkeys(word for value in values for word in value.split(",") if word))


def _names(values: list[str]) -> frozenset[str]:
    return frozenset(_words(values))


def _yes(values: list[str]) -> bool:
    word = values[-1].lower()
    if word not in ("true", "false", "1", "0", ""):
        raise ValueError(f"{values[-1]!r} is neither true nor false.")
    return word in ("true", "1")


def _labels(values: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in _words(values)]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise ValueError(f"{key!r} is no label: write KEY=VALUE.")
    return {key: value for key, _, value in pairs}


def _profiles(values: list[str]) -> dict[str, ServingProfile]:
    specs = json.loads(values[-1])
    if not isinstance(specs, dict):
        raise ValueError("it is no object of specs by name.")
    return {name: read_profile(name, spec) for name, spec in specs.items()}


def _peers(values: list[str]) -> list[dict[str, Any]]:
    peers = json.loads(values[-1])
    read = [convert(Peer, peer, f"[{index}]") for index, peer in enumerate(peers)]
    return [written(peer) for peer in read]


def _authorities(values: list[str]) -> TrustedCa:
    name, _, key = values[-1].partition("/")
    found = convert(TrustedCa, {"configMap": name, "key": key or None}, "trustedCA")
    assert isinstance(found, TrustedCa)
    return found


def _port(values: list[str]) -> int:
    if not values[-1].isdecimal() or not 0 <= int(values[-1]) <= 65535:
        raise ValueError(f"{values[-1]!r} is no port: write a number up to 65535; 0 lets the system choose.")
    return int(values[-1])


def _format(values: list[str]) -> str:
    if values[-1] not in ("text", "json"):
        raise ValueError(f"{values[-1]!r} is no log format: write text or json.")
    return values[-1]


def _last(values: list[str]) -> str:
    return values[-1]


FLAGS = (
    Flag("namespace", "namespaces", "serve this namespace; repeat for more", _words),
    Flag(
        "lease-namespace",
        "lease_namespace",
        "the namespace of the Lease that keeps one operator active",
        _last,
    ),
    Flag("lease-name", "lease_name", "the name of that Lease", _last),
    Flag("cpu-image", "cpu_image", "the runtime's image for services without devices", _last),
    Flag("cuda-image", "cuda_image", "the runtime's image for NVIDIA devices", _last),
    Flag("cpu-architecture", "cpu_architecture", "the nodes' that can run the former; empty: all can", _last),
    Flag("cuda-architecture", "cuda_architecture", "the nodes' that can run the latter", _last),
    Flag(
        "image-pull-secret",
        "image_pull_secrets",
        "pull with this Secret of theirs in services that name none",
        _words,
    ),
    Flag(
        "trusted-ca",
        "trusted_ca",
        "trust the authorities of this ConfigMap of theirs, NAME or NAME/KEY, in services that name none",
        _authorities,
    ),
    Flag("openshift", "openshift", "leave user ids to the namespace's range", _yes, switch=True),
    Flag("allow-code", "allow_code", "permit arguments that load code of a model", _yes, switch=True),
    Flag("permit-argument", "permitted_arguments", "permit this one of them", _names),
    Flag("permit-env", "permitted_env", "permit this environment variable in services", _names),
    Flag("admit-image", "images", "admit images of this name, registry or folder only", _words),
    Flag("admit-service-account", "service_accounts", "admit this account only", _names),
    Flag("admit-file-path", "file_paths", "admit files below this folder only", _words),
    Flag(
        "profiles", "profiles", "ServingProfiles in JSON, a spec by name; not for a whole cluster", _profiles
    ),
    Flag("monitoring-label", "monitoring_labels", "KEY=VALUE on every monitor", _labels),
    Flag(
        "scrapers", "scrapers", "who scrapes metrics, in JSON, as a list of peers of a NetworkPolicy", _peers
    ),
    Flag("log-format", "log_format", "text or json", _format),
    Flag("health-port", "health_port", "the port of /healthz, /readyz and /metrics", _port),
)


def read_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """A flag wins over its environment variable, which wins over the default.

    Exits with status 2 and a sentence where a value is malformed.
    """
    parser = argparse.ArgumentParser(
        prog="slipway-operator", description="Runs InferenceServices on Kubernetes."
    )
    for flag in FLAGS:
        meaning = f"{flag.meaning} [{flag.env}]"
        if flag.switch:
            parser.add_argument(f"--{flag.name}", action="append_const", const="true", help=meaning)
        else:
            parser.add_argument(f"--{flag.name}", action="append", metavar="VALUE", help=meaning)
    given = vars(parser.parse_args(arguments))
    values: dict[str, Any] = {"lease_namespace": own_namespace()}
    for flag in FLAGS:
        texts = given[flag.name.replace("-", "_")]
        source = f"--{flag.name}"
        if texts is None and flag.env in environment:
            texts, source = [environment[flag.env]], flag.env
        if texts is None:
            continue
        try:
            values[flag.field] = flag.read(texts)
        except ValueError as error:
            parser.error(f"{source}: {error}")
    return Settings(**values)


def own_namespace() -> str:
    """Of the pod that this runs in, else `default`."""
    return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.is_file() else "default"
