"""`python -m slipway.generate [--check] [ROOT]`: what is generated from the declarations.

Writes the manual's reference pages and the CRD's engine schema below ROOT (default: the repository); with
--check it writes nothing and fails where a file is not what it would write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from slipway import exits
from slipway.args import manual as arguments
from slipway.args.openapi import engine_schema
from slipway.envs import manual as variables
from slipway.metrics import manual as metrics

REPOSITORY = Path(__file__).resolve().parents[2]


def outputs() -> dict[str, str]:
    """Path below the repository → content."""
    return {
        "docs/reference/arguments.md": arguments.manual(),
        "docs/reference/environment.md": variables.manual(),
        "docs/reference/metrics.md": metrics.manual(),
        "docs/exit-codes.md": exits.manual(),
        "crds/engine-schema.json": json.dumps(engine_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def main(argv: Sequence[str]) -> int:
    """Status 1 where --check finds a stale file."""
    paths = [word for word in argv if not word.startswith("-")]
    root = Path(paths[0]) if paths else REPOSITORY
    stale = [
        name
        for name, content in outputs().items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != content
    ]
    if "--check" in argv:
        for name in stale:
            print(f"{name} is stale: run `make generate`.", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(outputs()[name], encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
