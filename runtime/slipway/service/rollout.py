"""How new pods take the place of old ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway.service.facts import Facts
from slipway.service.fields import InvalidService
from slipway.service.profile import with_profile
from slipway.service.spec import ServiceSpec

SHARED, ONE_NODE, ONE_POD = "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"
"""Access modes of a claim, by how many can mount it at a time."""
AUTO = "Auto"
MORE_NODES = "With a node more, rollouts keep all replicas."
REASON = "slipway.dev/rollout"
"""Annotation of a Deployment that says why its rollout is not the usual one."""


def strategy(spec: ServiceSpec, facts: Facts) -> dict[str, Any]:
    """A Deployment's strategy: the old pods serve until new ones are ready, where there is room for both."""
    if exclusive_claims(spec, facts) or (facts.no_room and spec.replicas == 1):
        return {"type": "Recreate"}
    surge, missing = surge_of(with_profile(spec, facts.profile)), spec.rollout.max_unavailable
    if surge == AUTO and facts.no_room:
        surge, missing = 0, 1 if is_zero(missing) else missing
    elif surge == AUTO:
        surge = 1
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": missing}}


def is_zero(share: int | str) -> bool:
    """Of a number or a percentage."""
    return not str(share).removesuffix("%").strip("0")


def unusual(spec: ServiceSpec, facts: Facts) -> str | None:
    """Why old pods end before new ones start, in a sentence; None where they need not."""
    for claim, mode in exclusive_claims(spec, facts).items():
        together = f" All {spec.replicas} pods need one node." if spec.replicas > 1 else ""
        return (
            f"Recreate: the claim {claim} is {mode}, so that a new pod on another node could not mount it "
            f"beside an old one.{together} A ReadWriteMany claim, or none, lets rollouts keep serving."
        )
    if facts.no_room is None:
        return None
    how = "Recreate" if spec.replicas == 1 else "One after another"
    return f"{how}: {facts.no_room}. {MORE_NODES}"


def said_of_room(annotations: Mapping[str, str]) -> str | None:
    """The clause on room in what `unusual` said on a Deployment; None where it said nothing of that."""
    said, sign, _ = annotations.get(REASON, "").partition(f". {MORE_NODES}")
    return said.partition(": ")[2] if sign else None


def surge_of(whole: ServiceSpec) -> int | str:
    """What the document says, or else: few clusters have a device to spare for a rollout."""
    if whole.rollout.max_surge is not None:
        return whole.rollout.max_surge
    return AUTO if whole.devices.present else 1


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
    found: dict[str, str | None] = {volume.pvc.name: None for volume in spec.volumes if volume.pvc}
    if model:
        found[model.name] = None
    return found | ({cache.pvc: cache.access_mode} if cache.pvc else {})
