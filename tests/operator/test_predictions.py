"""What `slipway diff` says of a change without a cluster is what the operator makes of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from stored import stored

from service_specs import SPECS, document_of
from slipway.service import Facts, ServiceSpec, from_mapping, render
from slipway.service.diff import Change, diff
from slipway.service.pod import pod_template
from slipway_operator.template_pin import Pinned, in_force, pin

Object = dict[str, Any]
FACTS = Facts(kinds=frozenset({"ServiceMonitor", "PodMonitor"}), namespace="models")


@st.composite
def edits(draw: st.DrawFn) -> tuple[Object, Object]:
    """A spec and the same with a few of its fields as another has them, without them, or in another order."""
    old, other = draw(SPECS), draw(SPECS)
    names = draw(st.sets(st.sampled_from(sorted({*old, *other})), max_size=3))
    taken = {name: other[name] for name in names if name in other}
    kept = {name: value for name, value in old.items() if name not in names or name == "model"}
    edited = {**kept, **taken}
    if draw(st.booleans()):
        edited["env"] = old.get("env", [])[::-1]
    return old, edited


def pinned(spec: ServiceSpec, before: list[Object]) -> Pinned:
    return pin(spec, FACTS, in_force(before, spec), pod_template)


def in_cluster(spec: ServiceSpec, template: Object) -> dict[str, Object]:
    """Labels, annotations and spec of every object, as the API server has them."""
    made = map(stored, render(spec, dataclasses.replace(FACTS, template=template)))
    return {
        one["kind"]: {
            "spec": one["spec"],
            **{key: one["metadata"].get(key) for key in ("labels", "annotations")},
        }
        for one in made
    }


@settings(max_examples=300)
@given(edits())
def test_a_restart_is_predicted_exactly_where_the_template_in_the_cluster_changes(edit):
    old, new = (from_mapping(document_of(spec)) for spec in edit)
    first = pinned(old, [])
    then = pinned(new, [first.revision])
    before, after = in_cluster(old, first.template), in_cluster(new, then.template)
    predicted = diff(old, new, FACTS, FACTS)
    templates = [objects["Deployment"]["spec"]["template"] for objects in (before, after)]
    assert predicted.restart == (templates[0] != templates[1])
    assert predicted.restart == (then.change is not None)
    assert bool(predicted.because) == predicted.restart
    assert {one.kind: one.change for one in predicted.objects} == {
        kind: Change.CREATED if kind not in before
        else Change.DELETED if kind not in after
        else Change.UNCHANGED if before[kind] == after[kind]
        else Change.CHANGED
        for kind in {**before, **after}
    }  # fmt: skip


@settings(max_examples=100)
@given(edits())
def test_the_way_back_is_predicted_too(edit):
    old, new = (from_mapping(document_of(spec)) for spec in edit)
    first = pinned(old, [])
    second = pinned(new, [first.revision])
    third = pinned(old, [first.revision, second.revision])
    assert diff(new, old, FACTS, FACTS).restart == (stored_template(second) != stored_template(third))


def stored_template(one: Pinned) -> Object:
    deployment = {"kind": "Deployment", "metadata": {}, "spec": {"template": one.template}}
    template: Object = stored(deployment)["spec"]["template"]
    return template
