"""The documents that commands read, and the options that say what a cluster is like."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slipway import envs
from slipway.service import Facts, InvalidService, Policy, ServiceSpec, load
from slipway.service.profile import ServingProfile, check_profiled, load_profile
from slipway.service.yaml_text import parse_yaml

OPTIONAL_KINDS = ("ServiceMonitor", "PodMonitor")
ANYTHING = Policy(allow_code=True, permitted_env=tuple(envs.BY_NAME))
"""Where who runs the cluster has no say."""


def add_document(parser: argparse.ArgumentParser) -> None:
    """Adds `FILE`, also as `-f FILE`."""
    place = parser.add_mutually_exclusive_group(required=True)
    help_text = "InferenceService document, or - for standard input"
    place.add_argument("file", nargs="?", metavar="FILE", default=argparse.SUPPRESS, help=help_text)
    place.add_argument("-f", "--file", metavar="FILE", help="the same")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds what `facts` and `policy` read."""
    parser.add_argument("--image", metavar="IMAGE", help="runtime image where the document names none")
    parser.add_argument(
        "--has",
        action="append",
        default=[],
        choices=OPTIONAL_KINDS,
        help="kind that the cluster offers beside its own; may be repeated",
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="admit arguments that run a user's code, as policy.allowCode",
    )
    parser.add_argument(
        "--permit-env",
        action="append",
        default=[],
        metavar="NAME",
        help="variable that whoever runs the cluster permits; may be repeated",
    )
    parser.add_argument("--openshift", action="store_true", help="leave user and group to the platform")


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Adds `--profile FILE`."""
    parser.add_argument("--profile", metavar="FILE", help="ServingProfile that the document chooses")


def policy(arguments: argparse.Namespace) -> Policy:
    return Policy(allow_code=arguments.allow_code, permitted_env=tuple(arguments.permit_env))


def facts(arguments: argparse.Namespace) -> Facts:
    """All but the profile, which a document chooses."""
    known = Facts(kinds=frozenset(arguments.has), openshift=arguments.openshift)
    if image := arguments.image:
        known = replace(known, cpu_image=image, cuda_image=image, cpu_architecture="", cuda_architecture="")
    return known


def read_document(name: str, policy: Policy) -> ServiceSpec:
    """The document in the file, or in standard input for `-`. Raises InvalidService."""
    return load(_text(name), policy)


def read_profile(file: str | None, spec: ServiceSpec) -> ServingProfile | None:
    """The profile in the file, which must be the one that the document chooses. Raises InvalidService."""
    return read_profiles([file] if file else [], [spec]).get(spec.profile or "")


def read_profiles(files: Sequence[str], specs: Sequence[ServiceSpec]) -> dict[str, ServingProfile]:
    """The profiles by their names, each of which one of the documents must choose. Raises InvalidService."""
    profiles = {}
    for file in files:
        profile = load_profile(_text(file))
        choosing = [spec for spec in specs if spec.profile == profile.name]
        if not choosing:
            chosen = " and ".join(sorted({spec.profile for spec in specs if spec.profile})) or "none"
            sentence = f"the document chooses {chosen}, and {file} has {profile.name}. Let them agree."
            raise InvalidService("spec.profile", sentence)
        for spec in choosing:
            check_profiled(spec, profile)
        profiles[profile.name] = profile
    return profiles


def read_labels(name: str) -> dict[str, str]:
    """Those of a node, as `kubectl get node NAME --output yaml` prints it or as KEY=VALUE,KEY=VALUE. Raises
    InvalidService."""
    if "=" in name and "nvidia.com/" in name:
        return dict(label.partition("=")[::2] for label in name.split(","))
    match parse_yaml(_text(name), "Node"):
        case {"kind": "Node", "metadata": {"labels": dict(labels)}}:
            return {str(key): str(value) for key, value in labels.items()}
    raise InvalidService(name, "it is no Node with labels. `kubectl get node NAME --output yaml` prints one.")


def without_profile(spec: ServiceSpec, profile: ServingProfile | None) -> list[str]:
    """A warning where what the document chooses is not at hand."""
    if profile or not spec.profile:
        return []
    return [f"spec.profile: what {spec.profile} adds is left out. Add --profile with that ServingProfile."]


def _text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidService(name, f"it cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidService(name, "it is not UTF-8 text.") from None
