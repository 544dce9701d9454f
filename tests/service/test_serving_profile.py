"""What a serving profile adds to the services that choose it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipway.args.export import short_schema
from slipway.service import Facts, InvalidService, from_mapping, render
from slipway.service.intent import intent_hash
from slipway.service.profile import check_profiled, misfits_of, read_profile, with_profile

SHARED = {
    "runtime": {"image": "registry.example.com/runtime:1", "imagePullSecrets": ["login"]},
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "TZ", "value": "UTC"}],
    "devices": {"vendor": "nvidia", "resource": "nvidia.com/gpu.shared"},
    "resources": {"cpu": 8, "memory": "64Gi", "limits": {"cpu": 16}},
    "scheduling": {
        "nodeSelector": {"pool": "shared", "zone": "a"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "runtimeClassName": "nvidia",
    },
    "security": {"fsGroup": 7, "supplementalGroups": [8]},
}


def profile_of(**spec: Any) -> Any:
    return read_profile("shared.gpus", spec)


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, "profile": "shared.gpus", **spec},
    }


def pod_of(spec: dict[str, Any], **profile: Any) -> dict[str, Any]:
    made = render(from_mapping(spec), Facts(profile=profile_of(**profile)))
    pod: dict[str, Any] = made[0]["spec"]["template"]["spec"]
    return pod


def test_what_the_service_leaves_open_is_the_profile_s():
    pod = pod_of(service(), **SHARED)
    server = pod["containers"][0]
    assert server["image"] == "registry.example.com/runtime:1"
    assert server["resources"]["limits"] == {"cpu": "16", "memory": "65Gi", "nvidia.com/gpu.shared": "1"}
    assert server["args"][-2:] == ["--device", "cuda"]
    assert {"name": "TZ", "value": "UTC"} in server["env"]
    assert pod["imagePullSecrets"] == [{"name": "login"}]
    assert pod["nodeSelector"] == {"pool": "shared", "zone": "a"}
    assert pod["runtimeClassName"] == "nvidia"
    assert {"key": "pool", "operator": "Exists"} in pod["tolerations"]
    assert pod["securityContext"]["fsGroup"] == 7
    assert pod["securityContext"]["supplementalGroups"] == [8]


def test_a_schema_is_asked_about_the_profile_s_image_and_no_other():
    schema = json.loads(short_schema())
    for argument in schema["groups"][0]["arguments"]:
        if argument.get("field") == "enforceEager":
            argument |= {"flag": "--eager", "field": "eager"}
    profile = profile_of(**SHARED, schema=schema)
    spec = from_mapping(service(engine={"enforceEager": True, "maxNumSeqs": 4}))
    (sentence,) = misfits_of(with_profile(spec, profile), profile) or ()
    assert sentence.startswith("spec.engine.enforceEager: version")
    assert misfits_of(with_profile(from_mapping(service()), profile), profile) == []
    other = with_profile(from_mapping(service(runtime={"image": "a/b:1"})), profile)
    assert misfits_of(other, profile) is None
    assert misfits_of(with_profile(spec, profile_of(**SHARED)), profile_of(**SHARED)) is None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"schema": {"version": "1", "groups": []}}, "there is none. Name the image"),
        ({"runtime": {"image": "a/b:1"}, "schema": {"version": "1"}}, "it is not the schema of an image"),
    ],
)
def test_a_schema_without_an_image_and_one_that_is_none_are_refused(spec, said):
    with pytest.raises(InvalidService, match=said):
        profile_of(**spec)


def test_what_the_service_says_goes_before():
    own = service(
        runtime={"image": "registry.example.com/mine:2", "imagePullSecrets": ["mine"]},
        env=[{"name": "TZ", "value": "CET"}],
        resources={"memory": "8Gi"},
        scheduling={"nodeSelector": {"zone": "b"}, "runtimeClassName": "own"},
        engine={"tensorParallelSize": 2},
        devices={"count": 2},
    )
    pod = pod_of(own, **SHARED)
    server = pod["containers"][0]
    assert server["image"] == "registry.example.com/mine:2"
    assert server["resources"]["requests"] == {"cpu": "8", "memory": "10Gi", "nvidia.com/gpu.shared": "2"}
    assert [entry["value"] for entry in server["env"] if entry["name"] == "TZ"] == ["CET"]
    assert pod["imagePullSecrets"] == [{"name": "login"}, {"name": "mine"}]
    assert pod["nodeSelector"] == {"pool": "shared", "zone": "b"}
    assert pod["runtimeClassName"] == "own"


def test_of_two_lines_for_one_address_the_service_s_own_stays():
    def place(name: str, *addresses: str) -> dict[str, Any]:
        return {"hostAliases": [{"ip": address, "hostnames": [name]} for address in addresses]}

    pod = pod_of(service(scheduling=place("own", "10.0.0.1")), scheduling=place("a", "10.0.0.1", "10.0.0.2"))
    assert pod["hostAliases"] == [
        {"ip": "10.0.0.2", "hostnames": ["a"]},
        {"ip": "10.0.0.1", "hostnames": ["own"]},
    ]


@pytest.mark.parametrize("devices", [{"vendor": "amd"}, {"claims": ["two"]}])
def test_a_service_that_names_devices_has_none_of_the_profile_s(devices):
    spec = from_mapping(service(devices=devices, runtime={"image": "a/b:1"}))
    assert with_profile(spec, profile_of(**SHARED)).devices == spec.devices


def test_an_edited_profile_changes_no_intent_and_another_one_does():
    one, other = from_mapping(service()), from_mapping(service(profile="other"))
    assert intent_hash(one) != intent_hash(other)
    facts = (Facts(profile=profile_of(**SHARED)), Facts(profile=profile_of()))
    first, second = (render(one, each)[0]["spec"]["template"] for each in facts)
    assert first != second


def test_a_profile_that_no_service_could_use_is_named():
    with pytest.raises(
        InvalidService, match=r"ServingProfile shared\.gpus cannot be used: spec\.env\[0\]"
    ) as failure:
        profile_of(env=[{"name": "VLLM_NO_SUCH_THING", "value": "1"}])
    assert (failure.value.path, failure.value.reason) == ("spec.profile", "ProfileInvalid")
    with pytest.raises(InvalidService, match=r"spec\.node: there is no such field"):
        profile_of(node={})
    with pytest.raises(InvalidService, match=r"spec\.runtime\.podLabels: .* are the operator's own"):
        profile_of(runtime={"podLabels": {"app.kubernetes.io/name": "other"}})


def test_whoever_writes_profiles_may_set_what_needs_an_opt_in_and_a_service_may_not():
    env = [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]
    assert check_profiled(from_mapping(service()), profile_of(env=env)).env[0].name == env[0]["name"]
    with pytest.raises(InvalidService, match="may not be set"):
        from_mapping(service(env=env))


@pytest.mark.parametrize(
    ("spec", "profile", "message"),
    [
        ({"devices": {"count": 2}}, SHARED, "spec.devices.count: 2 is not"),
        ({"devices": {"count": 1}}, {}, "a count of 1 does not say whose devices"),
        ({"resources": {"limits": {"cpu": 2}}}, SHARED, "spec.resources.limits.cpu: 2 is less than 8"),
        ({"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]}, SHARED, "it is for cpu alone"),
    ],
)
def test_a_service_that_does_not_go_with_its_profile_is_refused(spec, profile, message):
    with pytest.raises(InvalidService, match=message):
        check_profiled(from_mapping(service(**spec)), profile_of(**profile))


def test_a_resource_is_of_a_vendor_whole_and_counted():
    for devices in (
        {"resource": "example.com/gpu"},
        {"resource": "example.com/gpu", "vendor": "nvidia", "claims": ["a"]},
        {"resource": "example.com/gpu", "vendor": "nvidia", "profile": "1g.10gb"},
    ):
        with pytest.raises(InvalidService, match=r"spec\.devices\.resource: example\.com/gpu is for whole"):
            from_mapping(service(devices=devices))
    spec = from_mapping(service(devices={"resource": "example.com/gpu", "vendor": "nvidia"}))
    server = render(spec, Facts())[0]["spec"]["template"]["spec"]["containers"][0]
    assert server["resources"]["limits"]["example.com/gpu"] == "1"
