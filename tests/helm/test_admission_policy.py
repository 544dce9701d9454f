"""The chart's admission policies refuse what the operator does: they are made of the same table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel import evaluate
from e2e.attempts import ATTEMPTS, document, given, policy

from slipway.service import InvalidService, chart_values, from_mapping
from slipway.service.labels import PROFILE
from slipway.service.policy_values import KEYS

HELM = Path(__file__).parents[2] / "helm" / "slipway"
POLICIES = yaml.safe_load((HELM / "files" / "admission.yaml").read_text(encoding="utf-8"))
EXAMPLES = sorted((HELM.parents[1] / "examples").glob("*.yaml"))


class Variables(dict[str, Any]):
    """Those of a policy, each evaluated where it is first asked for, as the API server does it."""

    def __init__(self, item: Mapping[str, Any], expressions: Mapping[str, str]) -> None:
        super().__init__()
        self._item, self._expressions = item, expressions

    def __contains__(self, name: object) -> bool:
        return name in self._expressions

    def __missing__(self, name: str) -> Any:
        value = evaluate(self._expressions[name], {"object": self._item, "variables": self})
        self[name] = value
        return value


def refusals(
    item: Mapping[str, Any], values: Mapping[str, Any], kind: str = "inferenceservices"
) -> list[str]:
    """What the API server says to the object under these values of the chart."""
    made = POLICIES[kind]
    settings = {
        key: json.dumps(values[key]) if key in values else unset for key, unset in made["settings"].items()
    }
    variables = Variables(item, {**settings, **{one["name"]: one["expression"] for one in made["variables"]}})
    scope = {"object": item, "variables": variables}
    broken = [one for one in made["validations"] if evaluate(one["expression"], scope) is not True]
    return [
        evaluate(one["messageExpression"], scope) if "messageExpression" in one else one["message"]
        for one in broken
    ]


def named(attempt: dict[str, Any]) -> str:
    return str(attempt["case"])


OF_THE_POLICY = [one for one in ATTEMPTS if not (one.get("always") or one.get("nested"))]
"""All but what no cluster admits, and files within nested values, which CEL does not see."""


@pytest.mark.parametrize("attempt", OF_THE_POLICY, ids=named)
def test_each_attempt_is_refused_by_the_api_server_too(attempt):
    said = refusals(document(attempt["spec"]), given(attempt.get("under", {})))
    assert said
    for sentence in said:
        assert re.search(r"policy[.]\w+ would admit it$|a ServingProfile may say it$", sentence)


@pytest.mark.parametrize("attempt", [one for one in OF_THE_POLICY if "admit" in one], ids=named)
def test_what_the_value_admits_the_api_server_admits(attempt):
    assert refusals(document(attempt["spec"]), given(attempt.get("under", {}), attempt["admit"])) == []


@pytest.mark.parametrize("attempt", OF_THE_POLICY, ids=named)
def test_without_a_policy_the_api_server_refuses_arguments_that_run_code_alone(attempt):
    said = refusals(document(attempt["spec"]), {})
    sensitive = {"spec.engine.workerCls", "spec.engine.middleware", "spec.engine.toolParserPlugin"}
    assert bool(said) == (attempt["field"] in sensitive)


DOWNWARD = {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
TOKEN = {"serviceAccountToken": {"path": "token", "audience": "vault"}}


def projected(*sources: dict[str, Any], account: str = "") -> dict[str, Any]:
    """A spec with a volume of these sources, whose pods run under the account."""
    runtime = {"runtime": {"serviceAccountName": account}} if account else {}
    return {**runtime, "volumes": [{"name": "a", "mountPath": "/data", "projected": {"sources": [*sources]}}]}


SINGLE = (
    {},
    {"runtime": {"image": "slipway/runtime-cpu:7", "serviceAccountName": "models"}},
    {"runtime": {"image": "docker.io/slipway/runtime-cpu-torch:7"}},
    {"runtime": {"image": "nginx"}},
    {"runtime": {"image": "localhost/slipway/runtime-cpu"}},
    {"runtime": {"serviceAccountName": "default"}},
    {"runtime": {"imagePullSecrets": ["a", "b"]}},
    {"files": [{"mountPath": "/etc/models", "configMap": "a"}, {"mountPath": "/data/b", "configMap": "b"}]},
    {"volumes": [{"name": "a", "mountPath": "/models", "pvc": {"name": "a"}}]},
    {"volumes": [{"name": "a", "mountPath": "/modelsx", "pvc": {"name": "a"}}]},
    {"env": [{"name": "TZ", "value": "UTC"}, {"name": "HF_TOKEN", "secret": {"name": "a", "key": "b"}}]},
    {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]},
    {"devices": {"vendor": "nvidia", "resource": "nvidia.com/gpu.shared"}},
    {"service": {"type": "ClusterIP"}},
    {"scheduling": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}},
    {"scheduling": {"schedulerName": "default-scheduler", "dnsPolicy": "ClusterFirst"}},
    {"scheduling": {"affinity": {"podAntiAffinity": {}, "nodeAffinity": {}}}},
    {"security": {"seLinux": {"type": "container_t"}}},
    {"engine": {"chatTemplate": "{{ messages }}", "tokenizer": "org/name"}},
    {"engine": {"chatTemplate": "/etc/models/chat.jinja", "downloadDir": "/cache/x"}},
    {"engine": {"workerCls": "auto", "middleware": [], "trustRemoteCode": True}},
    {"sidecars": [{"name": "a", "image": "slipway/runtime-cpu:1", "resources": {"limits": {"cpu": 1}}}]},
    {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}},
    {"profile": "h100"},
    {"service": {"trafficDistribution": "PreferSameNode"}},
    {"resources": {"rdma/ib": 1, "hugepages-2Mi": "1Gi", "memory": "4Gi"}},
    {"devices": {"claims": ["a", "b"]}},
    {"devices": {"claims": ["b", {"resourceClaimName": "a"}, {"resourceClaimTemplateName": "ab"}]}},
    {"trustedCA": {"configMap": "a"}},
    projected({"configMap": {"name": "a", "items": [{"key": "b", "path": "c"}]}}, DOWNWARD),
    projected({"secret": {"name": "a"}}, {"secret": {"name": "b", "optional": True}}),
    projected(TOKEN),
    projected(TOKEN, account="models"),
    projected(TOKEN, account="default"),
    projected(TOKEN, {"secret": {"name": "a"}}, account="admin"),
)
"""Documents on either side of a bound, next to it."""
VALUES: tuple[dict[str, Any], ...] = (
    {},
    {"allowCode": True},
    {"profiles": {"h100": ["team-b"]}},
    {"profiles": {"h100": ["team-a"], "l4": []}},
    {"secrets": ["a"]},
    {"claims": ["b", "a*"]},
    {"serviceAccounts": ["default"], "permittedEnv": ["SSL_CERT_FILE"]},
)


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("spec", SINGLE, ids=str)
def test_operator_and_api_server_agree(spec, values):
    if refusals(document(spec), given(values)):
        with pytest.raises(InvalidService) as failure:
            from_mapping(document(spec), policy(values))
        assert failure.value.reason == "PolicyDenied"
    else:
        assert from_mapping(document(spec), policy(values))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_admitted(example):
    values = given({"images": ["docker.io/slipway/demo-model"]})
    for one in yaml.safe_load_all(example.read_text(encoding="utf-8")):
        assert refusals(one, values) == []


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({}, ""),
        ({"serviceAccountName": "models"}, ""),
        ({"serviceAccountName": "admin"}, "accounts: admin"),
        ({"containers": [{"name": "server", "image": "nginx"}]}, "images: nginx"),
        ({"containers": [{"name": "proxy", "image": "mesh.example/proxy"}]}, ""),
        ({"initContainers": [{"name": "fetch", "image": "quay.io/a"}]}, "images: quay.io/a"),
        (
            {"volumes": [{"name": "m", "image": {"reference": "quay.io/w"}}, {"name": "t"}]},
            "images: quay.io/w",
        ),
    ],
    ids=str,
)
def test_pods_have_images_and_accounts_that_are_admitted(pod, words):
    own = {"containers": [{"name": "server", "image": "slipway/runtime-cpu:1"}]}
    said = refusals({"spec": {**own, **pod}}, given(), "pods")
    assert [words] == [sentence[: len(words)] for sentence in said or [""]]
    assert refusals({"spec": {**own, **pod}}, {}, "pods") == []


@pytest.mark.parametrize("kind", POLICIES)
def test_what_is_being_deleted_may_lose_its_finalizers(kind):
    (condition,) = (one for one in POLICIES[kind]["matchConditions"] if one["name"] == "lives")
    alive: dict[str, Any] = {"metadata": {"name": "demo"}}
    assert evaluate(condition["expression"], {"object": alive}) is True
    going = {"metadata": {"name": "demo", "deletionTimestamp": "2026-11-30T00:00:00Z"}}
    assert evaluate(condition["expression"], {"object": going}) is False


def test_pods_of_a_profile_are_none_of_the_policy_s_business():
    """Whoever writes profiles runs the cluster, and no document can set the annotation."""
    (condition,) = (one for one in POLICIES["pods"]["matchConditions"] if one["name"] == "of-its-document")
    for given_annotations, held in (({}, True), ({"a": "b"}, True), ({PROFILE: "gpus"}, False)):
        pod = {"metadata": {"name": "demo", "annotations": given_annotations}}
        assert evaluate(condition["expression"], {"object": pod}) is held


def test_the_policy_of_the_chart_is_the_operators():
    values = chart_values.OPERATOR.members["policy"]
    assert isinstance(values, chart_values.Group)
    assert values.members.keys() == {*KEYS, "admission"}
    settings = POLICIES["inferenceservices"]["settings"]
    assert {key: json.loads(unset) for key, unset in settings.items()} == {
        key: one.default
        for key, one in values.members.items()
        if isinstance(one, chart_values.Value) and key != "admission"
    }
