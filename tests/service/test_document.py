"""Which documents are accepted, and what is said about the others."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.service import InvalidService, Policy, from_mapping, load, warnings
from slipway.service.engine import check_supported

EXAMPLES = Path(__file__).parents[2] / "examples"


def document(**spec: object) -> dict:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }


def refusal(of: object) -> str:
    with pytest.raises(InvalidService) as failure:
        from_mapping(of)
    return str(failure.value)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_accepted_and_supported(path):
    spec = load(path.read_text())
    assert spec.name == path.stem
    check_supported(spec)


def test_the_smallest_document_names_a_model():
    spec = from_mapping(document())
    assert spec.model.hub.id == "org/name"
    assert spec.replicas == 1
    assert spec.service.port == 8000


def test_what_kubectl_prints_is_accepted_again():
    printed = document()
    printed["metadata"] |= {"uid": "1", "resourceVersion": "7", "managedFields": []}
    printed["status"] = {"summary": "Ready"}
    assert from_mapping(printed).name == "demo"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"modle": {}}, "spec.modle: there is no such field. Did you mean model?"),
        ({"model": {"hub": "org/name"}}, "spec.model.hub: 'org/name' is not a mapping of fields."),
        (
            {"model": {"hub": {"id": "-x"}}},
            "spec.model.hub.id: '-x' is not a model of the hub such as org/name.",
        ),
        ({"model": {"s3": {"uri": "https://b/x"}}}, "is not a URI such as s3://bucket/folder."),
        ({"model": {"s3": {"uri": "s3://b/x", "endpoint": "host"}}}, "is not a URL such as https://"),
        ({"model": {"hubb": "x"}}, "spec.model.hubb: there is no such field. Did you mean hub?"),
        ({"env": [{"nam": "X"}]}, "spec.env[0].nam: there is no such field. Did you mean name?"),
        ({"replicas": "2"}, "spec.replicas: '2' is not a whole number."),
        ({"replicas": True}, "spec.replicas: True is not a whole number."),
        ({"replicas": -1}, "spec.replicas: -1 is not between 0 and 1000."),
        ({"suspend": "yes"}, "spec.suspend: 'yes' is not true or false."),
        ({"service": {"port": 70000}}, "spec.service.port: 70000 is not between 1 and 65535."),
        ({"service": {"type": "Other"}}, "'Other' is not one of ClusterIP, NodePort, LoadBalancer."),
        ({"resources": {"memory": "8 GB"}}, "spec.resources.memory: '8 GB' is not a quantity"),
        ({"devices": {"vendor": "ati"}}, "'ati' is not one of nvidia, amd, intel, habana, google."),
        ({"env": {"A": "1"}}, "spec.env: {'A': '1'} is not a list."),
        ({"env": [{"name": "A", "value": 1}]}, "spec.env[0].value: 1 is not text. Put it in quotes."),
        ({"scheduling": {"nodeSelector": {1: "x"}}}, "the key 1 is not text. Put it in quotes."),
        ({"files": [{"configMap": "x"}]}, "spec.files[0].mountPath: it must be given."),
        ({"files": [{"mountPath": "/a/../b", "secret": "x"}]}, "is not an absolute path without ., .."),
        ({"files": [{"mountPath": "/a"}]}, "exactly one of configMap and secret"),
        ({"model": {"pvc": {"name": "c", "path": "../x"}}}, "is not a path inside the volume"),
        ({"rollout": {"maxSurge": "120%"}}, "'120%' is not a number, a percentage or Auto."),
        ({"rollout": {"maxSurge": 2000}}, "spec.rollout.maxSurge: 2000 is not between 0 and 1000."),
        ({"rollout": {"maxSurge": 1.5}}, "spec.rollout.maxSurge: 1.5 is not a whole number."),
        ({"model": {}}, "none is given"),
        ({"model": {"hub": {"id": "a/b"}, "path": "/x"}}, "hub and path are given"),
        (
            {"model": {"hub": {"id": "a/b", "revision": "x"}}, "engine": {"revision": "y"}},
            "spec.engine.revision: spec.model.hub.revision says it",
        ),
        (
            {"model": {"hub": {"id": "a/b"}, "cache": {"accessMode": "ReadWriteOnce"}}},
            "spec.model.cache.accessMode: it is a claim's",
        ),
        (
            {"secrets": {"tls": {"name": "x"}}, "engine": {"sslCertReqs": 2}},
            "no pod would ever be ready. Use 1",
        ),
        ({"devices": {"count": 1, "claims": ["x"]}}, "count and claims exclude each other"),
        ({"devices": {"count": 1}}, "spec.devices.vendor: a count of 1 does not say whose devices"),
        ({"devices": {"profile": "1g.10gb"}}, "a MIG profile is for devices that are counted"),
        ({"devices": {"profile": "1g.10gb", "vendor": "amd"}}, "of vendor nvidia"),
        (
            {"devices": {"profile": "1g.10gb", "vendor": "nvidia", "claims": ["x"]}},
            "A claim names its own.",
        ),
        (
            {"devices": {"vendor": "nvidia", "count": 3}, "engine": {"tensorParallelSize": 2}},
            "spec.devices.count: 3 is not tensor parallel size 2 × pipeline parallel size 1 × "
            "local data parallel size 1 = 2, the workers of a pod",
        ),
        (
            {"devices": {"vendor": "amd"}},
            "spec.runtime.image: it must be given: Slipway has no image for devices of amd.",
        ),
        (
            {"engine": {"distributedExecutorBackend": "external_launcher"}},
            "spec.engine: --distributed-executor-backend external_launcher is told by variables",
        ),
        (
            {
                "engine": {"pipelineParallelSize": 2},
                "env": [{"name": "VLLM_PP_LAYER_PARTITION", "value": "3"}],
            },
            "spec.env: VLLM_PP_LAYER_PARTITION=3 says how many layers each of 1 stages has",
        ),
        ({"engine": {"dataParallelSizeLocal": 0}}, "0 leaves the pod without an engine"),
        ({"disruption": {"minAvailable": 1, "maxUnavailable": 1}}, "exclude each other"),
        (
            {"rollout": {"drainSeconds": 9}, "engine": {"drainTimeout": 8}},
            "9 and spec.engine.drainTimeout: 8 say different things",
        ),
        (
            {"model": {"hub": {"id": "a/b"}, "servedNames": ["x"]}, "engine": {"servedModelName": ["y"]}},
            "spec.model.servedNames says it",
        ),
        ({"model": {"hub": {"id": "a/b"}, "cache": {"pvc": "x", "size": "1Gi"}}}, "a claim has its size"),
    ],
)
def test_a_bad_field_is_named_with_its_path_and_the_way_out(spec, words):
    assert words in refusal(document(**spec))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"maxModelLength": 10}, "spec.engine.maxModelLength: there is no such field"),
        ({"max-model-len": 10}, "Did you mean maxModelLen"),
        ({"port": 80}, "spec.engine.port: there is no such field"),
        ({"apiKey": "x"}, "spec.engine.apiKey: there is no such field"),
        ({"blockSize": 17}, "spec.engine.blockSize: "),
        ({"gpuMemoryUtilization": 1.5}, "spec.engine.gpuMemoryUtilization: "),
        ({"enforceEager": "false"}, "spec.engine.enforceEager: "),
        ({"allowedOrigins": "*"}, "spec.engine.allowedOrigins: '*' is not a list."),
        (
            {"enableChunkedPrefill": False, "maxModelLen": 4096, "maxNumBatchedTokens": 512},
            "--max-num-batched-tokens 512 is smaller than --max-model-len 4096",
        ),
    ],
)
def test_engine_arguments_are_held_to_the_schema(engine, words):
    assert words in refusal(document(engine=engine))


@pytest.mark.parametrize("name", ["kubernetes", "vllm", "vllm-router", "Demo", "a" * 51, "1st", "a.b", "a-"])
def test_names_that_are_no_label_or_would_inject_settings_are_refused(name):
    bad = document()
    bad["metadata"]["name"] = name
    assert refusal(bad).startswith("metadata.name: ")


def test_a_name_of_50_characters_is_accepted():
    good = document()
    good["metadata"]["name"] = "a" * 50
    assert from_mapping(good).name == "a" * 50


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "document: None is not an InferenceService"),
        ("a: [", "this is not YAML"),
        ("a: 1\na: 2\n", "line 2: a stands there twice"),
        ("a: 1\n---\nb: 2\n", "without others behind ---"),
        ("apiVersion: v1\nkind: Pod\n", "apiVersion: 'v1' is not slipway.dev/v1alpha1"),
        ("other: 1\n", "document.other: there is no such field"),
        ("? [a]\n: 1\n", "this is not YAML"),
    ],
)
def test_text_that_is_no_document_is_refused_in_a_sentence(text, words):
    with pytest.raises(InvalidService) as failure:
        load(text)
    assert words in str(failure.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["hub", "name", "value", "port", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(["model", "engine", "env", "secrets", "resources", "service", "replicas"])


@settings(max_examples=150)
@given(st.dictionaries(FIELDS, JSON, max_size=3))
def test_no_spec_fails_otherwise_than_by_a_refusal(spec):
    with suppress(InvalidService):
        from_mapping(document(**spec))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "MAX_JOBS", "value": "4"}, "read by builds"),
        ({"name": "VLLM_PORT", "value": "9000"}, "it is not --port"),
        ({"name": "LD_LIBRARY_PATH", "value": "/x"}, "the image owns it"),
        ({"name": "VLLM_SERVER_DEV_MODE", "value": "1"}, "Who runs the cluster can permit it"),
        ({"name": "HF_TOKEN", "value": "hf_x"}, "its value belongs into a Secret"),
        ({"name": "VLLM_ROCM_FP8_PADDING", "value": "1"}, "it is for rocm alone"),
        ({"name": "MODEL", "value": "org/other"}, "name the model in spec.model"),
        ({"name": "VLLM_USE_DUMMY_WEIGHTS", "value": "1"}, "use --load-format dummy"),
        ({"name": "VLLM_LOGING_LEVEL", "value": "DEBUG"}, "Did you mean VLLM_LOGGING_LEVEL"),
        ({"name": "SLIPWAY_OTHER", "value": "1"}, "SLIPWAY_OTHER does not exist"),
        ({"name": "VLLM_RPC_TIMEOUT", "value": "soon"}, "is not a whole number"),
        ({"name": "TZ"}, "exactly one of value, secret, configMap and field"),
        ({"name": "HF_TOKEN", "field": "metadata.name"}, "its value belongs into a Secret"),
        ({"name": "VLLM_HOST_IP", "field": "status.podIP"}, "may not be set: the pod's address"),
        ({"name": "A", "field": "metadata.labels"}, "is not a field of the pod such as metadata.name"),
        ({"name": "A", "field": "status.phase"}, "is not a field of the pod such as metadata.name"),
        ({"name": "A B", "value": "1"}, "is not a name of a variable"),
    ],
)
def test_the_firewall_refuses_what_a_pod_must_not_have(entry, words):
    assert words in refusal(document(env=[entry]))


def test_the_firewall_lets_other_names_and_tuning_pass():
    entries = [
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
        {"name": "NCCL_DEBUG", "value": "WARN"},
        {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
        {"name": "VLLM_USE_MODELSCOPE", "value": "1"},
        {"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"},
        {"name": "VLLM_API_KEY", "secret": {"name": "s", "key": "k"}},
    ]
    assert len(from_mapping(document(env=entries)).env) == 6


def test_a_name_given_twice_is_refused():
    entry = {"name": "TZ", "value": "UTC"}
    assert "TZ stands there twice" in refusal(document(env=[entry, entry]))


def test_a_secret_with_two_places_is_refused():
    reference = {"name": "s", "key": "k"}
    env = [{"name": "VLLM_API_KEY", "secret": reference}]
    assert "spec.secrets.apiKey" in refusal(document(env=env, secrets={"apiKey": reference}))


def test_both_names_of_the_hub_token_are_one_too_many():
    names = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    env = [{"name": name, "secret": {"name": "s", "key": "k"}} for name in names]
    assert "Keep HF_TOKEN" in refusal(document(env=env))


def test_an_argument_and_its_variable_may_not_differ():
    env = [{"name": "VLLM_ATTENTION_BACKEND", "value": "TORCH_SDPA"}]
    words = refusal(document(env=env, engine={"attentionBackend": "TRITON"}))
    assert "VLLM_ATTENTION_BACKEND=TORCH_SDPA and spec.engine.attentionBackend: TRITON" in words
    same = [{"name": "VLLM_ATTENTION_BACKEND", "value": "auto"}]
    assert from_mapping(document(env=same, engine={"attentionBackend": "auto"}))


def test_who_runs_the_cluster_can_permit_a_variable():
    env = [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]
    assert from_mapping(document(env=env), Policy(permitted_env=("VLLM_SERVER_DEV_MODE",)))


def test_policy_is_told_from_what_is_wrong_anywhere():
    with pytest.raises(InvalidService) as failure:
        from_mapping(document(env=[{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]))
    assert failure.value.reason == "PolicyDenied"
    with pytest.raises(InvalidService) as failure:
        from_mapping(document(env=[{"name": "VLLM_PORT", "value": "1"}]))
    assert failure.value.reason == "InvalidSpec"


def test_the_bucket_s_keys_have_one_place():
    model = {"s3": {"uri": "s3://b/x", "secret": "keys"}}
    env = [{"name": "AWS_SECRET_ACCESS_KEY", "secret": {"name": "s", "key": "k"}}]
    assert "is what spec.model.s3.secret sets" in refusal(document(model=model, env=env))
    assert from_mapping(document(model={"s3": {"uri": "s3://b/x"}}, env=env))


def test_variables_of_other_devices_are_refused():
    env = [{"name": "VLLM_ROCM_FP8_PADDING", "value": "1"}]
    runtime = {"image": "own/rocm"}
    assert "for rocm alone" in refusal(document(env=env, devices={"vendor": "nvidia"}))
    assert "for rocm alone" not in refusal_or_nothing(
        document(env=env, devices={"vendor": "amd"}, runtime=runtime)
    )


def refusal_or_nothing(of: object) -> str:
    try:
        from_mapping(of)
    except InvalidService as failure:
        return str(failure)
    return ""


def test_a_template_may_be_a_file_that_only_the_container_has():
    spec = from_mapping(
        document(
            engine={"chatTemplate": "/etc/templates/chat.jinja"},
            files=[{"mountPath": "/etc/templates", "configMap": "templates"}],
        )
    )
    assert spec.engine["chatTemplate"] == "/etc/templates/chat.jinja"


def test_a_grace_too_short_for_endpoints_to_leave_is_said():
    spec = from_mapping(document(engine={"drainGrace": 0}))
    assert "spec.engine.drainGrace 0 is less than" in " ".join(warnings(spec))
    assert not warnings(from_mapping(document()))


NOT_BUILT = {"kvTransferConfig": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"engine": NOT_BUILT},
            "NotSupported",
            "spec.engine.kvTransferConfig: --kv-transfer-config asks for",
        ),
        (
            {"engine": {"dataParallelSize": 4, "dataParallelSizeLocal": 2}},
            "MultiNodeNotSupported",
            "spec.engine.dataParallelSize: 4 with 2 on each node needs several nodes",
        ),
    ],
)
def test_what_this_release_does_not_have_is_told_with_the_argument(spec, reason, words):
    with pytest.raises(InvalidService, match=re.escape(words)) as failure:
        check_supported(from_mapping(document(**spec)))
    assert failure.value.reason == reason


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"devices": {"vendor": "nvidia"}, "engine": {"tensorParallelSize": 8}},
        {"runtime": {"image": "registry.example/newer:2"}, "engine": NOT_BUILT},
    ],
)
def test_what_this_release_or_an_image_of_ones_own_has_is_supported(spec):
    check_supported(from_mapping(document(**spec)))


def test_what_has_no_effect_is_said():
    spec = from_mapping(document(env=[{"name": "VLLM_USE_V1", "value": "0"}], engine={"engineUseRay": True}))
    said = " ".join(warnings(spec))
    assert "VLLM_USE_V1=0 has no effect" in said
    assert "--engine-use-ray has no effect" in said


def test_quantities_may_be_numbers():
    spec = from_mapping(document(resources={"cpu": 2, "memory": "4Gi"}))
    assert spec.resources.cpu == "2"
    assert yaml.safe_dump(spec.resources.cpu) == "'2'\n"
