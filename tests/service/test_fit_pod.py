"""The pod that asks whether a model fits: what it has of the server's, and what it must not have."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from slipway.cli.main import main
from slipway.service import Facts, ServiceSpec, from_mapping, render
from slipway.service.fit_pod import FIT, fit_pod, is_fit_pod
from slipway.service.labels import selector
from slipway.service.network import policy_spec
from slipway.service.pod import as_given
from small_shapes import LLAMA

LABELS = "nvidia.com/gpu.product=NVIDIA-L4,nvidia.com/gpu.memory=23034,nvidia.com/gpu.count=2"
FACTS = Facts(cpu_image="cpu:1", cuda_image="cuda:1", namespace="models")


def spec_of(**spec: Any) -> ServiceSpec:
    head = {"apiVersion": "slipway.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "demo"}}
    given = {"model": {"hub": {"id": "org/model"}}, "devices": {"vendor": "nvidia"}, **spec}
    return from_mapping({**head, "spec": given})


def asking(spec: ServiceSpec, *labels: str) -> dict[str, Any]:
    return fit_pod(spec, FACTS, labels or (LABELS,))


def server(spec: ServiceSpec) -> dict[str, Any]:
    template: dict[str, Any] = render(spec, FACTS)[0]["spec"]["template"]
    return template


def test_it_asks_of_the_servers_arguments_with_its_image_and_secrets() -> None:
    spec = spec_of(
        engine={"tensorParallelSize": 2},
        secrets={"hubToken": {"name": "hub", "key": "token"}, "apiKey": {"name": "api", "key": "key"}},
        env=[
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "HF_ENDPOINT", "value": "https://hub"},
        ],
    )
    (container,) = asking(spec, LABELS, "nvidia.com/gpu.product=NVIDIA-H100")["spec"]["containers"]
    (serving,) = server(spec)["spec"]["containers"]
    assert container["image"] == "cuda:1"
    words = shlex.join(serving["args"][1:]).replace(" --device cuda", "")
    nodes = f"--node {LABELS} --node nvidia.com/gpu.product=NVIDIA-H100"
    assert shlex.join(container["args"]) == f"fit {words} {nodes}"
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert own in container["env"]
    left_out = ("NVIDIA_VISIBLE_DEVICES", "VLLM_API_KEY")
    rest = [entry for entry in serving["env"] if entry["name"] not in left_out]
    assert [entry for entry in container["env"] if entry != own] == rest
    assert container["securityContext"] == serving["securityContext"]


def test_the_program_takes_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    spec = spec_of(
        model={"path": str(tmp_path), "servedNames": ["one"]},
        engine={"maxModelLen": 512, "device": "cuda"},
        secrets={"tls": {"name": "certificates"}},
        rollout={"drainSeconds": 5},
    )
    (container,) = asking(spec)["spec"]["containers"]
    assert main([as_given(word) for word in container["args"]]) == 0
    assert "LlamaForCausalLM on 1 × NVIDIA-L4" in capsys.readouterr().out


def test_it_has_no_device_no_port_and_nothing_that_counts_replicas() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    spec = spec_of(
        scheduling={"topologySpreadConstraints": [spread], "priorityClassName": "high"},
        resources={"rdma/ib": 1, "memory": "64Gi"},
    )
    pod = asking(spec)["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert not {"ports", "readinessProbe", "livenessProbe"} & container.keys()
    assert "topologySpreadConstraints" not in pod
    assert pod["priorityClassName"] == "high"
    assert pod["restartPolicy"] == "Never"


def test_it_is_placed_as_the_server_and_near_its_devices_where_it_can() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = spec_of(scheduling={"nodeSelector": {"pool": "large"}, "affinity": {"nodeAffinity": required}})
    made, serving = asking(spec)["spec"], server(spec)["spec"]
    assert made["nodeSelector"] == serving["nodeSelector"]
    assert made["tolerations"] == serving["tolerations"]
    affinity = made["affinity"]["nodeAffinity"]
    assert affinity.items() >= required.items()
    assert len(affinity["preferredDuringSchedulingIgnoredDuringExecution"]) == 1


def test_no_service_finds_it_and_the_network_s_policies_do() -> None:
    spec = spec_of(runtime={"podLabels": {"team": "search"}}, service={"to": []})
    labels = asking(spec)["metadata"]["labels"]
    assert not selector("demo").items() <= labels.items()
    assert labels["team"] == "search"
    policy = policy_spec(spec, FACTS)
    assert policy is not None
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()


def test_a_claim_that_caches_stays_with_the_server_and_one_with_the_model_is_mounted() -> None:
    model = {"pvc": {"name": "models", "path": "one"}, "cache": {"pvc": "cache"}}
    volumes = {volume["name"]: volume for volume in asking(spec_of(model=model))["spec"]["volumes"]}
    assert volumes["cache"] == {"name": "cache", "emptyDir": {"sizeLimit": "2Gi"}}
    assert volumes["model"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert not {"shm", "tls"} & volumes.keys()


def test_claims_that_no_configuration_lies_in_are_not_bound_by_it() -> None:
    volumes = [
        {"name": "scratch", "mountPath": "/scratch", "pvc": {"name": "scratch"}},
        {"name": "pages", "mountPath": "/mnt/pages", "emptyDir": {}},
        {"name": "models", "mountPath": "/models", "pvc": {"name": "models"}},
        {"name": "vault", "mountPath": "/vault", "csi": {"driver": "secrets-store.csi.k8s.io"}},
    ]
    model = {"path": "/models/one"}
    made = asking(spec_of(model=model, volumes=volumes, secrets={"tls": {"name": "certificates"}}))["spec"]
    assert {volume["name"] for volume in made["volumes"]} == {"tmp", "cache", "models", "vault"}


def test_of_a_bucket_all_but_the_weights_is_fetched() -> None:
    spec = spec_of(
        model={"s3": {"uri": "s3://models/one"}},
        initContainers=[{"name": "own", "image": "one:1"}],
    )
    (fetch,) = asking(spec)["spec"]["initContainers"]
    assert fetch["args"][-1] == "--without-weights"
    assert "nvidia.com/gpu" not in fetch["resources"].get("limits", {})
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in fetch["env"]


@pytest.mark.parametrize(
    "other",
    [{"engine": {"maxModelLen": 512}}, {"env": [{"name": "HF_ENDPOINT", "value": "https://hub"}]}],
)
def test_another_question_is_another_pod(other: dict[str, Any]) -> None:
    first = asking(spec_of())["metadata"]["name"]
    assert is_fit_pod("demo", first)
    assert first.startswith(f"demo-{FIT}-")
    assert first == asking(spec_of(replicas=3))["metadata"]["name"]
    names = {
        first,
        asking(spec_of(**other))["metadata"]["name"],
        asking(spec_of(), "a=b")["metadata"]["name"],
    }
    assert len(names) == 3
