"""What pods ask for on behalf of devices: slices, and what a document may not ask for."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.service import Facts, InvalidService, from_mapping, render


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
