"""`slipway render`: what a service document becomes, without a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

from slipway.cli import documents
from slipway.service import (
    Facts,
    InvalidService,
    ServiceSpec,
    compose_file,
    podman_command,
    quadlet_unit,
    render,
    warnings,
)
from slipway.service.yaml_text import print_yaml


def _command(spec: ServiceSpec, facts: Facts) -> str:
    return podman_command(spec, facts) + "\n"


def _yaml(spec: ServiceSpec, facts: Facts) -> str:
    return print_yaml(*render(spec, facts))


TARGETS: dict[str, Callable[[ServiceSpec, Facts], str]] = {
    "k8s": _yaml,
    "podman": _command,
    "quadlet": quadlet_unit,
    "compose": compose_file,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The document, the target and what the cluster offers."""
    documents.add_document(parser)
    parser.add_argument(
        "--target",
        choices=tuple(TARGETS),
        default="k8s",
        help="k8s prints YAML, podman a command line, quadlet a systemd unit, compose a Compose file "
        "(default: %(default)s)",
    )
    documents.add_profile(parser)
    documents.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Status 2 where the document cannot be accepted."""
    try:
        spec = documents.read_document(arguments.file, documents.policy(arguments))
        profile = documents.read_profile(arguments.profile, spec)
        facts = replace(documents.facts(arguments), profile=profile)
        text = TARGETS[arguments.target](spec, facts)
    except InvalidService as error:
        return _refuse(str(error))
    for warning in [*warnings(spec), *_left_out(spec, facts, arguments.target)]:
        print(f"slipway render: warning: {warning}", file=sys.stderr)
    sys.stdout.write(text)
    return 0


def _left_out(spec: ServiceSpec, facts: Facts, target: str) -> list[str]:
    found = []
    kind = spec.monitoring.kind
    if spec.monitoring.enabled and not facts.has(kind) and target == "k8s":
        found.append(
            f"spec.monitoring: no {kind} is printed. Add --has {kind} where the cluster knows that kind."
        )
    return [*found, *documents.without_profile(spec, facts.profile)]


def _refuse(sentence: str) -> int:
    print(f"slipway render: error: {sentence}", file=sys.stderr)
    return 2
