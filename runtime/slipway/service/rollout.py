"""How new pods take the place of old ones."""

from __future__ import annotations

from typing import Any

from slipway.service.facts import Facts
from slipway.service.spec import ServiceSpec

REASON = "slipway.dev/rollout"
"""Annotation of a Deployment that says why its rollout is not the usual one."""


def strategy(spec: ServiceSpec, facts: Facts) -> dict[str, Any]:
    """A Deployment's strategy: the old pods serve until new ones are ready, where a volume lets both run."""
    if recreate_reason(spec, facts):
        return {"type": "Recreate"}
    rollout = spec.rollout
    surge = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": surge}


def recreate_reason(spec: ServiceSpec, facts: Facts) -> str | None:
    """Why the old pods must end before new ones start, in a sentence; None where they need not."""
    cache = spec.model.cache
    if cache.pvc is None:
        return None
    if cache.access_mode in ("ReadWriteOnce", "ReadWriteOncePod"):
        mode = cache.access_mode
    elif cache.access_mode is None and cache.pvc in facts.exclusive_claims:
        mode = "ReadWriteOnce"
    else:
        return None
    return (
        f"Recreate: the claim {cache.pvc} is {mode}, so that a new pod on another node could not mount it "
        "beside an old one. A ReadWriteMany claim, or none, lets rollouts keep serving."
    )
