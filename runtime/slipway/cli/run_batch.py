"""`slipway run-batch`: a file of requests. The command line is complete; the run is not built."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slipway.args import Resolved
from slipway.args.schema import RUN_BATCH
from slipway.cli.serve import resolve_or_explain


def run(argv: Sequence[str]) -> int:
    """Exit status 2: for malformed arguments, and for every real run."""
    resolved = resolve_or_explain(argv, RUN_BATCH)
    if not isinstance(resolved, Resolved):
        return resolved
    print(
        "slipway run-batch: error: a run is not supported yet. Send the requests to a server that "
        "`slipway serve` started, or check the arguments with --dry-run.",
        file=sys.stderr,
    )
    return 2
