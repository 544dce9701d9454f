"""A container that asks for no devices gets none: neither by the document nor by its image's own variable."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.service import Facts, InvalidService, from_mapping, render
from slipway.service.profile import check_profiled, read_profile

Object = dict[str, Any]
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
OTHER = {"runtime": {"image": "registry.example.com/vllm:1"}}


def document(**spec: Any) -> Object:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }


def containers(**spec: Any) -> dict[str, list[Object]]:
    """The variables of each, by its name."""
    pod = render(from_mapping(document(**spec)), Facts())[0]["spec"]["template"]["spec"]
    found = [*pod.get("initContainers", ()), *pod["containers"]]
    return {one["name"]: one.get("env", []) for one in found}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"env": ALL}, "spec.env[0]"),
        ({"env": [{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}]}, "spec.env[0]"),
        ({"sidecars": [{"name": "a", "image": "a", "env": ALL}]}, "spec.sidecars[0].env[0]"),
        (
            {"files": [{"mountPath": "/var/run/nvidia-container-devices/all", "configMap": "a"}]},
            "spec.files[0].mountPath",
        ),
        (
            {"volumes": [{"name": "a", "mountPath": "/run/nvidia-container-devices", "emptyDir": {}}]},
            "spec.volumes[0].mountPath",
        ),
        (
            {
                "volumes": [{"name": "a", "emptyDir": {}}],
                "sidecars": [
                    {
                        "name": "b",
                        "image": "a",
                        "volumeMounts": [
                            {"name": "a", "mountPath": "/var/run/nvidia-container-devices/GPU-1"}
                        ],
                    }
                ],
            },
            "spec.sidecars[0].volumeMounts[0].mountPath",
        ),
    ],
)
def test_no_way_of_a_document_s_own_is_admitted_with_or_without_a_profile(spec: Object, field: str) -> None:
    with pytest.raises(InvalidService, match="nobody counted") as failure:
        from_mapping(document(**spec))
    assert failure.value.path == field
    nothing = read_profile("cpu", {"scheduling": {"nodeSelector": {"pool": "cpu"}}})
    with pytest.raises(InvalidService, match="nobody counted") as failure:
        check_profiled(from_mapping(document(**spec, profile="cpu")), nothing)
    assert failure.value.path == field
    assert check_profiled(from_mapping(document(**spec, devices={"vendor": "nvidia"})), None)


def test_a_profile_may_give_devices_or_hand_them_out_by_the_variable() -> None:
    counted = read_profile("gpus", {"devices": {"vendor": "nvidia"}})
    assert check_profiled(from_mapping(document(env=ALL, profile="gpus")), counted)
    handed_out = read_profile("handed", {"env": ALL})
    whole = check_profiled(from_mapping(document(profile="handed")), handed_out)
    facts = Facts(profile=handed_out)
    (server,) = render(whole, facts)[0]["spec"]["template"]["spec"]["containers"]
    assert ALL[0] in server["env"]


def test_an_image_of_others_sees_no_devices_unless_the_service_asks_for_some() -> None:
    assert VOID not in containers()["server"], "ours ask for none by themselves"
    assert VOID in containers(**OTHER)["server"]
    assert VOID not in containers(**OTHER, devices={"vendor": "nvidia"})["server"]
    shown = containers(**OTHER, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])["server"]
    assert [one["value"] for one in shown if one["name"] == VOID["name"]] == ["none"]


def test_what_stands_beside_a_server_with_devices_has_none_of_them() -> None:
    beside = {
        "devices": {"vendor": "nvidia"},
        "env": ALL,
        "model": {"s3": {"uri": "s3://models/a"}},
        "initContainers": [{"name": "before", "image": "a"}],
        "sidecars": [
            {"name": "hides", "image": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]},
            {"name": "asks", "image": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}},
        ],
    }
    found = containers(**OTHER, **beside)
    assert found["before"] == [VOID]
    assert found["hides"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert found["asks"] == []
    assert VOID in found["fetch"]
    assert ALL[0] not in found["fetch"]
    assert ALL[0] in found["server"]
