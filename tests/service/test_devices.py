"""What pods ask for beside CPU and memory: slices of devices, extended resources, huge pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipway.service import Facts, InvalidService, from_mapping, local_start, podman_command, render
from slipway.service.intent import intent_hash
from slipway.service.profile import check_profiled, read_profile


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"path": "/model-here"}, **spec},
    }


def pod_of(**spec: Any) -> dict[str, Any]:
    pod: dict[str, Any] = render(from_mapping(document(**spec)), Facts())[0]["spec"]["template"]["spec"]
    return pod


def refusal(**spec: Any) -> str:
    with pytest.raises(InvalidService) as caught:
        from_mapping(document(**spec))
    return str(caught.value)


def slices(profile: str) -> dict[str, Any]:
    return {"devices": {"vendor": "nvidia", "profile": profile}}


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        ("1g.5gb", "mig-1g.5gb"),
        ("7g.141gb", "mig-7g.141gb"),
        ("1g.10gb+me", "mig-1g.10gb.me"),
        ("1g.10gb.me", "mig-1g.10gb.me"),
        ("1g.12gb.me.all", "mig-1g.12gb.me.all"),
        ("2g.48gb+me.all", "mig-2g.48gb.me.all"),
        ("4g.96gb+gfx", "mig-4g.96gb.gfx"),
        ("1g.24gb-me", "mig-1g.24gb-me"),
        ("1c.2g.20gb", "mig-1c.2g.20gb"),
        ("6c.7g.80gb", "mig-6c.7g.80gb"),
        ("1c.2g.12gb+me", "mig-1c.2g.12gb.me"),
    ],
)
def test_a_mig_profile_is_asked_for_by_the_name_of_the_device_plugin(profile, resource):
    limits = pod_of(**slices(profile))["containers"][0]["resources"]["limits"]
    assert limits == {f"nvidia.com/{resource}": "1"}


@pytest.mark.parametrize(
    "profile",
    [
        "half",
        "1g",
        "10gb",
        "0g.10gb",
        "5g.10gb",
        "9g.10gb",
        "1g.0gb",
        "1g.010gb",
        "1g.10GB",
        "1g.10gb+",
        "1g.10gb+all",
        "1g.10gb+ME",
        "1g.10gb-gfx",
        "1g.10gb-me.all",
        "1g.10gb+me,gfx",
        "1g.10gb_me",
        "1c.10gb",
        "0c.2g.20gb",
        "mig-1g.10gb",
        "nvidia.com/mig-1g.10gb",
        " 1g.10gb",
        "1g.10gb\n",
    ],
)
def test_another_text_is_no_mig_profile(profile):
    assert refusal(**slices(profile)).startswith("spec.devices.profile:")


@pytest.mark.parametrize("profile", ["2c.2g.20gb", "3c.2g.20gb", "1c.1g.10gb+me"])
def test_a_compute_instance_is_less_than_its_gpu_instance(profile):
    assert f"{profile}: a compute instance has fewer slices" in refusal(**slices(profile))


@pytest.mark.parametrize(
    ("resources", "asked"),
    [
        ({"rdma/ib": 1}, {"rdma/ib": "1"}),
        ({"rdma/ib": "1"}, {"rdma/ib": "1"}),
        ({"limits": {"rdma/ib": 1}}, {"rdma/ib": "1"}),
        ({"rdma/ib": 2, "limits": {"rdma/ib": "2"}}, {"rdma/ib": "2"}),
        ({"rdma/ib": 2000, "limits": {"rdma/ib": "2k"}}, {"rdma/ib": "2000"}),
        (
            {"nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 30, "vpc.amazonaws.com/efa": 1},
            {"nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30", "vpc.amazonaws.com/efa": "1"},
        ),
        ({"nvidia.com/gpumem-percentage": 50}, {"nvidia.com/gpumem-percentage": "50"}),
        ({"hugepages-2Mi": "1Gi"}, {"hugepages-2Mi": "1Gi"}),
        ({"limits": {"hugepages-1Gi": "2Gi"}}, {"hugepages-1Gi": "2Gi"}),
        ({"rdma/ib": None}, {}),
    ],
)
def test_other_resources_are_promised_and_limited_alike(resources, asked):
    pod = pod_of(devices={"vendor": "nvidia"}, resources=resources, model={"s3": {"uri": "s3://a/b"}})
    found = pod["containers"][0]["resources"]
    assert found["limits"] == {"nvidia.com/gpu": "1", **asked}
    assert {name: found["requests"][name] for name in asked} == asked
    assert not asked.keys() & pod["initContainers"][0]["resources"]["requests"].keys()


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"rdma/ib": "500m"}, "spec.resources.rdma/ib: 500m is not a whole number"),
        ({"limits": {"rdma/ib": 1.5}}, "spec.resources.limits.rdma/ib: 1.5 is not a whole number"),
        ({"rdma/ib": -1}, "spec.resources.rdma/ib: '-1' is not a quantity"),
        ({"rdma/ib": 1, "limits": {"rdma/ib": 2}}, "spec.resources.limits.rdma/ib: 2 is not 1, as"),
        ({"nvidia.com/gpu": 1}, "spec.resources.nvidia.com/gpu: devices are asked for by spec.devices"),
        ({"limits": {"nvidia.com/gpu.shared": 1}}, "devices are asked for by spec.devices"),
        ({"nvidia.com/mig-1g.10gb": 1}, "devices are asked for by spec.devices"),
        ({"amd.com/gpu": 1}, "devices are asked for by spec.devices"),
        ({"kubernetes.io/batteries": 1}, "Kubernetes keeps names of this domain for itself"),
        ({"node.kubernetes.io/x": 1}, "Kubernetes keeps names of this domain for itself"),
        ({"requests.example.com/x": 1}, "Kubernetes keeps names of this domain for itself"),
        ({"hugepages-2Mi": "1Gi"}, "hugepages-2Mi alone makes no pod: Kubernetes wants cpu or memory"),
        ({"memory": "1Gi", "hugepages-2Mi": "3Mi"}, "3Mi is no multiple of 2Mi, the size of a page"),
        ({"memory": "1Gi", "hugepages-1Gi": "512Mi"}, "512Mi is no multiple of 1Gi"),
        ({"hugepages": "1Gi"}, "spec.resources.hugepages: there is no such field."),
        ({"hugepages-2": "1Gi"}, "spec.resources.hugepages-2: there is no such field."),
        ({"rdma": 1}, "huge pages such as hugepages-2Mi"),
        ({"memroy": "1Gi"}, "spec.resources.memroy: there is no such field. Did you mean memory?"),
        ({"limits": {"requests": {}}}, "extended resources such as rdma/ib"),
        ({"/ib": 1}, "spec.resources./ib: there is no such field."),
        ({f"rdma/{'a' * 64}": 1}, "there is no such field."),
    ],
)
def test_what_kubernetes_would_not_take_is_refused(resources, said):
    assert said in refusal(resources=resources)


def test_the_resource_that_a_document_names_for_its_devices_is_theirs():
    own = {"devices": {"vendor": "nvidia", "resource": "example.com/gpu"}}
    assert "devices are asked for by" in refusal(**own, resources={"example.com/gpu": 1})
    assert pod_of(resources={"example.com/gpu": 1})["containers"][0]["resources"]["limits"]


def test_what_a_profile_adds_is_checked_with_the_document():
    profile = read_profile("p", {"devices": {"vendor": "nvidia", "resource": "example.com/gpu"}})
    pages = from_mapping(document(profile="p", resources={"hugepages-2Mi": "1Gi"}))
    assert check_profiled(pages, profile).resources.others == {"hugepages-2Mi": "1Gi"}
    for resources, said in (
        ({"example.com/gpu": 1}, "devices are asked for by"),
        ({"limits": {"rdma/ib": 2}}, "2 is not 1"),
    ):
        spec = from_mapping(document(profile="p", resources=resources))
        shared = replace(profile, resources=replace(profile.resources, others={"rdma/ib": "1"}))
        with pytest.raises(InvalidService, match=said):
            check_profiled(spec, shared)
    with pytest.raises(InvalidService, match="alone makes no pod"):
        check_profiled(pages, read_profile("q", {}))


def test_a_resource_in_other_words_is_the_same_intent_and_another_number_is_not():
    def hash_of(resources: dict[str, Any]) -> str:
        return intent_hash(from_mapping(document(resources=resources)))

    assert hash_of({"rdma/ib": 2000}) == hash_of({"rdma/ib": "2k"})
    assert len({hash_of({}), hash_of({"rdma/ib": 1}), hash_of({"rdma/ib": 2})}) == 3


def folder(medium: str) -> list[dict[str, Any]]:
    return [{"name": "pages", "mountPath": "/mnt/pages", "emptyDir": {"medium": medium}}]


@pytest.mark.parametrize(
    ("medium", "pages"),
    [
        ("HugePages", {"hugepages-2Mi": "64Mi"}),
        ("HugePages-1Gi", {"hugepages-2Mi": "64Mi", "hugepages-1Gi": "1Gi"}),
        ("HugePages-64Ki", {"hugepages-64Ki": "64Mi"}),
    ],
)
def test_a_folder_lies_in_huge_pages_that_the_pod_asks_for(medium, pages):
    pod = pod_of(volumes=folder(medium), resources={"memory": "1Gi", **pages})
    assert {"name": "pages", "emptyDir": {"medium": medium}} in pod["volumes"]
    of_sidecar = {"name": "a", "image": "a", "resources": {"limits": {**pages, "memory": "1Gi"}}}
    assert pod_of(volumes=folder(medium), sidecars=[of_sidecar])


@pytest.mark.parametrize(
    ("medium", "pages", "said"),
    [
        ("HugePages", {}, "no container asks for these pages. Add hugepages-2Mi to spec.resources"),
        ("HugePages-1Gi", {"hugepages-2Mi": "2Mi"}, "Add hugepages-1Gi to spec.resources"),
        ("HugePages", {"hugepages-2Mi": "2Mi", "hugepages-1Gi": "1Gi"}, "HugePages-1Gi or HugePages-2Mi"),
    ],
)
def test_a_folder_in_pages_that_nobody_asks_for_is_refused(medium, pages, said):
    found = refusal(volumes=folder(medium), resources={"memory": "1Gi", **pages})
    assert found.startswith("spec.volumes[0].emptyDir.medium:")
    assert said in found


def test_podman_has_no_other_resources_and_a_process_says_that_they_bind_nothing():
    spec = from_mapping(document(model={"hub": {"id": "a/b"}}, resources={"rdma/ib": 1}))
    with pytest.raises(InvalidService, match=r"spec\.resources\.rdma/ib: podman has no resources but"):
        podman_command(spec, Facts())
    pages = from_mapping(document(resources={"memory": "1Gi", "hugepages-2Mi": "2Mi"}))
    with pytest.raises(InvalidService, match=r"spec\.resources\.hugepages-2Mi: podman"):
        podman_command(pages, Facts())
    assert any("spec.resources binds nothing" in one for one in local_start(spec, {}).warnings)


def claimed(*claims: Any) -> list[dict[str, Any]]:
    pod = pod_of(devices={"claims": list(claims)})
    made: list[dict[str, Any]] = pod["resourceClaims"]
    assert pod["containers"][0]["resources"]["claims"] == [{"name": one["name"]} for one in made]
    return made


def test_a_claim_is_a_template_s_or_one_that_pods_share():
    assert claimed("a", {"resourceClaimName": "b"}, {"resourceClaimTemplateName": "c"}, "a") == [
        {"name": "devices-0", "resourceClaimTemplateName": "a"},
        {"name": "devices-1", "resourceClaimName": "b"},
        {"name": "devices-2", "resourceClaimTemplateName": "c"},
        {"name": "devices-3", "resourceClaimTemplateName": "a"},
    ]


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ([{}], "spec.devices.claims[0]: exactly one of resourceClaimName and resourceClaimTemplateName"),
        ([{"resourceClaimName": "a", "resourceClaimTemplateName": "b"}], "exactly one of"),
        (["a", {"resourceClaimName": None}], "spec.devices.claims[1]: exactly one of"),
        ([{"resourceClaimName": "a"}, {"resourceClaimName": "a"}], "the ResourceClaim a stands there twice"),
        ([{"resourceClaimName": "A"}], "spec.devices.claims[0].resourceClaimName: 'A' is not the name of"),
        ([{"name": "a"}], "spec.devices.claims[0].name: there is no such field"),
        ([1], "spec.devices.claims[0]: 1 is not text"),
        ([["a"]], "spec.devices.claims[0]: ['a'] is not text"),
    ],
)
def test_what_is_no_claim_is_refused(claims, said):
    assert said in refusal(devices={"claims": claims})


def test_a_shared_claim_excludes_counted_devices_as_a_template_does():
    assert "count and claims exclude each other" in refusal(
        devices={"vendor": "nvidia", "count": 1, "claims": [{"resourceClaimName": "a"}]}
    )
