"""What the operator asks of the API server: the one source of the chart's roles.

`SERVICE_RULES` are needed where services live: in a ClusterRole, or in a Role of each served namespace.
`CLUSTER_RULES` come on top where the operator serves the whole cluster. `LEASE_RULES` are needed in the one
namespace that holds the Lease. A verb stands in these only if a test sees it used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

READ = ("list", "watch")
KEEP = ("get", "list", "watch", "create", "patch", "delete")
"""For what the operator makes. `get` shows a stranger's object of the same name, which no watch with our
label does; server-side apply needs `patch`, and `create` for an object that is not there yet."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on the resources of one API group, as a role lists them."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def as_object(self) -> dict[str, Any]:
        """The rule in the words of rbac.authorization.k8s.io/v1."""
        return {"apiGroups": [self.group], "resources": [*self.resources], "verbs": [*self.verbs]}


SERVICE_RULES = (
    # `get` before a missing child is made anew: its owner may be gone since the last list.
    Rule("slipway.dev", ("inferenceservices",), ("get", *READ)),
    Rule("slipway.dev", ("inferenceservices/status",), ("patch",)),
    Rule("apps", ("deployments", "controllerrevisions"), KEEP),
    Rule("", ("services",), KEEP),
    Rule("policy", ("poddisruptionbudgets",), KEEP),
    Rule("networking.k8s.io", ("networkpolicies",), KEEP),
    Rule("monitoring.coreos.com", ("servicemonitors", "podmonitors"), KEEP),
    Rule("apps", ("replicasets",), READ),
    # Beside those that Kubernetes makes: one that asks whether a model fits.
    Rule("", ("pods",), KEEP),
    # The access modes of a claim that caches a model decide how its pods may be replaced.
    Rule("", ("persistentvolumeclaims",), ("get",)),
    # `list` asks for the events of one pod that waits without a cause.
    Rule("", ("events",), ("list",)),
    # `patch` counts what repeats on the Event that is there.
    Rule("events.k8s.io", ("events",), ("create", "patch")),
)

CLUSTER_RULES = (
    # What nodes have tells a service that none can hold by how much.
    Rule("", ("nodes",), READ),
    Rule("slipway.dev", ("servingprofiles",), READ),
)

LEASE_RULES = (Rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),)

PEOPLE_RULES = (
    Rule(
        "slipway.dev",
        ("inferenceservices", "inferenceservices/scale"),
        ("get", "list", "watch", "create", "update", "patch", "delete"),
    ),
)
"""For those who write services; the operator itself needs none of it."""


def installer() -> str:
    """The file crds/installer.yaml: lets the admins of a namespace install the chart for it.

    RBAC lets nobody hand out rights that he lacks, so they get the operator's, and those of the people who
    write services.
    """
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": "slipway-installer",
            "labels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"},
        },
        "rules": [rule.as_object() for rule in (*SERVICE_RULES, *LEASE_RULES, *PEOPLE_RULES)],
    }
    return yaml.safe_dump(role, sort_keys=False)
