"""`slipway render`: what a service document becomes, without a cluster."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from slipway.cli import documents
from slipway.service import (
    Facts,
    InvalidService,
    ServiceSpec,
    podman_command,
    quadlet_unit,
    render,
    warnings,
)

UNBUILT_TARGETS = ("compose",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The document, the target and what the cluster offers."""
    documents.add_document(parser)
    parser.add_argument(
        "--target",
        choices=("k8s", "podman", "quadlet", *UNBUILT_TARGETS),
        default="k8s",
        help="k8s prints YAML, podman a command line, quadlet a systemd unit (default: %(default)s)",
    )
    documents.add_profile(parser)
    documents.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Status 2 where the document cannot be accepted."""
    if arguments.target in UNBUILT_TARGETS:
        return _refuse(f"--target {arguments.target} is not supported yet. Use k8s, podman or quadlet.")
    try:
        spec = documents.read_document(arguments.file, documents.policy(arguments))
        profile = documents.read_profile(arguments.profile, spec)
        facts = replace(documents.facts(arguments), profile=profile)
        to_text = {"k8s": _yaml, "podman": _command, "quadlet": quadlet_unit}[arguments.target]
        text = to_text(spec, facts)
    except InvalidService as error:
        return _refuse(str(error))
    for warning in [*warnings(spec), *_left_out(spec, facts, arguments.target)]:
        print(f"slipway render: warning: {warning}", file=sys.stderr)
    sys.stdout.write(text)
    return 0


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
    return [*found, *documents.without_profile(spec, facts.profile)]


def _refuse(sentence: str) -> int:
    print(f"slipway render: error: {sentence}", file=sys.stderr)
    return 2
