"""Pods stay as they are while the intent does, whatever the operator's version would render."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from stored import MANAGER, stored

from slipway.service import Facts, ServiceSpec, from_mapping
from slipway.service.facts import Owner
from slipway.service.pod import pod_template
from slipway_operator.drift import needs_apply
from slipway_operator.template_pin import Pinned, in_force, pin

Object = dict[str, Any]
FACTS = Facts(namespace="models", owner=Owner("demo", "b6d5a3f2"), cpu_image="r/cpu:1")
NEWER = dataclasses.replace(FACTS, cpu_image="r/cpu:2")


def spec_of(**changed: Any) -> ServiceSpec:
    return from_mapping(
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {"model": {"path": "/models/demo"}, "engine": {"maxModelLen": 1024}, **changed},
        },
    )


def slower(spec: ServiceSpec, facts: Facts) -> Object:
    """The renderer of a version with another probe."""
    template = pod_template(spec, facts)
    template["spec"]["containers"][0]["livenessProbe"]["periodSeconds"] = 20
    return template


def first() -> Pinned:
    return pin(spec_of(), FACTS, None, pod_template)


def image(pinned: Pinned) -> str:
    return str(pinned.template["spec"]["containers"][0]["image"])


def test_a_new_resource_gets_what_is_rendered_and_a_first_revision():
    pinned = first()
    assert pinned.template == pod_template(spec_of(), FACTS)
    assert pinned.revision["revision"] == 1
    assert pinned.revision["data"]["template"] == pinned.template
    assert (pinned.upgrade, pinned.change) == (None, None)


def test_a_revision_belongs_to_the_resource_and_is_ours_by_label():
    metadata = first().revision["metadata"]
    assert metadata["namespace"] == "models"
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "slipway"
    assert metadata["labels"]["app.kubernetes.io/instance"] == "demo"
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "name": "demo",
            "uid": "b6d5a3f2",
            "controller": True,
        }
    ]


def test_an_operator_of_another_version_changes_nothing_and_says_what_it_would():
    before = first()
    after = pin(spec_of(), NEWER, stored(before.revision), slower)
    assert after.template == before.template
    assert needs_apply(after.revision, stored(before.revision), MANAGER) is None
    assert after.upgrade == (
        "containers[server].image r/cpu:1 → r/cpu:2; containers[server].livenessProbe.periodSeconds 10 → 20. "
        "Set spec.rollout.template to Latest to take it."
    )


def test_latest_takes_what_the_operator_renders():
    before = first()
    after = pin(spec_of(rollout={"template": "Latest"}), NEWER, stored(before.revision), pod_template)
    assert image(after) == "r/cpu:2"
    assert after.revision["revision"] == 2
    assert after.revision["metadata"]["name"] != before.revision["metadata"]["name"]
    assert after.upgrade is None
    assert after.change == "containers[server].image r/cpu:1 → r/cpu:2"


def test_another_intent_makes_a_new_revision_and_says_why():
    before = first()
    after = pin(spec_of(engine={"maxModelLen": 2048}), NEWER, stored(before.revision), pod_template)
    assert image(after) == "r/cpu:2"
    assert after.revision["revision"] == 2
    assert after.upgrade is None
    assert after.change == "engine.maxModelLen 1024 → 2048"


def test_another_intent_of_the_same_pods_keeps_them_as_they_are_spelled():
    env = [{"name": name, "value": "1"} for name in ("A", "B")]
    before = pin(spec_of(env=env), FACTS, None, pod_template)
    same = spec_of(env=env[::-1], engine={"maxModelLen": 1024, "allowCredentials": False})
    after = pin(same, FACTS, stored(before.revision), pod_template)
    assert after.template == before.template != pod_template(same, FACTS)
    assert after.revision["data"]["intentHash"] != before.revision["data"]["intentHash"]
    assert (after.revision["revision"], after.upgrade, after.change) == (2, None, None)


def test_what_is_not_intent_keeps_the_pods():
    before = first()
    grown = spec_of(replicas=3, service={"port": 80}, monitoring={"enabled": True}, suspend=True)
    after = pin(grown, NEWER, stored(before.revision), pod_template)
    assert after.template == before.template


def test_a_way_back_is_to_the_revision_that_still_stands():
    one = first()
    two = pin(spec_of(engine={"maxModelLen": 2048}), FACTS, stored(one.revision), pod_template)
    kept = in_force([stored(one.revision), stored(two.revision)], spec_of())
    assert pin(spec_of(), FACTS, kept, pod_template).revision == one.revision


def test_the_revision_in_force_is_the_newest_of_the_intent_else_the_newest():
    assert in_force([], spec_of()) is None
    assert in_force([{"revision": 9}, {"revision": 10}], spec_of()) == {"revision": 10}
    running = stored(first().revision)
    refused = stored(pin(spec_of(engine={"maxModelLen": 2048}), NEWER, running, pod_template).revision)
    back = pin(spec_of(), NEWER, in_force([running, refused], spec_of()), pod_template)
    assert image(back) == "r/cpu:1", "a change that was refused and taken back leaves the pods as they run"
    assert back.revision["metadata"]["name"] == running["metadata"]["name"]


def test_a_revision_that_holds_nothing_of_ours_is_replaced():
    foreign = {"metadata": {"name": "demo-x"}, "revision": 4, "data": {"spec": {}}}
    assert pin(spec_of(), FACTS, foreign, pod_template).revision["revision"] == 5


def test_the_pinned_template_does_not_find_its_way_into_what_is_rendered_anew():
    facts = dataclasses.replace(FACTS, template={"metadata": {}, "spec": {"containers": []}})
    assert pin(spec_of(), facts, None, pod_template).template == pod_template(spec_of(), FACTS)


@given(st.lists(st.tuples(st.sampled_from([512, 1024]), st.sampled_from(["r/a:1", "r/a:2"])), max_size=8))
@settings(max_examples=20)
def test_the_template_changes_when_and_only_when_the_intent_does(steps: list[tuple[int, str]]):
    kept: list[Object] = []
    before: tuple[int, Object] | None = None
    for length, default in steps:
        spec = spec_of(engine={"maxModelLen": length})
        pinned = pin(spec, dataclasses.replace(FACTS, cpu_image=default), in_force(kept, spec), pod_template)
        assert (before is not None and before == (length, pinned.template)) == (
            before is not None and before[0] == length
        )
        again = pin(spec, dataclasses.replace(FACTS, cpu_image="r/a:3"), pinned.revision, pod_template)
        assert again.template == pinned.template
        assert again.revision == pinned.revision
        before = (length, pinned.template)
        kept.append(pinned.revision)
