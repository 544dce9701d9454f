"""What holds of the objects of every document, whatever it asks for."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.service import Facts, Owner, from_mapping, render

FACTS = Facts(kinds=frozenset({"ServiceMonitor", "PodMonitor"}), owner=Owner("owner", "5f0c"))


def leaves(node: object) -> Iterator[object]:
    if isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from leaves(item)
    else:
        yield node


NAMES = st.from_regex(r"\A[A-Z]{1,3}\Z")
SPECS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(
            [
                {"hub": {"id": "a/b", "revision": None}},
                {"pvc": {"name": "c"}, "cache": {"pvc": "c", "accessMode": "ReadWriteOnce"}},
                {"image": {"reference": "r/m", "pullPolicy": "Never"}},
                {"s3": {"uri": "s3://b/x", "secret": "keys", "endpoint": None}},
                {"path": "/x", "servedNames": ["y"]},
            ]
        )
    },
    optional={
        "devices": st.sampled_from(
            [{}, {"vendor": "nvidia"}, {"claims": ["x"]}, {"vendor": "nvidia", "profile": "1g.10gb"}]
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "maxModelLen": st.sampled_from([512, "1k", None]),
                "tensorParallelSize": st.integers(1, 4),
                "drainGrace": st.integers(0, 60),
            },
        ),
        "env": st.lists(
            st.fixed_dictionaries({"name": NAMES, "value": st.text(max_size=5)}),
            unique_by=lambda entry: entry["name"],
            max_size=4,
        ),
        "replicas": st.integers(0, 3),
        "suspend": st.booleans(),
        "resources": st.sampled_from([{}, {"cpu": "1500m", "memory": "1Gi"}, {"sharedMemory": "1M"}]),
        "monitoring": st.sampled_from([{}, {"enabled": True}, {"enabled": True, "kind": "PodMonitor"}]),
        "secrets": st.sampled_from([{}, {"tls": {"name": "t"}}, {"apiKey": {"name": "a", "key": "k"}}]),
        "scheduling": st.sampled_from([{}, {"tolerations": [{"key": "a", "value": None}]}]),
        "service": st.sampled_from([{}, {"labels": {"app.kubernetes.io/name": "other"}}]),
        "runtime": st.sampled_from([{}, {"podLabels": {"app.kubernetes.io/instance": "other"}}]),
    },
)


@settings(max_examples=150, deadline=None)
@given(SPECS, st.booleans())
def test_objects_are_the_same_each_time_and_all_of_them_are_owned_and_complete(wanted, openshift):
    document = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo", "namespace": "models"},
        "spec": wanted,
    }
    given_document = copy.deepcopy(document)
    facts = replace(FACTS, openshift=openshift, namespace="placed")
    spec = from_mapping(document)
    made = render(spec, facts)
    kept = copy.deepcopy(made)
    made[0]["spec"]["template"]["spec"]["containers"].clear()
    assert render(from_mapping(document), facts) == kept
    assert document == given_document
    for one in kept:
        assert one["metadata"]["namespace"] == "placed"
        assert (
            one["metadata"]["labels"].items()
            >= {
                "app.kubernetes.io/name": "slipway",
                "app.kubernetes.io/instance": "demo",
                "app.kubernetes.io/managed-by": "slipway",
            }.items()
        )
        (owner,) = one["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "name": "owner",
            "uid": "5f0c",
            "controller": True,
        }
        assert None not in list(leaves(one))
    pod = kept[0]["spec"]["template"]
    selector = kept[0]["spec"]["selector"]["matchLabels"]
    assert pod["metadata"]["labels"].items() >= selector.items()
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])):
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names))
        mounts = [mount["name"] for mount in container["volumeMounts"]]
        assert set(mounts) <= {volume["name"] for volume in pod["spec"]["volumes"]}
