"""Which changes of a document make new pods, and which leave the running ones alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipway.service import Facts, from_mapping, render
from slipway.service.intent import intent, intent_hash

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
HASHES = {
    "beside": "ceb0312007",
    "bucket": "c339ccf8f8",
    "claims": "beed8be7ba",
    "demo": "857786ba87",
    "everything": "49a89df1ff",
    "gpu": "e7e73cf616",
    "hub": "8e0e5f4a33",
}
"""Of the examples and of this folder's documents. A later version that gave one another hash would restart,
or call outdated, every pod of that document."""


def document(**spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }


def hash_of(**spec: object) -> str:
    return intent_hash(from_mapping(document(**spec)))


SMALLEST = hash_of()


@pytest.mark.parametrize("name", HASHES)
def test_a_document_keeps_its_hash_between_versions(name):
    folder = HERE if name in ("everything", "beside") else EXAMPLES
    assert intent_hash(from_mapping(yaml.safe_load((folder / f"{name}.yaml").read_text()))) == HASHES[name]


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"hub": {"id": "org/other"}}},
        {"model": {"hub": {"id": "org/name", "revision": "v2"}}},
        {"model": {"hub": {"id": "org/name"}, "servedNames": ["x"]}},
        {"model": {"hub": {"id": "org/name"}, "cache": {"pvc": "c"}}},
        {"runtime": {"image": "own/image:1"}},
        {"runtime": {"podLabels": {"a": "b"}}},
        {"engine": {"maxModelLen": 512}},
        {"engine": {"enforceEager": False}},
        {"env": [{"name": "TZ", "value": "UTC"}]},
        {"secrets": {"hubToken": {"name": "a", "key": "b"}}},
        {"files": [{"mountPath": "/etc/x", "configMap": "x"}]},
        {"devices": {"vendor": "nvidia"}},
        {"resources": {"cpu": 1}},
        {"scheduling": {"nodeSelector": {"a": "b"}}},
        {"security": {"runAsUser": 5}},
        {"security": {"supplementalGroups": [5]}},
        {"scheduling": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}},
        {"env": [{"name": "POD", "field": "metadata.name"}]},
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        {"initContainers": [{"name": "c", "image": "a"}]},
        {"sidecars": [{"name": "c", "image": "a"}]},
        {"rollout": {"drainSeconds": 90}},
    ],
)
def test_a_change_that_reaches_the_pod_changes_the_hash(spec):
    assert hash_of(**spec) != SMALLEST


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"suspend": True},
        {"service": {"port": 80, "labels": {"a": "b"}}},
        {"monitoring": {"enabled": True, "labels": {"a": "b"}}},
        {"disruption": {"minAvailable": 1, "labels": {"a": "b"}}},
        {"rollout": {"maxSurge": 0, "maxUnavailable": 1, "template": "Latest", "labels": {"a": "b"}}},
        {"engine": {}, "env": [], "devices": {}, "resources": None},
        {"engine": {"maxModelLen": None}},
    ],
)
def test_a_change_that_does_not_reach_the_pod_changes_nothing_in_it(spec):
    assert hash_of(**spec) == SMALLEST
    changed, smallest = (render(from_mapping(d), Facts()) for d in (document(**spec), document()))
    assert changed[0]["spec"]["template"] == smallest[0]["spec"]["template"]


def test_labels_and_annotations_of_the_resource_are_no_intent():
    labelled = document()
    labelled["metadata"] |= {"labels": {"a": "b"}, "annotations": {"c": "d"}, "generation": 7}
    assert intent_hash(from_mapping(labelled)) == SMALLEST


def test_what_is_known_of_a_claim_is_no_intent():
    model: dict[str, Any] = {"hub": {"id": "org/name"}, "cache": {"pvc": "c"}}
    known = {**model, "cache": {"pvc": "c", "accessMode": "ReadWriteOnce"}}
    assert hash_of(model=model) == hash_of(model=known)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"resources": {"cpu": "1000m"}}, {"resources": {"cpu": 1}}),
        ({"resources": {"memory": "1024Mi"}}, {"resources": {"memory": "1Gi"}}),
        (
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1024Mi"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
        ),
        (
            {"sidecars": [{"name": "c", "image": "a", "env": None}]},
            {"sidecars": [{"name": "c", "image": "a", "args": []}]},
        ),
        ({"engine": {"maxModelLen": "1k"}}, {"engine": {"maxModelLen": 1000}}),
        ({"engine": {"gpuMemoryUtilization": 1}}, {"engine": {"gpuMemoryUtilization": 1.0}}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
        ),
        (
            {"scheduling": {"tolerations": [{"key": "a", "value": None}]}},
            {"scheduling": {"tolerations": [{"key": "a"}]}},
        ),
        (
            {"engine": {"hfOverrides": {"a": 1, "b": 2}}},
            {"engine": {"hfOverrides": {"b": 2, "a": 1}}},
        ),
    ],
)
def test_two_spellings_of_one_thing_have_one_hash(one, other):
    assert hash_of(**one) == hash_of(**other)


FIELDS = {
    "engine": {"maxModelLen": 512, "maxNumSeqs": 4},
    "resources": {"cpu": "2", "memory": "4Gi"},
    "env": [{"name": "A", "value": "1"}],
    "security": {"runAsUser": 5, "fsGroup": 6},
    "runtime": {"podLabels": {"a": "1", "b": "2"}},
}


@given(st.sets(st.sampled_from(sorted(FIELDS))), st.randoms())
def test_the_order_of_keys_says_nothing(names: set[str], chance: random.Random):
    def shuffled(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        keys = list(node)
        chance.shuffle(keys)
        return {key: shuffled(node[key]) for key in keys}

    wanted = document(**{name: FIELDS[name] for name in sorted(names)})
    assert intent_hash(from_mapping(shuffled(wanted))) == intent_hash(from_mapping(wanted))


def test_an_intent_is_json_and_its_hash_ten_digits():
    spec = from_mapping(yaml.safe_load((HERE / "everything.yaml").read_text()))
    assert json.loads(json.dumps(intent(spec))) == intent(spec)
    assert len(intent_hash(spec)) == 10
    assert int(intent_hash(spec), 16) >= 0


def test_a_hash_is_the_same_in_every_process():
    """In another than this one, whose own hashes are those of HASHES."""
    code = (
        "import sys, yaml; from slipway.service import from_mapping; "
        "from slipway.service.intent import intent_hash; "
        "print(intent_hash(from_mapping(yaml.safe_load(sys.stdin))))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        input=(HERE / "everything.yaml").read_text(),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert told.stdout.strip() == HASHES["everything"]
