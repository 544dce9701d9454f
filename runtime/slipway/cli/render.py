"""`slipway render`: what a service document becomes, without a cluster."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from slipway.service import (
    Facts,
    InvalidService,
    Policy,
    ServiceSpec,
    load,
    podman_command,
    quadlet_unit,
    render,
    warnings,
)
from slipway.service.profile import ServingProfile, check_profiled, load_profile

OPTIONAL_KINDS = ("ServiceMonitor", "PodMonitor")
UNBUILT_TARGETS = ("compose",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The document, the target and what the cluster offers."""
    add_document(parser)
    parser.add_argument(
        "--target",
        choices=("k8s", "podman", "quadlet", *UNBUILT_TARGETS),
        default="k8s",
        help="k8s prints YAML, podman a command line, quadlet a systemd unit (default: %(default)s)",
    )
    parser.add_argument("--image", metavar="IMAGE", help="runtime image where the document names none")
    parser.add_argument("--profile", metavar="FILE", help="ServingProfile that the document chooses")
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


def run(arguments: argparse.Namespace) -> int:
    """Status 2 where the document cannot be accepted."""
    if arguments.target in UNBUILT_TARGETS:
        return _refuse(f"--target {arguments.target} is not supported yet. Use k8s, podman or quadlet.")
    policy = Policy(allow_code=arguments.allow_code, env=frozenset(arguments.permit_env))
    facts = Facts(kinds=frozenset(arguments.has), openshift=arguments.openshift)
    if arguments.image:
        facts = replace(
            facts,
            cpu_image=arguments.image,
            cuda_image=arguments.image,
            cpu_architecture="",
            cuda_architecture="",
        )
    try:
        spec = read_document(arguments.file, policy)
        if arguments.profile:
            facts = replace(facts, profile=_profile(arguments.profile, spec))
        to_text = {"k8s": _yaml, "podman": _command, "quadlet": quadlet_unit}[arguments.target]
        text = to_text(spec, facts)
    except InvalidService as error:
        return _refuse(str(error))
    for warning in [*warnings(spec), *_left_out(spec, facts, arguments.target)]:
        print(f"slipway render: warning: {warning}", file=sys.stderr)
    sys.stdout.write(text)
    return 0


def add_document(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--file",
        required=True,
        metavar="FILE",
        help="InferenceService document, or - for standard input",
    )


def read_document(name: str, policy: Policy) -> ServiceSpec:
    """The document in the file, or in standard input for `-`. Raises InvalidService."""
    return load(_text(name), policy)


def _text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidService(name, f"it cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidService(name, "it is not UTF-8 text.") from None


def _profile(file: str, spec: ServiceSpec) -> ServingProfile:
    """The profile in the file, which must be the one that the document chooses. Raises InvalidService."""
    profile = load_profile(_text(file))
    if profile.name != spec.profile:
        chosen = f"the document chooses {spec.profile}" if spec.profile else "the document chooses none"
        raise InvalidService("spec.profile", f"{chosen}, and {file} has {profile.name}. Let them agree.")
    check_profiled(spec, profile)
    return profile


def _command(spec: ServiceSpec, facts: Facts) -> str:
    return podman_command(spec, facts) + "\n"


def _yaml(spec: ServiceSpec, facts: Facts) -> str:
    import yaml

    class Whole(yaml.SafeDumper):
        """Writes what stands in two places twice: people read it, and anchors hide what is where."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    text: str = yaml.dump_all(render(spec, facts), Dumper=Whole, sort_keys=False, allow_unicode=True)
    return text


def _left_out(spec: ServiceSpec, facts: Facts, target: str) -> list[str]:
    found = []
    kind = spec.monitoring.kind
    if spec.monitoring.enabled and not facts.has(kind) and target == "k8s":
        found.append(
            f"spec.monitoring: no {kind} is printed. Add --has {kind} where the cluster knows that kind."
        )
    if spec.profile and not facts.profile:
        found.append(
            f"spec.profile: what {spec.profile} adds is not printed. Add --profile with the file of that "
            "ServingProfile."
        )
    return found


def _refuse(sentence: str) -> int:
    print(f"slipway render: error: {sentence}", file=sys.stderr)
    return 2
