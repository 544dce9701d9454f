"""Projected volumes: what a document says of them, and what the pod has."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.service import Facts, InvalidService, from_mapping, podman_command, render

Object = dict[str, Any]


def document(*sources: Object, **volume: Any) -> Object:
    projected = {"sources": list(sources), **volume.pop("projected", {})}
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {
            "model": {"hub": {"id": "a/b"}},
            "volumes": [{"name": "v", "mountPath": "/var/run/tokens", "projected": projected, **volume}],
        },
    }


def pod_of(*sources: Object, **volume: Any) -> Object:
    template = render(from_mapping(document(*sources, **volume)), Facts())[0]["spec"]["template"]
    pod: Object = template["spec"]
    return pod


def made_of(*sources: Object, **volume: Any) -> Object:
    (made,) = [one for one in pod_of(*sources, **volume)["volumes"] if one["name"] == "v"]
    projected: Object = made["projected"]
    return projected


def refusal(*sources: Object, **volume: Any) -> str:
    with pytest.raises(InvalidService) as caught:
        from_mapping(document(*sources, **volume))
    return str(caught.value).removeprefix("spec.volumes[0].")


TOKEN = {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 7200}}


def test_a_token_is_mounted_for_its_audience_and_the_usual_one_stays_away():
    pod = pod_of(TOKEN)
    assert made_of(TOKEN) == {"sources": [TOKEN]}
    assert pod["automountServiceAccountToken"] is False
    assert {"name": "v", "mountPath": "/var/run/tokens"} in pod["containers"][0]["volumeMounts"]


def test_every_source_is_as_in_a_pod():
    sources = [
        TOKEN,
        {"configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "tls/ca.crt", "mode": 0o400}]}},
        {"configMap": {"name": "others", "optional": True}},
        {"secret": {"name": "keys", "items": [{"key": "a", "path": ".hidden"}]}},
        {
            "downwardAPI": {
                "items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels", "apiVersion": "v1"}},
                    {
                        "path": "cpu",
                        "resourceFieldRef": {
                            "containerName": "server",
                            "resource": "limits.cpu",
                            "divisor": "1m",
                        },
                    },
                ]
            }
        },
    ]
    written = [dict(one) for one in sources[:-1]]
    items = [dict(one) for one in sources[-1]["downwardAPI"]["items"]]
    items[0] = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    assert made_of(*written, {"downwardAPI": {"items": items}}, projected={"defaultMode": 0o440}) == {
        "sources": sources,
        "defaultMode": 0o440,
    }


def test_what_the_api_server_would_add_within_the_list_is_there_already():
    (token,) = made_of({"serviceAccountToken": {"path": "t"}})["sources"]
    assert token == {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "projected.sources: it needs at least one of serviceAccountToken, configMap, secret and"),
        ([{}], "projected.sources[0]: exactly one of serviceAccountToken"),
        ([TOKEN | {"secret": {"name": "a"}}], "projected.sources[0]: exactly one of"),
        ([{"serviceAccountToken": {}}], "sources[0].serviceAccountToken.path: it must be given"),
        ([{"serviceAccountToken": {"path": "/t"}}], "'/t' is not a path inside the volume"),
        ([{"serviceAccountToken": {"path": "../t"}}], "'../t' is not a path inside the volume"),
        ([{"serviceAccountToken": {"path": "..data"}}], "'..data' is not a path inside the volume"),
        ([{"serviceAccountToken": {"path": "a/../t"}}], "'a/../t' is not a path inside the volume"),
        (
            [{"serviceAccountToken": {"path": "t", "expirationSeconds": 60}}],
            "60 is not between 600 and 4294967296",
        ),
        ([{"configMap": {"items": []}}], "sources[0].configMap.name: it must be given"),
        ([{"configMap": {"name": "a", "items": [{"key": "k"}]}}], "items[0].path: it must be given"),
        (
            [{"secret": {"name": "a", "items": [{"key": "k", "path": "p", "mode": 512}]}}],
            "512 is not between 0 and 511",
        ),
        (
            [TOKEN, {"secret": {"name": "a", "items": [{"key": "k", "path": "vault"}]}}],
            "projected.sources[1].secret.items[0].path: vault is there twice. Choose another path.",
        ),
        ([{"downwardAPI": {"items": [{"path": "p"}]}}], "exactly one of fieldRef and resourceFieldRef"),
        (
            [{"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}],
            "'spec.nodeName' is not a field of the pod that can be a file",
        ),
        (
            [{"clusterTrustBundle": {"path": "p"}}],
            "projected.sources[0].clusterTrustBundle: there is no such",
        ),
    ],
)
def test_what_the_api_server_would_not_take_is_refused(sources, said):
    assert said in refusal(*sources)


def test_a_token_in_a_folder_that_is_never_renewed_is_refused():
    assert "subPath: files below it are never renewed" in refusal(TOKEN, subPath="vault")


def test_so_it_is_in_a_sidecar_and_not_in_an_init_container_which_ends():
    mounts = [{"name": "v", "mountPath": "/t", "subPath": "vault"}]
    beside = {"name": "c", "image": "a", "volumeMounts": mounts}
    written = document(TOKEN)
    from_mapping({**written, "spec": {**written["spec"], "initContainers": [beside]}})
    with pytest.raises(InvalidService, match=r"spec\.sidecars\[0\]\.volumeMounts\[0\]\.subPath: files below"):
        from_mapping({**written, "spec": {**written["spec"], "sidecars": [beside]}})


def test_a_volume_has_one_source():
    assert "exactly one of pvc, csi, emptyDir and projected" in refusal(TOKEN, emptyDir={})


def test_podman_has_no_tokens_of_a_cluster():
    with pytest.raises(InvalidService, match=r"spec\.volumes: podman has no tokens .* Remove v\."):
        podman_command(from_mapping(document(TOKEN)), Facts())
