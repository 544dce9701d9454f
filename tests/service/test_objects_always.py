"""What holds of the objects of every document, whatever it asks for."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from service_specs import SPECS, document_of
from slipway.service import Facts, Owner, from_mapping, render

FACTS = Facts(kinds=frozenset({"ServiceMonitor", "PodMonitor"}), owner=Owner("owner", "5f0c"))


def leaves(node: object) -> Iterator[object]:
    if isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from leaves(item)
    else:
        yield node


@settings(max_examples=150)
@given(SPECS, st.booleans())
def test_objects_are_the_same_each_time_and_all_of_them_are_owned_and_complete(wanted, openshift):
    document = document_of(wanted)
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
        names = [entry["name"] for entry in container.get("env", [])]
        assert len(names) == len(set(names))
        mounts = [mount["name"] for mount in container.get("volumeMounts", [])]
        assert set(mounts) <= {volume["name"] for volume in pod["spec"]["volumes"]}
