"""What a document becomes on Kubernetes and under podman, against files that a person has read."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slipway.service import Facts, InvalidService, ServiceSpec, load, podman_command, render

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
FACTS = Facts(
    cpu_image="slipway/runtime-cpu:1",
    cuda_image="slipway/runtime-cuda:1",
    kinds=frozenset({"ServiceMonitor", "PodMonitor"}),
)
DOCUMENTS = {
    "demo": EXAMPLES / "demo.yaml",
    "llama": EXAMPLES / "llama.yaml",
    "everything": HERE / "everything.yaml",
}


def spec_of(name: str) -> ServiceSpec:
    return load(DOCUMENTS[name].read_text())


def changed(name: str, **fields: object) -> ServiceSpec:
    """The document with top-level fields of its spec replaced."""
    document = yaml.safe_load(DOCUMENTS[name].read_text())
    document["spec"] = {**document["spec"], **fields}
    return load(yaml.safe_dump(document))


def pod_of(spec: ServiceSpec, facts: Facts = FACTS) -> dict:
    return render(spec, facts)[0]["spec"]["template"]["spec"]


def environment_of(spec: ServiceSpec) -> dict[str, object]:
    (container,) = pod_of(spec)["containers"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_objects_are_those_of_the_golden_file(name):
    golden = yaml.safe_load_all((HERE / "golden" / f"{name}.yaml").read_text())
    assert render(spec_of(name), FACTS) == list(golden)


@pytest.mark.parametrize("name", ["demo", "llama"])
def test_the_podman_line_is_that_of_the_golden_file(name):
    golden = (HERE / "golden" / f"{name}.podman").read_text()
    assert podman_command(spec_of(name), FACTS) + "\n" == golden


@pytest.mark.parametrize("name", DOCUMENTS)
def test_rendering_twice_gives_the_same_and_changes_nothing(name):
    spec = spec_of(name)
    first = render(spec, FACTS)
    kept = copy.deepcopy(first)
    assert render(spec, FACTS) == kept
    assert first == kept


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_pod_is_restricted_and_takes_no_service_links(name):
    pod = pod_of(spec_of(name))
    (container,) = pod["containers"]
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_variable_stands_in_the_pod_once(name):
    names = [entry["name"] for entry in pod_of(spec_of(name))["containers"][0]["env"]]
    assert len(names) == len(set(names))


def test_the_container_listens_on_all_addresses():
    arguments = pod_of(spec_of("demo"))["containers"][0]["args"]
    assert arguments[:4] == ["serve", "HuggingFaceTB/SmolLM2-135M-Instruct", "--host", "0.0.0.0"]


def test_the_grace_period_is_drain_grace_and_drain_timeout_and_10_seconds():
    assert pod_of(spec_of("demo"))["terminationGracePeriodSeconds"] == 5 + 60 + 10
    assert pod_of(spec_of("everything"))["terminationGracePeriodSeconds"] == 7 + 90 + 10


def test_probes_follow_the_scheme_of_the_api():
    (plain,) = pod_of(spec_of("demo"))["containers"]
    (secure,) = pod_of(spec_of("everything"))["containers"]
    for probe, path in (
        ("startupProbe", "/health"),
        ("livenessProbe", "/health"),
        ("readinessProbe", "/ready"),
    ):
        request = {"path": path, "port": "http"}
        assert plain[probe]["httpGet"] == {**request, "scheme": "HTTP"}
        assert secure[probe]["httpGet"] == {**request, "scheme": "HTTPS"}


def test_secrets_are_references_and_nothing_else():
    variables = environment_of(spec_of("everything"))
    assert variables["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert variables["VLLM_API_KEY"] == {"secretKeyRef": {"name": "api", "key": "key"}}


def test_a_monitor_is_made_where_it_is_wanted_and_the_cluster_knows_the_kind():
    kinds = [made["kind"] for made in render(spec_of("llama"), FACTS)]
    assert "ServiceMonitor" in kinds
    assert "ServiceMonitor" not in [made["kind"] for made in render(spec_of("llama"), Facts())]
    assert "ServiceMonitor" not in [made["kind"] for made in render(spec_of("demo"), FACTS)]


def test_one_replica_has_no_disruption_budget():
    assert "PodDisruptionBudget" not in [m["kind"] for m in render(spec_of("demo"), FACTS)]
    assert "PodDisruptionBudget" in [m["kind"] for m in render(changed("demo", replicas=2), FACTS)]


def test_a_suspended_service_has_no_pods_and_keeps_its_objects():
    made = render(changed("demo", suspend=True), FACTS)
    assert made[0]["spec"]["replicas"] == 0
    assert [one["kind"] for one in made] == ["Deployment", "Service"]


def test_a_pinned_template_stands_in_for_a_new_one():
    pinned = {"metadata": {"labels": {"old": "yes"}}, "spec": {"containers": []}}
    made = render(spec_of("demo"), replace(FACTS, template=pinned))
    assert made[0]["spec"]["template"] == pinned


def test_users_set_defaults_of_the_operator_otherwise():
    spec = changed("everything", env=[{"name": "HF_HUB_OFFLINE", "value": "0"}])
    assert environment_of(spec)["HF_HUB_OFFLINE"] == "0"
    assert environment_of(spec_of("everything"))["HF_HUB_OFFLINE"] == "1"
    moved = environment_of(changed("demo", env=[{"name": "VLLM_CACHE_ROOT", "value": "/cache/x"}]))
    assert moved["VLLM_CACHE_ROOT"] == "/cache/x"
    assert "SLIPWAY_CACHE" not in moved


def test_the_root_file_system_is_read_only_unless_there_are_devices_or_it_is_asked_otherwise():
    def read_only(spec: ServiceSpec) -> bool:
        return pod_of(spec)["containers"][0]["securityContext"]["readOnlyRootFilesystem"]

    assert read_only(spec_of("demo"))
    assert not read_only(spec_of("llama"))
    assert not read_only(changed("demo", security={"readOnlyRootFilesystem": False}))


@pytest.mark.parametrize(
    ("model", "argument"),
    [
        ({"hub": "org/name"}, "org/name"),
        ({"pvc": {"name": "claim"}}, "/model"),
        ({"pvc": {"name": "claim", "path": "a/b"}}, "/model/a/b"),
        ({"image": {"reference": "registry/model:1", "path": "m.gguf"}}, "/model/m.gguf"),
        ({"path": "/opt/model"}, "/opt/model"),
        ({"s3": "s3://bucket/folder"}, "s3://bucket/folder"),
    ],
)
def test_each_model_source_becomes_what_the_server_loads(model, argument):
    pod = pod_of(changed("demo", model=model))
    assert pod["containers"][0]["args"][1] == argument
    mounted = "pvc" in model or "image" in model
    assert any(volume["name"] == "model" for volume in pod["volumes"]) == mounted


def test_mig_profiles_and_claims_name_their_resources():
    sliced = changed("llama", devices={"count": 2, "profile": "1g.10gb"})
    assert pod_of(sliced)["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "2"
    claimed = pod_of(changed("llama", devices={"claims": ["gpu"]}))
    assert claimed["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    assert claimed["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("demo", {"files": [{"mountPath": "/etc/x", "configMap": "x"}]}, "spec.files"),
        ("demo", {"secrets": {"tls": {"name": "x"}}}, "spec.secrets.tls"),
        ("demo", {"env": [{"name": "X", "configMap": {"name": "x", "key": "y"}}]}, "spec.env"),
        ("llama", {"devices": {"claims": ["x"]}}, "spec.devices"),
        ("demo", {"resources": {"memory": "1500m"}}, "Use Mi or Gi"),
    ],
)
def test_what_only_a_cluster_has_is_refused_for_podman(name, fields, words):
    with pytest.raises(InvalidService, match=words):
        podman_command(changed(name, **fields), FACTS)


@pytest.mark.parametrize(
    ("quantity", "option"),
    [("8Gi", "8g"), ("512Mi", "512m"), ("2G", "2000000000b"), ("1.5k", "1500b")],
)
def test_memory_is_written_in_podmans_units(quantity, option):
    line = podman_command(changed("demo", resources={"memory": quantity}), FACTS)
    assert f"--memory {option}" in line


def test_podman_takes_secrets_from_the_shell_by_name():
    line = podman_command(spec_of("llama"), FACTS)
    assert "--env HF_TOKEN \\" in line
    assert "--env HF_TOKEN=" not in line
