"""What becomes of a service where one document takes the place of another, told without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from slipway.service.differences import Difference, changed
from slipway.service.engine import check_supported
from slipway.service.facts import Facts
from slipway.service.fields import InvalidService
from slipway.service.intent import intent, intent_hash, stated
from slipway.service.pinning import replaced
from slipway.service.pod import pod_template
from slipway.service.profile import with_profile
from slipway.service.render import render
from slipway.service.spec import ServiceSpec


class Change(StrEnum):
    """What becomes of an object."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One of the objects that either document becomes; `fields` where it is changed in place."""

    kind: str
    name: str
    change: Change
    fields: list[Difference]


@dataclass(frozen=True, slots=True)
class Diff:
    """What the operator makes of the change."""

    restart: bool
    """Whether the pod template changes: each pod gives way to a new one."""
    because: list[Difference]
    """What of the intent differs; where pods restart without that, what of their template."""
    replicas: tuple[int, int]
    """Pods that run, before and after."""
    objects: list[ObjectChange]

    @property
    def empty(self) -> bool:
        return all(one.change is Change.UNCHANGED for one in self.objects)


def diff(old: ServiceSpec, new: ServiceSpec, old_facts: Facts, new_facts: Facts) -> Diff:
    """The old pods are as `old_facts` have them; the new document is met by the same version.

    Raises InvalidService where the two are not one service, where they choose different profiles of which one
    is not known, and where the operator would not take the new document.
    """
    _check_same(old, new)
    _check_profiles((old, old_facts), (new, new_facts))
    check_supported(with_profile(new, new_facts.profile))
    namespace = new.metadata.namespace or old.metadata.namespace
    old_facts, new_facts = (replace(facts, namespace=namespace) for facts in (old_facts, new_facts))
    kept, fresh = pod_template(old, old_facts), pod_template(new, new_facts)
    restart = replaced(intent_hash(old), kept, new, fresh)
    before = render(old, old_facts)
    after = render(new, replace(new_facts, template=fresh if restart else kept))
    return Diff(
        restart,
        (_because(old, new) or changed({"template": kept}, {"template": fresh})) if restart else [],
        (before[0]["spec"]["replicas"], after[0]["spec"]["replicas"]),
        _objects(before, after),
    )


def _because(old: ServiceSpec, new: ServiceSpec) -> list[Difference]:
    """What of the intent differs, in the documents' words."""
    words = {one.path: one for one in changed({"spec": stated(old)}, {"spec": stated(new)})}
    return [words.get(one.path, one) for one in changed({"spec": intent(old)}, {"spec": intent(new)})]


def _check_same(old: ServiceSpec, new: ServiceSpec) -> None:
    for field in ("name", "namespace"):
        one, other = getattr(old.metadata, field), getattr(new.metadata, field)
        if one and other and one != other:
            sentence = f"{one} and {other} are two services, and not one that changes."
            raise InvalidService(f"metadata.{field}", sentence)


def _check_profiles(*sides: tuple[ServiceSpec, Facts]) -> None:
    """One that both choose and nobody knows is in the pods before and after."""
    unknown = [spec.profile for spec, facts in sides if spec.profile and not facts.profile]
    if unknown and len({spec.profile for spec, _ in sides}) > 1:
        sentence = f"what {unknown[0]} adds decides. Add --profile with that ServingProfile."
        raise InvalidService("spec.profile", sentence)


def _objects(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[ObjectChange]:
    """In the order in which they are rendered; a service has at most one object of a kind."""
    was, will_be = ({one["kind"]: one for one in objects} for objects in (before, after))
    return [_object(kind, was.get(kind), will_be.get(kind)) for kind in {**will_be, **was}]


def _object(kind: str, was: Mapping[str, Any] | None, will_be: Mapping[str, Any] | None) -> ObjectChange:
    name = (will_be or was or {})["metadata"]["name"]
    if was is None or will_be is None:
        return ObjectChange(kind, name, Change.CREATED if was is None else Change.DELETED, [])
    fields = changed(was, will_be)
    return ObjectChange(kind, name, Change.CHANGED if fields else Change.UNCHANGED, fields)
