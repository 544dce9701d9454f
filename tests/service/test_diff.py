"""What one document changes where it takes the place of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.service import Facts, InvalidService, Policy, ServiceSpec, from_mapping, load
from slipway.service.diff import Change, Diff, diff
from slipway.service.profile import read_profile

HERE = Path(__file__).parent
FACTS = Facts(kinds=frozenset({"ServiceMonitor", "PodMonitor"}))
BASE: dict[str, Any] = {"model": {"hub": {"id": "org/name"}}, "engine": {"maxModelLen": 1024}}


def spec_of(metadata: dict[str, Any] | None = None, **fields: object) -> ServiceSpec:
    return from_mapping(
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo", **(metadata or {})},
            "spec": {**BASE, **fields},
        }
    )


def between(old: dict[str, Any], new: dict[str, Any]) -> Diff:
    return diff(spec_of(**old), spec_of(**new), FACTS, FACTS)


def kinds(found: Diff) -> dict[str, str]:
    return {one.kind: str(one.change) for one in found.objects if one.change is not Change.UNCHANGED}


@pytest.mark.parametrize(
    ("new", "because"),
    [
        ({"engine": {"maxModelLen": 2048}}, ["spec.engine.maxModelLen 1024 → 2048"]),
        ({"resources": {"cpu": "500m"}}, ['spec.resources absent → {"cpu": "500m"}']),
        ({"env": [{"name": "TZ", "value": "UTC"}]}, ["spec.env[TZ] absent → {"]),
        (
            {"model": {"path": "/x"}},
            ['spec.model.hub {"id": "org/name"} → absent', "spec.model.path absent → /x"],
        ),
        ({"rollout": {"drainSeconds": 90}}, ['spec.rollout absent → {"drainSeconds": 90}']),
        ({"devices": {"vendor": "nvidia"}}, ['spec.devices absent → {"vendor": "nvidia"}']),
    ],
)
def test_what_reaches_the_pods_restarts_them_and_is_named_as_the_document_has_it(new, because):
    found = between({}, new)
    assert found.restart
    assert kinds(found) == {"Deployment": "changed"}
    for one, begin in zip(found.because, because, strict=True):
        assert one.change().startswith(begin)


@pytest.mark.parametrize(
    ("new", "changed"),
    [
        ({"replicas": 3}, {"Deployment": "changed", "PodDisruptionBudget": "created"}),
        ({"suspend": True}, {"Deployment": "changed"}),
        ({"service": {"port": 80}}, {"Service": "changed"}),
        ({"monitoring": {"enabled": True}}, {"ServiceMonitor": "created"}),
        ({"rollout": {"maxSurge": 2}}, {"Deployment": "changed"}),
        ({"rollout": {"template": "Latest"}}, {}),
        ({"engine": {"maxModelLen": 1024, "allowCredentials": False}}, {}),
        ({"engine": {"maxModelLen": "1K"}}, {}),
    ],
)
def test_what_does_not_reach_them_leaves_them_alone(new, changed):
    found = between({}, new)
    assert not found.restart
    assert found.because == []
    assert kinds(found) == changed
    assert found.empty == (not changed)
    back = between(new, {})
    turned = {"created": "deleted"}
    assert kinds(back) == {kind: turned.get(change, change) for kind, change in changed.items()}


def test_replicas_alone_are_scaling():
    found = between({"replicas": 2}, {"replicas": 4})
    assert (found.restart, found.replicas) == (False, (2, 4))
    (deployment,) = [one for one in found.objects if one.change is Change.CHANGED]
    assert [field.change() for field in deployment.fields] == ["spec.replicas 2 → 4"]


def test_a_new_spelling_of_the_same_restarts_nothing_unless_the_latest_template_is_asked_for():
    spelled = {"engine": {"maxModelLen": "1K"}}
    assert not between({}, spelled).restart
    latest = between({}, {**spelled, "rollout": {"template": "Latest"}})
    assert latest.restart
    assert [one.change() for one in latest.because] == ["template.spec.containers[server].args[7] 1024 → 1K"]


def test_arguments_that_come_or_go_are_shown_without_their_neighbours():
    found = between({}, {"engine": {"maxModelLen": 1024, "maxNumSeqs": 4}})
    (field,) = found.objects[0].fields
    assert field.change() == (
        'spec.template.spec.containers[server].args[8] absent → ["--max-num-seqs", "4"]'
    )


def test_profiles_count_where_they_are_known():
    profile = read_profile("shared", {"env": [{"name": "TZ", "value": "UTC"}]})
    with_it = Facts(profile=profile)
    own = spec_of(env=[{"name": "TZ", "value": "UTC"}])
    chosen = spec_of(profile="shared")
    assert not diff(own, chosen, FACTS, with_it).restart, "both have the variable"
    found = diff(spec_of(), chosen, FACTS, with_it)
    assert [one.change() for one in found.because] == ["spec.profile absent → shared"]
    assert diff(chosen, spec_of(profile="shared", replicas=2), FACTS, FACTS).replicas == (1, 2)
    with pytest.raises(InvalidService, match=r"spec.profile: what shared adds decides. Add --profile"):
        diff(chosen, spec_of(), FACTS, FACTS)


def test_two_services_are_not_compared():
    with pytest.raises(InvalidService, match=r"metadata.name: demo and other are two services"):
        diff(spec_of(), spec_of({"name": "other"}), FACTS, FACTS)
    with pytest.raises(InvalidService, match=r"metadata.namespace: a and b are two services"):
        diff(spec_of({"namespace": "a"}), spec_of({"namespace": "b"}), FACTS, FACTS)


def test_a_namespace_that_only_one_of_them_names_is_no_difference():
    assert diff(spec_of({"namespace": "a"}), spec_of(), FACTS, FACTS).empty


def test_what_the_operator_would_not_take_is_refused_with_its_sentence():
    with pytest.raises(InvalidService, match="needs several nodes, which is not supported yet"):
        between({}, {"engine": {"dataParallelSize": 4, "dataParallelSizeLocal": 1}})


def test_what_kubectl_prints_of_a_service_differs_in_nothing_from_what_was_applied():
    text = (HERE / "everything.yaml").read_text()
    printed = yaml.safe_load(text)
    printed["metadata"] |= {
        "namespace": "models",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": text},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "generation": 3,
        "managedFields": [{"manager": "kubectl", "operation": "Update"}],
        "resourceVersion": "12",
        "uid": "5f0c",
    }
    printed["status"] = {"observedGeneration": 3, "conditions": []}
    policy = Policy(allow_code=True)
    applied = load(text, policy)
    assert diff(load(yaml.safe_dump(printed), policy), applied, FACTS, FACTS).empty
