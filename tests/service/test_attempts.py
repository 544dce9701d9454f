"""Under a policy the author of a document runs no code of their own, and takes nothing that is others'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.attempts import ATTEMPTS, document, policy
from test_crd import declared

from slipway.service import InvalidService, Policy, from_mapping
from slipway.service.bounds import BOUNDS, FREE
from slipway.service.policy_values import KEYS, ONLY_WIDEN
from slipway.service.spec import DeviceClaim, ServiceSpec

ROOT = Path(__file__).parents[2]
TENANCY = ROOT / "docs" / "kubernetes" / "tenancy.md"
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def named(attempt: dict[str, Any]) -> str:
    return str(attempt["case"])


def field_of(place: str) -> str:
    """A place of a bound without its marks."""
    return re.sub(r"\[[?|]\]", "[]", re.sub(r"!\w*$|\{\}$", "", place))


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=named)
def test_each_attempt_is_refused_at_its_field(attempt):
    with pytest.raises(InvalidService) as failure:
        from_mapping(document(attempt["spec"]), policy(attempt.get("under", {})))
    assert failure.value.path == attempt["field"]
    assert failure.value.reason == ("InvalidSpec" if attempt.get("always") else "PolicyDenied")


@pytest.mark.parametrize("attempt", [one for one in ATTEMPTS if "admit" in one], ids=named)
def test_the_value_that_the_refusal_names_admits_it(attempt):
    assert from_mapping(document(attempt["spec"]), policy(attempt.get("under", {}), attempt["admit"]))


@pytest.mark.parametrize(
    "attempt",
    [one for one in ATTEMPTS if not one.get("always") and "spec.engine" not in one["field"]],
    ids=named,
)
def test_without_a_policy_a_document_asks_for_what_a_deployment_could(attempt):
    opted_in = ("CUDA_HOME", "VLLM_PLUGINS", "VLLM_CUDART_SO_PATH")
    assert from_mapping(document(attempt["spec"]), Policy(permitted_env=opted_in, allow_code=True))


def test_there_is_an_attempt_at_every_bound():
    tried = {re.sub(r"\[\d+\]", "[]", attempt["field"]) for attempt in ATTEMPTS}
    for bound in BOUNDS:
        reached = {re.sub(r"\[\]$", "", field_of(place)) for place in bound.places}
        assert reached & tried, bound.title


def test_every_field_is_bounded_or_free_with_a_reason():
    bounded = {field_of(place) for bound in BOUNDS for place in bound.places}
    bounded |= {place.removesuffix("[]") for place in bounded}
    free = {place for places in FREE.values() for place in places}
    fields = [*declared(ServiceSpec, "spec"), *declared(DeviceClaim, "spec.devices.claims[]")]
    for field in fields:
        within = [other for other in fields if re.match(rf"{re.escape(field)}(\[\])?\.", other)]
        covered = field in bounded or any(re.match(rf"{re.escape(one)}(\[\])?(\.|$)", field) for one in free)
        assert within or covered, f"{field} is neither in BOUNDS nor in FREE."
    known = {*fields, *(f"{field}[]" for field in fields)}
    assert free <= known


def test_values_that_only_admit_more_set_no_policy():
    for name in KEYS.values():
        values: dict[type, Any] = {bool: True, tuple: ("x",), dict: {"x": ("y",)}}
        given: dict[str, Any] = {name: values[type(getattr(Policy(), name))]}
        assert Policy(**given).bounded == (name not in ONLY_WIDEN)
    only_wider = Policy(
        allow_code=True, permitted_env=("VLLM_SERVER_DEV_MODE",), permitted_arguments=("trustRemoteCode",)
    )
    assert from_mapping(document({"env": [{"name": "PATH", "value": "/bin"}]}), only_wider)


def test_code_that_is_allowed_takes_no_devices_and_nothing_of_others():
    allowed = policy({"allowCode": True})
    code = {
        "env": [{"name": "LD_PRELOAD", "value": "/x"}],
        "files": [{"mountPath": "/usr/bin", "configMap": "c"}],
    }
    assert from_mapping(document(code), allowed)
    for spec in (
        {"devices": {"vendor": "nvidia"}, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
        {"scheduling": {"priorityClassName": "high"}},
        {"runtime": {"podAnnotations": {"sidecar.istio.io/inject": "true"}}},
        {"runtime": {"image": "evil.example/x"}},
        {"files": [{"mountPath": "/etc/models", "secret": "db"}]},
    ):
        with pytest.raises(InvalidService, match="policy admits"):
            from_mapping(document(spec), allowed)


@pytest.mark.parametrize("value", ["", "none", "void"])
def test_a_service_may_hide_the_devices_of_its_node(value):
    hiding = document({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]})
    assert from_mapping(hiding)
    assert from_mapping(hiding, policy())


def test_secrets_and_claims_are_those_that_the_policy_names_where_it_names_some():
    uses = {
        "secrets": {"hubToken": {"name": "hub", "key": "token"}},
        "runtime": {"imagePullSecrets": ["hub-pull"]},
        "env": [{"name": "HF_TOKEN", "secret": {"name": "hub", "key": "token"}}],
    }
    for spec in ({key: value} for key, value in uses.items()):
        assert from_mapping(document(spec), policy())
        assert from_mapping(document(spec), policy({"secrets": ["hub*"]}))
        with pytest.raises(InvalidService, match="none of the Secrets that the policy admits"):
            from_mapping(document(spec), policy({"secrets": ["other"]}))
    cached = {"model": {"hub": {"id": "a/b"}, "cache": {"pvc": "cache"}}}
    assert from_mapping(document(cached), policy({"claims": ["cache"]}))
    with pytest.raises(InvalidService, match="cache is none of the claims"):
        from_mapping(document(cached), policy({"claims": ["other"]}))


@pytest.mark.parametrize(
    ("profiles", "namespace", "admitted"),
    [
        ({}, "team-a", True),
        ({"h100": []}, "team-a", True),
        ({"h100": ["team-a"]}, "team-a", True),
        ({"h100": ["team-b"]}, "team-a", False),
        ({"l4": []}, "team-a", False),
    ],
)
def test_a_profile_is_for_the_namespaces_that_the_policy_names(profiles, namespace, admitted):
    chosen = document({"profile": "h100"}, namespace)
    if admitted:
        assert from_mapping(chosen, policy({"profiles": profiles}))
    else:
        with pytest.raises(InvalidService, match="h100 is none of the profiles that the policy admits"):
            from_mapping(chosen, policy({"profiles": profiles}))


def shown() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every InferenceService of the examples and of the manual."""
    files = [*(ROOT / "examples").glob("*.yaml"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for path in sorted(files):
        text = path.read_text(encoding="utf-8")
        for block in [text] if path.suffix == ".yaml" else BLOCK.findall(text):
            for one in yaml.safe_load_all(block):
                if isinstance(one, dict) and one.get("kind") == "InferenceService":
                    yield f"{path.relative_to(ROOT)}: {one['metadata']['name']}", one


SHOWN = dict(shown())
NEEDED = {
    "docs/documents.md: demo": {"images": ["docker.io/slipway/demo-model"]},
    "docs/kubernetes/pods.md: adapted": {
        "allowCode": True,
        "images": ["registry.example.com/tools"],
        "csiDrivers": ["secrets-store.csi.k8s.io"],
        "annotations": ["example.org/team"],
    },
    "docs/kubernetes/pods.md: exposed": {"serviceTypes": ["LoadBalancer"]},
    "docs/kubernetes/pods.md: with-token": {"mountRoots": ["/var/run/vault"]},
    "docs/kubernetes/devices.md: fast-network": {"extendedResources": ["rdma/*", "hugepages-*"]},
    "docs/kubernetes/scaling.md: settled": {
        "annotations": ["cluster-autoscaler.kubernetes.io/safe-to-evict"]
    },
    "docs/kubernetes/air-gapped.md: behind-a-proxy": {
        "permittedEnv": ["HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE"]
    },
    "docs/kubernetes/air-gapped.md: from-image": {"images": ["registry.example.com/models"]},
    "examples/demo.yaml: demo": {"images": ["docker.io/slipway/demo-model"]},
}
"""What of the policy services of the manual need, beyond what is usual: that is what they show."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_service_of_the_manual_passes_with_what_it_shows_admitted(name):
    assert from_mapping(SHOWN[name], replace(policy(NEEDED.get(name, {})), file_paths=()))


def test_the_manual_names_every_value_of_the_policy():
    text = TENANCY.read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}`" not in text] == []
