"""What becomes of each argument, environment variable and metric in this release."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from slipway.args.declare import Argument, Disposition
from slipway.args.foreign import FOREIGN, Foreign
from slipway.args.schema import SERVE

IMPLEMENTED = "implemented"
NOT_BUILT = "not built yet"
WARNED = "accepted with a warning"
REFUSED = "refused"
STATUSES = (IMPLEMENTED, NOT_BUILT, WARNED, REFUSED)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table."""

    name: str
    status: str
    reason: str = ""


def status_of(argument: Argument) -> Entry:
    """An argument of which some values work is implemented, and the reason says what is missing."""
    lacks = argument.unbuilt
    match argument.disposition:
        case Disposition.WARN:
            return Entry(argument.flag, WARNED, argument.reason)
        case Disposition.REFUSE:
            return Entry(argument.flag, REFUSED, argument.reason)
    if lacks is None:
        keys = f", by {', '.join(argument.acting_keys)}: {argument.reason}" if argument.acting_keys else ""
        return Entry(argument.flag, IMPLEMENTED, f"acts on CUDA only{keys}" if argument.cuda_only else "")
    if lacks.tunes:
        return Entry(argument.flag, WARNED, lacks.idle)
    works = [
        value if isinstance(value, str) else json.dumps(value)
        for value in lacks.works
        if value != argument.default and value
    ]
    if works:
        return Entry(argument.flag, IMPLEMENTED, f"{', '.join(works)} so far; not built yet: {lacks.feature}")
    return Entry(argument.flag, NOT_BUILT, lacks.feature)


def arguments() -> list[Entry]:
    """Every argument of `slipway serve`, help included, and flags of vLLM that are none."""
    return [*map(status_of, SERVE.arguments.values()), *map(of_foreign, FOREIGN.values())]


def of_foreign(row: Foreign) -> Entry:
    """A flag of vLLM that is no argument."""
    return Entry(row.flag, REFUSED if row.refused else WARNED, row.reason)


def variables() -> list[Entry]:
    """Every environment variable."""
    from slipway.envs import VARIABLES

    return [Entry(one.name, str(one.status), one.reason) for one in VARIABLES]


def metrics() -> list[Entry]:
    """Every metric."""
    from slipway.metrics import METRICS

    return [Entry(one.name, str(one.status), one.reason) for one in METRICS]


def table(title: str, entries: Iterable[Entry]) -> str:
    """Names, statuses and reasons in columns, and the counts below."""
    rows = list(entries)
    name_width = max(len(row.name) for row in rows)
    status_width = max(len(row.status) for row in rows)
    lines = [f"{row.name:<{name_width}}  {row.status:<{status_width}}  {row.reason}".rstrip() for row in rows]
    return "\n".join([f"{title}:", *lines, "", f"{len(rows)} {title}: {counted(rows)}", ""])


def counted(rows: Iterable[Entry]) -> str:
    """`120 implemented, 40 not built yet, …`"""
    counts = Counter(row.status for row in rows)
    order = [*STATUSES, *(status for status in counts if status not in STATUSES)]
    return ", ".join(f"{counts[status]} {status}" for status in order if counts[status])
