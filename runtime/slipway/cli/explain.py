"""`slipway explain`: each argument and variable of a service's server, whence it is and what reads it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from slipway.args import status
from slipway.cli import documents
from slipway.service import InvalidService, warnings
from slipway.service.explain import Explained, explain, explain_unset
from slipway.service.origin import Origin, Source

WIDEST = 46
"""Characters of a column; what is wider pushes its neighbours to the next line."""

Row = tuple[str, str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The document, its profile, and how much to print."""
    documents.add_document(parser)
    documents.add_profile(parser)
    parser.add_argument("--all", action="store_true", help="also what nobody sets, as the server has it then")
    parser.add_argument("--json", action="store_true", help="print JSON, values as the container has them")


def run(arguments: argparse.Namespace) -> int:
    """Status 2 where the document cannot be accepted."""
    try:
        spec = documents.read_document(arguments.file, documents.ANYTHING)
        profile = documents.read_profile(arguments.profile, spec)
        made = explain(spec, profile)
        parts = {"arguments": made.arguments, "environment": made.environment}
        if arguments.all:
            unset = explain_unset(spec, profile)
            parts |= {"unset arguments": unset.arguments, "unset environment": unset.environment}
    except InvalidService as error:
        print(f"slipway explain: error: {error}", file=sys.stderr)
        return 2
    for warning in [*warnings(spec), *documents.without_profile(spec, profile)]:
        print(f"slipway explain: warning: {warning}", file=sys.stderr)
    if arguments.json:
        listed = {title.replace(" ", "_"): [_plain(one) for one in found] for title, found in parts.items()}
        print(json.dumps({"service": spec.name, **listed}, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(_table(title.upper(), found, spec.profile) for title, found in parts.items()))
    return 0


def _plain(one: Explained) -> dict[str, Any]:
    """Without what is empty."""
    origin = {"source": str(one.origin.source), "field": one.origin.field, "why": one.origin.why}
    reader = {"part": one.reader.part, "status": one.reader.status, "reason": one.reader.reason}
    parts = {"from": origin, "read_by": reader}
    kept = {title: {key: text for key, text in part.items() if text} for title, part in parts.items()}
    return {"name": one.name, "value": one.value, **kept}


def _table(title: str, found: list[Explained], profile: str | None) -> str:
    head = (title, "FROM", "READ BY")
    return "\n".join(
        _lines([head, *((one.text, _origin(one.origin, profile), _reader(one)) for one in found)])
    )


def _lines(rows: list[Row]) -> Iterator[str]:
    """Columns as wide as what is in them, up to WIDEST."""
    widths = [max(len(row[column]) for row in rows if len(row[column]) <= WIDEST) for column in range(2)]
    starts = (0, widths[0] + 2, widths[0] + widths[1] + 4)
    for row in rows:
        line = ""
        for start, cell in zip(starts, row, strict=True):
            if line and len(line) > start - 2:
                yield line
                line = ""
            line = line.ljust(start) + cell
        yield line.rstrip()


def _origin(origin: Origin, profile: str | None) -> str:
    leads = {
        Source.DOCUMENT: origin.field,
        Source.DERIVED: origin.field,
        Source.PROFILE: f"{origin.field} of profile {profile}",
        Source.OPERATOR: "fixed",
        Source.DEFAULT: "default",
    }
    return ": ".join(filter(None, (leads[origin.source], origin.why)))


def _reader(one: Explained) -> str:
    """The part of the server, and where nothing comes of the setting why."""
    reader = one.reader
    if reader.status == status.IMPLEMENTED:
        return f"{reader.part} ({reader.reason})" if reader.reason else reader.part
    return f"nothing, {reader.status}: {reader.reason}"
