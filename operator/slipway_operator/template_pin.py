"""Keeps the pods of a resource as they are while its intent is: the pinned template.

Any difference in a Deployment's template rolls its pods, so an operator that renders afresh after its own
upgrade would restart every model. The template is therefore kept in a ControllerRevision; another intent,
or `spec.rollout.template: Latest`, makes a new one. A revision's data never changes (the API server
refuses it), so its name has the digest of what it holds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway import __version__
from slipway.service import Facts, ServiceSpec
from slipway.service.differences import changes
from slipway.service.intent import intent, intent_hash
from slipway.service.pinning import replaced
from slipway.service.render import metadata

Object = Mapping[str, Any]
MAX_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Pinned:
    template: dict[str, Any]
    """For `Facts.template`."""
    revision: dict[str, Any]
    """The ControllerRevision to apply, before the Deployment."""
    upgrade: str | None
    """What this operator would render otherwise; None where nothing, or where it is taken."""
    change: str | None = None
    """Which fields of the intent differ from the revision before; None where the pods stay."""
    is_new: bool = True
    """Pods of this template do not run yet."""


def in_force(revisions: Sequence[Object], spec: ServiceSpec) -> Object | None:
    """The newest ControllerRevision of this intent, else the newest of all.

    There are others beside it while the API server refuses a Deployment: who then takes the change back
    finds the pods that run.
    """
    wanted = intent_hash(spec)

    def rank(revision: Object) -> tuple[bool, int]:
        return (_kept(revision) or {}).get("intentHash") == wanted, _number(revision)

    return max(revisions, key=rank, default=None)


def pin(
    spec: ServiceSpec,
    facts: Facts,
    revision: Object | None,
    render_template: Callable[[ServiceSpec, Facts], Mapping[str, Any]],
) -> Pinned:
    """The template to apply and the revision that keeps it.

    `revision` is the one in force, None for a new resource; `render_template` is what this operator's
    version makes of the spec.
    """
    fresh = _plain(render_template(spec, dataclasses.replace(facts, template=None)))
    kept = _kept(revision)
    new: dict[str, Any] = {
        "intentHash": intent_hash(spec),
        "intent": _plain(intent(spec)),
        "template": fresh,
        "version": __version__,
    }
    number = _number(revision)
    if revision is None or kept is None:
        return Pinned(fresh, _revision(spec, facts, new, number + 1), None)
    leaves = changes(kept["template"], fresh)
    same = kept["intentHash"] == new["intentHash"]
    if replaced(kept["intentHash"], kept["template"], spec, fresh):
        change = leaves if same else changes(kept.get("intent") or {}, new["intent"])
        return Pinned(fresh, _revision(spec, facts, new, number + 1), None, _listed(change))
    template: dict[str, Any] = kept["template"]
    if not same:
        # Spelled as it was: a template of other words with one meaning would roll too.
        renewed = {**kept, "intentHash": new["intentHash"], "intent": new["intent"]}
        return Pinned(template, _revision(spec, facts, renewed, number + 1), None, is_new=False)
    stays = _revision(spec, facts, kept, number, revision["metadata"]["name"])
    upgrade = f"{_listed(leaves)}. Set spec.rollout.template to Latest to take it." if leaves else None
    return Pinned(template, stays, upgrade, is_new=False)


def _revision(
    spec: ServiceSpec, facts: Facts, kept: Object, number: int, name: str | None = None
) -> dict[str, Any]:
    digest = hashlib.sha256(f"{kept['intentHash']} {_text(kept['template'])}".encode()).hexdigest()[:10]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata(spec, facts, name=name or f"{spec.name}-{digest}"),
        "revision": number,
        "data": dict(kept),
    }


def _kept(revision: Object | None) -> dict[str, Any] | None:
    """What a revision holds; None where it is not one of ours."""
    kept = (revision or {}).get("data")
    if isinstance(kept, dict) and "intentHash" in kept and isinstance(kept.get("template"), dict):
        return kept
    return None


def _number(revision: Object | None) -> int:
    return int((revision or {}).get("revision") or 0)


def _listed(leaves: list[str]) -> str:
    rest = len(leaves) - MAX_SHOWN
    return "; ".join(leaves[:MAX_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")


def _plain(value: object) -> dict[str, Any]:
    """As JSON gives it back, so that what is stored equals what is rendered."""
    plain: dict[str, Any] = json.loads(_text(value))
    return plain


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
