"""`slipway diff`: what a changed document changes in a cluster, and whether pods restart."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from slipway.cli import documents
from slipway.service import Facts, InvalidService, ServiceSpec, warnings
from slipway.service.diff import Diff, diff
from slipway.service.differences import Difference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two documents and what the cluster offers."""
    parser.add_argument("old", metavar="OLD", help="document as it is, also of kubectl get --output yaml")
    parser.add_argument("new", metavar="NEW", help="document as it would be; one may be -, standard input")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="FILE",
        help="ServingProfile that a document chooses; may be repeated",
    )
    documents.add_cluster(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """As diff(1): 0 where nothing changes, 1 where something does, 2 where a document cannot be accepted."""
    try:
        if (arguments.old, arguments.new) == ("-", "-"):
            raise InvalidService("NEW", "standard input has one document. Name a file.")
        # What runs was admitted, whatever is permitted now.
        old = documents.read_document(arguments.old, documents.ANYTHING)
        new = documents.read_document(arguments.new, documents.policy(arguments))
        old_facts, new_facts = _facts(arguments, old, new)
        found = diff(old, new, old_facts, new_facts)
    except InvalidService as error:
        print(f"slipway diff: error: {error}", file=sys.stderr)
        return 2
    for warning in [*warnings(new), *documents.without_profile(new, new_facts.profile)]:
        print(f"slipway diff: warning: {warning}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(_plain(new, found), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(new, found)))
    return 0 if found.empty else 1


def _facts(arguments: argparse.Namespace, *specs: ServiceSpec) -> Iterator[Facts]:
    """Of each document, with the profile that it chooses where that is at hand. Raises InvalidService."""
    known, profiles = documents.facts(arguments), documents.read_profiles(arguments.profile, specs)
    for spec in specs:
        yield replace(known, profile=profiles.get(spec.profile or ""))


def _plain(spec: ServiceSpec, found: Diff) -> dict[str, Any]:
    def leaves(differences: list[Difference]) -> list[dict[str, str]]:
        return [{"path": one.path, "before": one.found, "after": one.wanted} for one in differences]

    before, after = found.replicas
    return {
        "service": spec.name,
        "restart": found.restart,
        "because": leaves(found.because),
        "replicas": {"before": before, "after": after},
        "objects": [
            {"kind": one.kind, "name": one.name, "change": one.change, "fields": leaves(one.fields)}
            for one in found.objects
        ],
    }


def _lines(spec: ServiceSpec, found: Diff) -> Iterator[str]:
    before, after = found.replicas
    if found.empty:
        yield f"{spec.name}: nothing changes"
        return
    if found.restart:
        yield f"{spec.name}: {'pods restart' if before and after else 'the next pods differ'}, because of"
        yield from (f"  {one.change()}" for one in found.because)
    else:
        yield f"{spec.name}: no pod restarts"
    if before != after:
        yield f"{spec.name}: {before} → {after} pods"
    yield ""
    for one in found.objects:
        yield f"{one.kind} {one.name}: {one.change}"
        yield from (f"  {field.change()}" for field in one.fields)
