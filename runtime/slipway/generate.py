"""`python -m slipway.generate [--check] [ROOT]`: what is generated from the declarations.

Writes the manual's reference pages and the CRD below ROOT (default: the repository); with
--check it writes nothing and fails where a file is not what it would write.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from slipway import exits, features
from slipway.args import manual as arguments
from slipway.envs import manual as variables
from slipway.metrics import alerts, dashboard
from slipway.metrics import manual as metrics
from slipway.service import charts, crd
from slipway_operator import permissions, reasons

REPOSITORY = Path(__file__).resolve().parents[2]


def outputs() -> dict[str, str]:
    """Path below the repository → content."""
    return {
        "docs/reference/arguments.md": arguments.manual(),
        "docs/reference/environment.md": variables.manual(),
        "docs/reference/metrics.md": metrics.manual(),
        "docs/exit-codes.md": exits.manual(),
        "docs/features.md": features.manual(),
        "docs/reference/conditions.md": reasons.manual(),
        **{f"crds/{one['metadata']['name']}.yaml": crd.definition_text(one) for one in crd.definitions()},
        "crds/installer.yaml": permissions.installer(),
        "helm/slipway/files/alerts.yaml": alerts.alert_rules(),
        "helm/slipway/files/dashboard.json": dashboard.dashboard_file(),
        **charts.outputs(crd.definitions(), _rules()),
    }


def _rules() -> dict[str, list[dict[str, object]]]:
    """The operator's permissions by where its chart grants them."""
    places = {
        "service": permissions.SERVICE_RULES,
        "cluster": permissions.CLUSTER_RULES,
        "lease": permissions.LEASE_RULES,
    }
    return {place: [rule.as_object() for rule in rules] for place, rules in places.items()}


def main(argv: Sequence[str]) -> int:
    """Status 1 where --check finds a stale file."""
    paths = [word for word in argv if not word.startswith("-")]
    root = Path(paths[0]) if paths else REPOSITORY
    stale = {
        name: content
        for name, content in outputs().items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != content
    }
    if "--check" in argv:
        for name in stale:
            print(f"{name} is stale: run `make generate`.", file=sys.stderr)
        return 1 if stale else 0
    for name, content in stale.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
