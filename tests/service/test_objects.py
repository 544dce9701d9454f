"""What a document becomes on Kubernetes, against files that a person has read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipway.api.routes import state
from slipway.service import Facts, InvalidService, Owner, Policy, ServiceSpec, from_mapping, render
from slipway.service.pod import as_given, for_kubelet
from slipway.service.profile import read_profile, with_profile
from slipway.service.rollout import surge_of

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
FACTS = Facts(
    cpu_image="slipway/runtime-cpu:1",
    cuda_image="slipway/runtime-cuda:1",
    kinds=frozenset({"ServiceMonitor", "PodMonitor"}),
    monitoring_labels={"release": "default", "scraped-by": "platform"},
    owner=Owner("owner", "5f0c"),
)
OWN = (HERE / "everything.yaml", HERE / "beside.yaml")
DOCUMENTS = {path.stem: path for path in (*sorted(EXAMPLES.glob("*.yaml")), *OWN)}
DEVICES = yaml.safe_load((HERE / "golden" / "devices.yaml").read_text())


def document_of(name: str, **fields: object) -> dict[str, Any]:
    """The document with top-level fields of its spec replaced."""
    document = yaml.load(DOCUMENTS[name].read_text(), yaml.CSafeLoader)
    return {**document, "spec": {**document["spec"], **fields}}


def changed(name: str, **fields: object) -> ServiceSpec:
    return from_mapping(document_of(name, **fields), Policy(allow_code=True))


def spec_of(name: str) -> ServiceSpec:
    return changed(name)


def made_of(spec: ServiceSpec, kind: str, facts: Facts = FACTS) -> dict[str, Any]:
    (made,) = [one for one in render(spec, facts) if one["kind"] == kind]
    return made


def pod_of(spec: ServiceSpec, facts: Facts = FACTS) -> dict[str, Any]:
    return render(spec, facts)[0]["spec"]["template"]["spec"]


def server_of(spec: ServiceSpec, facts: Facts = FACTS) -> dict[str, Any]:
    return pod_of(spec, facts)["containers"][0]


def environment_of(spec: ServiceSpec) -> dict[str, object]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in server_of(spec)["env"]}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_objects_are_those_of_the_golden_file(name):
    golden = yaml.load_all((HERE / "golden" / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    assert render(spec_of(name), FACTS) == list(golden)


def of_devices(spec: dict[str, Any]) -> dict[str, Any]:
    """What devices can change of a pod."""
    document = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }
    pod = pod_of(from_mapping(document))
    (server,) = pod["containers"]
    found = {
        "image": server["image"],
        "args": server["args"][6:],
        "resources": server["resources"],
        "readOnlyRootFilesystem": server["securityContext"]["readOnlyRootFilesystem"],
        "shm": pod["volumes"][0]["emptyDir"]["sizeLimit"],
        "tolerations": pod.get("tolerations"),
        "resourceClaims": pod.get("resourceClaims"),
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


@pytest.mark.parametrize("name", DEVICES)
def test_devices_are_asked_for_as_in_the_golden_file(name):
    row = DEVICES[name]
    assert of_devices(row["spec"]) == row["pod"]


@pytest.mark.parametrize("name", DEVICES)
def test_no_pod_gets_both_a_limit_of_a_device_plugin_and_a_claim(name):
    resources = of_devices(DEVICES[name]["spec"]).get("resources", {})
    counted = [key for key in resources.get("limits", {}) if "/" in key]
    assert not (counted and resources.get("claims"))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_pod_is_restricted_and_takes_no_service_links(name):
    pod = pod_of(spec_of(name))
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any("hostPath" in volume for volume in pod["volumes"])
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_user_and_a_group_are_set_unless_the_platform_gives_them():
    spec = spec_of("demo")
    context = pod_of(spec)["securityContext"]
    assert (context["runAsUser"], context["fsGroup"]) == (1001, 1001)
    assert context["fsGroupChangePolicy"] == "OnRootMismatch"
    given_by_platform = pod_of(spec, replace(FACTS, openshift=True))["securityContext"]
    assert given_by_platform.keys() & {"runAsUser", "fsGroup"} == set()
    own = changed("demo", security={"runAsUser": 7})
    for facts in (FACTS, replace(FACTS, openshift=True)):
        assert pod_of(own, facts)["securityContext"]["runAsUser"] == 7
    assert pod_of(own)["securityContext"]["fsGroup"] == 7


def test_pods_go_to_nodes_that_can_run_their_image():
    facts = replace(FACTS, cpu_architecture="arm64")
    assert pod_of(spec_of("demo"), facts)["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert pod_of(spec_of("gpu"), facts)["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert "nodeSelector" not in pod_of(spec_of("demo"), replace(FACTS, cpu_architecture=""))
    assert "nodeSelector" not in pod_of(changed("demo", runtime={"image": "example.com/mine:1"}))
    own = changed("demo", scheduling={"nodeSelector": {"kubernetes.io/arch": "s390x", "pool": "models"}})
    assert pod_of(own)["nodeSelector"] == {"kubernetes.io/arch": "s390x", "pool": "models"}


def test_the_root_file_system_is_read_only_unless_there_are_devices_or_it_is_asked_otherwise():
    def read_only(spec: ServiceSpec) -> bool:
        return bool(server_of(spec)["securityContext"]["readOnlyRootFilesystem"])

    assert read_only(spec_of("demo"))
    assert not read_only(spec_of("gpu"))
    assert not read_only(changed("demo", security={"readOnlyRootFilesystem": False}))
    assert read_only(changed("gpu", security={"readOnlyRootFilesystem": True}))


def test_the_container_listens_on_all_addresses():
    assert server_of(spec_of("hub"))["args"][:4] == [
        "serve",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "--host",
        "::",
    ]


def test_a_revision_of_the_hub_reaches_the_server():
    words = server_of(spec_of("hub"))["args"]
    assert words[words.index("--revision") + 1] == "main"


def test_the_grace_period_is_drain_grace_and_drain_timeout_and_10_seconds():
    assert pod_of(spec_of("demo"))["terminationGracePeriodSeconds"] == 5 + 60 + 10
    assert pod_of(spec_of("everything"))["terminationGracePeriodSeconds"] == 7 + 90 + 10


def test_probes_follow_the_scheme_of_the_api():
    plain, secure = server_of(spec_of("demo")), server_of(spec_of("everything"))
    for probe, path in (
        ("startupProbe", "/live"),
        ("livenessProbe", "/live"),
        ("readinessProbe", "/ready"),
    ):
        request = {"path": path, "port": "http"}
        assert plain[probe]["httpGet"] == {**request, "scheme": "HTTP"}
        assert secure[probe]["httpGet"] == {**request, "scheme": "HTTPS"}


def test_probes_ask_what_the_server_answers_without_a_key():
    server = server_of(spec_of("demo"))
    asked = {server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert asked <= {route.path for route in state.routes if route.public}


def test_secrets_are_references_and_nothing_else():
    variables = environment_of(spec_of("everything"))
    assert variables["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert variables["VLLM_API_KEY"] == {"secretKeyRef": {"name": "api", "key": "key"}}


def test_users_set_defaults_of_the_operator_otherwise():
    spec = changed("everything", env=[{"name": "HF_HUB_OFFLINE", "value": "0"}])
    assert environment_of(spec)["HF_HUB_OFFLINE"] == "0"
    assert environment_of(spec_of("everything"))["HF_HUB_OFFLINE"] == "1"
    moved = environment_of(changed("demo", env=[{"name": "VLLM_CACHE_ROOT", "value": "/cache/x"}]))
    assert moved["VLLM_CACHE_ROOT"] == "/cache/x"
    assert "SLIPWAY_CACHE" not in moved


@pytest.mark.parametrize(
    ("model", "argument"),
    [
        ({"hub": {"id": "org/name"}}, "org/name"),
        ({"pvc": {"name": "claim"}}, "/model"),
        ({"pvc": {"name": "claim", "path": "a/b"}}, "/model/a/b"),
        ({"image": {"reference": "registry/model:1", "path": "m.gguf"}}, "/model/m.gguf"),
        ({"path": "/opt/model"}, "/opt/model"),
        ({"s3": {"uri": "s3://bucket/folder/"}}, "/cache/s3/bucket/folder"),
    ],
)
def test_each_model_source_becomes_what_the_server_loads(model, argument):
    pod = pod_of(changed("demo", model=model))
    assert pod["containers"][0]["args"][1] == argument
    mounted = "pvc" in model or "image" in model
    assert any(volume["name"] == "model" for volume in pod["volumes"]) == mounted
    assert bool(pod.get("initContainers")) == ("s3" in model)


def test_a_bucket_is_fetched_by_the_same_image_and_its_keys_stay_there():
    pod = pod_of(spec_of("bucket"))
    (fetch,), (server,) = pod["initContainers"], pod["containers"]
    assert fetch["image"] == server["image"]
    assert fetch["args"] == [
        "fetch",
        "s3://models/SmolLM2-135M-Instruct",
        server["args"][1],
        "--endpoint",
        "https://s3.example.org",
    ]
    keys = {entry["name"] for entry in fetch["env"] if "valueFrom" in entry}
    assert keys == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    assert not keys & environment_of(spec_of("bucket")).keys()


def test_a_fetch_gets_the_users_variables_but_none_of_the_servers():
    env = [
        {"name": "HTTPS_PROXY", "value": "http://proxy"},
        {"name": "HOME", "value": "/cache/x"},
        {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
    ]
    (fetch,) = pod_of(changed("bucket", env=env))["initContainers"]
    plain = {entry["name"]: entry["value"] for entry in fetch["env"] if "value" in entry}
    assert plain == {"HOME": "/cache", "HTTPS_PROXY": "http://proxy"}


@pytest.mark.parametrize(
    ("model", "volume"),
    [
        ({"hub": {"id": "a/b"}}, {"emptyDir": {"sizeLimit": "100Gi"}}),
        ({"s3": {"uri": "s3://b"}}, {"emptyDir": {"sizeLimit": "100Gi"}}),
        ({"path": "/x"}, {"emptyDir": {"sizeLimit": "10Gi"}}),
        ({"path": "/x", "cache": {"size": "1Gi"}}, {"emptyDir": {"sizeLimit": "1Gi"}}),
        ({"path": "/x", "cache": {"pvc": "c"}}, {"persistentVolumeClaim": {"claimName": "c"}}),
    ],
)
def test_the_cache_is_a_bounded_folder_or_a_claim(model, volume):
    found = {one.pop("name"): one for one in pod_of(changed("demo", model=model))["volumes"]}
    assert found["cache"] == volume


@pytest.mark.parametrize(
    ("model", "exclusive", "kind"),
    [
        ({"path": "/x"}, {}, "RollingUpdate"),
        ({"path": "/x", "cache": {"pvc": "c"}}, {}, "RollingUpdate"),
        ({"path": "/x", "cache": {"pvc": "c"}}, {"c": "ReadWriteOnce"}, "Recreate"),
        ({"path": "/x", "cache": {"pvc": "c", "accessMode": "ReadWriteOnce"}}, {}, "Recreate"),
        ({"path": "/x", "cache": {"pvc": "c", "accessMode": "ReadWriteOncePod"}}, {}, "Recreate"),
        (
            {"path": "/x", "cache": {"pvc": "c", "accessMode": "ReadWriteMany"}},
            {"c": "ReadWriteOnce"},
            "RollingUpdate",
        ),
        ({"pvc": {"name": "c"}}, {}, "RollingUpdate"),
        ({"pvc": {"name": "c"}}, {"c": "ReadWriteOnce"}, "Recreate"),
        ({"pvc": {"name": "c"}, "cache": {"pvc": "other"}}, {"c": "ReadWriteOncePod"}, "Recreate"),
    ],
)
def test_a_claim_that_one_node_can_mount_lets_the_old_pods_end_first_and_says_why(model, exclusive, kind):
    spec = changed("demo", model=model)
    made = made_of(spec, "Deployment", replace(FACTS, exclusive_claims=exclusive))
    reason = made["metadata"].get("annotations", {}).get("slipway.dev/rollout")
    assert made["spec"]["strategy"]["type"] == kind
    assert (reason is not None) == (kind == "Recreate")
    assert reason is None or "the claim c is ReadWriteOnce" in reason


def test_a_claim_of_volumes_counts_for_the_rollout_too():
    volumes = [{"name": "v", "mountPath": "/v", "pvc": {"name": "c"}}]
    spec = changed("demo", model={"path": "/x"}, volumes=volumes)
    facts = replace(FACTS, exclusive_claims={"c": "ReadWriteOnce"})
    assert made_of(spec, "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    assert made_of(spec, "Deployment", facts)["spec"]["strategy"]["type"] == "Recreate"


def test_own_containers_run_first_then_sidecars_start_then_the_model_is_fetched():
    beside = {
        "initContainers": [{"name": "one", "image": "a"}, {"name": "two", "image": "a"}],
        "sidecars": [{"name": "proxy", "image": "a"}],
    }
    pod = pod_of(changed("bucket", **beside))
    assert [one["name"] for one in pod["initContainers"]] == ["one", "two", "proxy", "fetch"]
    assert [one.get("restartPolicy") for one in pod["initContainers"]] == [None, None, "Always", None]
    assert [one["name"] for one in pod["containers"]] == ["server"]


def test_a_container_beside_the_server_may_write_into_its_root_where_the_server_may_or_it_is_said():
    def read_only(name: str, **security: bool) -> bool:
        (sidecar,) = pod_of(changed(name, sidecars=[{"name": "c", "image": "a", "security": security}]))[
            "initContainers"
        ]
        return bool(sidecar["securityContext"]["readOnlyRootFilesystem"])

    assert read_only("demo")
    assert not read_only("gpu")
    assert not read_only("demo", readOnlyRootFilesystem=False)
    assert read_only("gpu", readOnlyRootFilesystem=True)


@pytest.mark.parametrize("replicas", [1, 3])
def test_several_pods_of_a_claim_for_one_node_are_told_that_they_need_one(replicas):
    spec = changed("demo", model={"pvc": {"name": "c"}}, replicas=replicas)
    made = made_of(spec, "Deployment", replace(FACTS, exclusive_claims={"c": "ReadWriteOnce"}))
    reason = made["metadata"]["annotations"]["slipway.dev/rollout"]
    assert ("All 3 pods need one node." in reason) == (replicas == 3)


@pytest.mark.parametrize(
    ("model", "exclusive"),
    [
        ({"path": "/x", "cache": {"pvc": "c", "accessMode": "ReadWriteOncePod"}}, {}),
        ({"pvc": {"name": "c"}}, {"c": "ReadWriteOncePod"}),
    ],
)
def test_more_pods_than_can_mount_a_claim_are_refused(model, exclusive):
    spec = changed("demo", model=model, replicas=3)
    with pytest.raises(InvalidService, match="3 pods cannot mount the claim c, which is ReadWriteOncePod"):
        render(spec, replace(FACTS, exclusive_claims=exclusive))


def test_shared_memory_counts_into_the_limit():
    spec = changed("demo", resources={"memory": "1500M", "sharedMemory": "512Mi"})
    assert server_of(spec)["resources"]["limits"]["memory"] == str(1_500_000_000 + (512 << 20))
    spec = changed("demo", resources={"memory": "2Gi"}, engine={"tensorParallelSize": 2})
    assert server_of(spec)["resources"]["limits"]["memory"] == "4Gi"
    assert "memory" not in server_of(changed("demo", resources={})).get("resources", {}).get("limits", {})


@pytest.mark.parametrize(
    ("name", "fields", "facts", "kinds"),
    [
        ("gpu", {}, FACTS, {"Deployment", "Service", "ServiceMonitor", "PodDisruptionBudget"}),
        ("gpu", {}, Facts(), {"Deployment", "Service", "PodDisruptionBudget"}),
        (
            "gpu",
            {"monitoring": {"enabled": True, "kind": "PodMonitor"}},
            FACTS,
            {"Deployment", "Service", "PodMonitor", "PodDisruptionBudget"},
        ),
        ("gpu", {"replicas": 1}, FACTS, {"Deployment", "Service", "ServiceMonitor"}),
        ("gpu", {"suspend": True}, FACTS, {"Deployment", "Service", "ServiceMonitor"}),
        ("demo", {}, FACTS, {"Deployment", "Service"}),
    ],
)
def test_there_are_the_objects_that_the_service_and_the_cluster_call_for(name, fields, facts, kinds):
    made = [one["kind"] for one in render(changed(name, **fields), facts)]
    assert set(made) == kinds
    assert len(made) == len(kinds)


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ({}, {"maxUnavailable": 1}),
        ({"maxUnavailable": 0}, {"maxUnavailable": 0}),
        ({"minAvailable": "50%"}, {"minAvailable": "50%"}),
    ],
)
def test_the_disruption_budget_is_one_pod_unless_the_document_sets_it(given, budget):
    made = made_of(changed("demo", replicas=3, disruption=given), "PodDisruptionBudget")["spec"]
    del made["unhealthyPodEvictionPolicy"], made["selector"]
    assert made == budget


def test_pods_are_pulled_with_the_operators_secrets_where_the_document_names_none():
    facts = replace(FACTS, image_pull_secrets=("mirror", "vendor"))
    assert pod_of(spec_of("demo"), facts)["imagePullSecrets"] == [{"name": "mirror"}, {"name": "vendor"}]
    own = changed("demo", runtime={"imagePullSecrets": ["own"]})
    assert pod_of(own, facts)["imagePullSecrets"] == [{"name": "own"}]
    assert "imagePullSecrets" not in pod_of(spec_of("demo"))


def test_a_suspended_service_has_no_pods():
    assert made_of(changed("gpu", suspend=True), "Deployment")["spec"]["replicas"] == 0


def test_a_monitor_has_the_platforms_labels_and_the_documents_win():
    labels = made_of(spec_of("everything"), "PodMonitor")["metadata"]["labels"]
    assert (labels["release"], labels["scraped-by"]) == ("prometheus", "platform")


def test_a_monitor_speaks_https_where_the_api_does():
    (plain,) = made_of(spec_of("gpu"), "ServiceMonitor")["spec"]["endpoints"]
    (secure,) = made_of(spec_of("everything"), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (plain["scheme"], secure["scheme"]) == ("http", "https")
    assert secure["tlsConfig"] == {"insecureSkipVerify": True}


def test_a_pinned_template_stands_in_for_a_new_one_and_is_not_shared():
    pinned = {"metadata": {"labels": {"old": "yes"}}, "spec": {"containers": []}}
    made = render(spec_of("demo"), replace(FACTS, template=pinned))
    assert made[0]["spec"]["template"] == pinned
    made[0]["spec"]["template"]["spec"]["containers"].append({})
    assert pinned["spec"]["containers"] == []


def as_the_kubelet_reads(text: str) -> str:
    """$(NAME) is a variable, $$ one dollar; another dollar is itself."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else f"<{found[1]}>", text)


