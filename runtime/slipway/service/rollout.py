"""How new pods take the place of old ones."""

from __future__ import annotations

from typing import Any

from slipway.service.facts import Facts
from slipway.service.fields import InvalidService
from slipway.service.spec import ServiceSpec

SHARED, ONE_NODE, ONE_POD = "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"
"""Access modes of a claim, by how many can mount it at a time."""
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
    claims = exclusive_claims(spec, facts)
    if not claims:
        return None
    claim, mode = next(iter(claims.items()))
    together = f" All {spec.replicas} pods need one node." if spec.replicas > 1 else ""
    return (
        f"Recreate: the claim {claim} is {mode}, so that a new pod on another node could not mount it "
        f"beside an old one.{together} A ReadWriteMany claim, or none, lets rollouts keep serving."
    )


def check_replicas(spec: ServiceSpec, facts: Facts) -> None:
    """Raises InvalidService where more pods are asked for than can mount a claim."""
    for claim, mode in exclusive_claims(spec, facts).items():
        if mode == ONE_POD and spec.replicas > 1:
            raise InvalidService(
                "spec.replicas",
                f"{spec.replicas} pods cannot mount the claim {claim}, which is {mode}. Set it to 1, or name "
                "a claim that is ReadWriteMany.",
            )


def exclusive_claims(spec: ServiceSpec, facts: Facts) -> dict[str, str]:
    """The claims of the pods that not every node can mount at a time, and how each is instead.

    What the document says of a claim goes before what is known of it.
    """
    modes = {
        claim: mode or facts.exclusive_claims.get(claim, SHARED) for claim, mode in claims_of(spec).items()
    }
    return {claim: mode for claim, mode in modes.items() if mode != SHARED}


def claims_of(spec: ServiceSpec) -> dict[str, str | None]:
    """The claims that the pods mount, each with its access mode where the document gives it."""
    model, cache = spec.model.pvc, spec.model.cache
    of_model: dict[str, str | None] = {model.name: None} if model else {}
    return of_model | ({cache.pvc: cache.access_mode} if cache.pvc else {})