@given(st.text(alphabet="$()ab{}", max_size=20))
def test_the_kubelet_expands_nothing_of_what_a_document_says(text):
    assert as_the_kubelet_reads(for_kubelet(text)) == text
    assert as_given(for_kubelet(text)) == text


def test_arguments_and_values_with_dollars_reach_the_server_as_written():
    spec = changed(
        "demo",
        engine={"chatTemplate": "{{ '$(VLLM_API_KEY) $$' }}"},
        env=[{"name": "OWN", "value": "$(HOME)"}],
    )
    assert "{{ '$$(VLLM_API_KEY) $$$$' }}" in server_of(spec)["args"]
    assert environment_of(spec)["OWN"] == "$$(HOME)"


def test_an_unowned_service_has_no_owner():
    for one in render(spec_of("demo"), Facts()):
        assert "ownerReferences" not in one["metadata"]


GPU = {"vendor": "nvidia"}
FULL = "no node has nvidia.com/gpu 1 free beside the pods that run"


@pytest.mark.parametrize(
    ("spec", "no_room", "wanted", "why"),
    [
        ({}, None, {"maxSurge": 1, "maxUnavailable": 0}, None),
        ({"devices": GPU, "rollout": {}, "env": []}, None, {"maxSurge": 1, "maxUnavailable": 0}, None),
        ({"devices": GPU, "rollout": {}, "env": []}, FULL, None, f"Recreate: {FULL}."),
        ({"devices": {"claims": ["a"]}, "rollout": {}, "env": []}, FULL, None, f"Recreate: {FULL}."),
        ({"replicas": 2}, None, {"maxSurge": 1, "maxUnavailable": 0}, None),
        ({}, FULL, None, f"Recreate: {FULL}."),
        ({"replicas": 2}, FULL, {"maxSurge": 0, "maxUnavailable": 1}, f"One after another: {FULL}."),
        (
            {"replicas": 4, "rollout": {"maxSurge": "Auto", "maxUnavailable": "50%"}},
            FULL,
            {"maxSurge": 0, "maxUnavailable": "50%"},
            f"One after another: {FULL}.",
        ),
        (
            {"replicas": 4, "rollout": {"maxSurge": "Auto", "maxUnavailable": "0%"}},
            FULL,
            {"maxSurge": 0, "maxUnavailable": 1},
            f"One after another: {FULL}.",
        ),
    ],
)
def test_an_automatic_surge_follows_what_is_free(spec, no_room, wanted, why):
    document = {"rollout": {"maxSurge": "Auto"}, **spec}
    made = made_of(changed("demo", **document), "Deployment", replace(FACTS, no_room=no_room))
    kind = {"type": "RollingUpdate", "rollingUpdate": wanted} if wanted else {"type": "Recreate"}
    assert made["spec"]["strategy"] == kind
    said = made["metadata"].get("annotations", {}).get("slipway.dev/rollout")
    assert said == (f"{why} With a node more, rollouts keep all replicas." if why else None)


def test_a_device_of_the_profile_makes_the_surge_automatic_as_one_of_the_document_does():
    profile = read_profile("p", {"devices": GPU})
    spec = changed("demo", profile="p", env=[])
    assert surge_of(with_profile(spec, profile)) == "Auto"
    assert surge_of(changed("demo")) == 1
    assert surge_of(changed("demo", devices=GPU, env=[], rollout={"maxSurge": 1})) == 1
    strategy = made_of(spec, "Deployment", replace(FACTS, profile=profile))["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxSurge"] == 1


EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({}, "shm,tmp,cache"),
        ({"model": {"hub": {"id": "a/b"}, "cache": {"pvc": "c"}}}, "shm,tmp"),
        ({"volumes": [{"name": "own", "emptyDir": {}}]}, "shm,tmp,cache"),
        ({"runtime": {"podAnnotations": {EVICTABLE: "own"}}}, "own"),
        ({"runtime": {"podAnnotations": {EVICTABLE: ""}}}, ""),
    ],
)
def test_the_cluster_autoscaler_may_move_pods_whatever_is_in_folders_of_ours(spec, names):
    template = made_of(changed("demo", **spec), "Deployment")["spec"]["template"]
    assert template["metadata"]["annotations"][EVICTABLE] == names


def test_istio_s_proxy_starts_first_and_ends_last_unless_the_document_says_otherwise():
    name = "sidecar.istio.io/nativeSidecar"

    def annotations(**spec: Any) -> dict[str, str]:
        template = made_of(changed("demo", **spec), "Deployment")["spec"]["template"]
        found: dict[str, str] = template["metadata"]["annotations"]
        return found

    assert annotations()[name] == "true"
    assert annotations(runtime={"podAnnotations": {name: "false"}})[name] == "false"
