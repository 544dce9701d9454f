"""A write is sent where a rendered leaf differs or an owned one should go, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import MANAGER, stored

from slipway.service import Facts, from_mapping, render
from slipway.service.differences import changes
from slipway.service.facts import Owner
from slipway_operator.drift import foreign_env, needs_apply

Object = dict[str, Any]
PATH = tuple[str | int, ...]

DOCUMENTS = Path(__file__).parents[1] / "service"
FACTS = Facts(
    namespace="models",
    owner=Owner("everything", "b6d5a3f2"),
    kinds=frozenset({"ServiceMonitor", "PodMonitor"}),
)


def rendered(name: str = "everything", **changed: Any) -> list[Object]:
    text = (DOCUMENTS / f"{name}.yaml").read_text(encoding="utf-8")
    document = yaml.load(text, yaml.CSafeLoader)
    document["spec"] |= changed
    return render(from_mapping(document), FACTS)


RENDERED = [*rendered(), *rendered("beside")]
DEPLOYMENT = next(item for item in RENDERED if item["kind"] == "Deployment")
SERVICE = next(item for item in RENDERED if item["kind"] == "Service")


def of(item: Object, *path: str | int) -> Any:
    for key in path:
        item = item[key]  # type: ignore[index]
    return item


def leaves(value: Any, path: PATH = ()) -> Iterator[PATH]:
    """Paths of all texts, numbers and booleans."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path


IDENTITY = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}
LEAVES = [
    (index, path) for index, item in enumerate(RENDERED) for path in leaves(item) if path not in IDENTITY
]
POD: PATH = ("spec", "template", "spec")
SERVER: PATH = (*POD, "containers", 0)


@pytest.mark.parametrize("item", RENDERED, ids=lambda item: f"{item['metadata']['name']}-{item['kind']}")
def test_an_object_that_is_not_there_is_applied(item):
    name = f"{item['kind']} {item['metadata']['name']}"
    assert needs_apply(item, None, MANAGER) == f"{name} does not exist."


@given(st.integers(0, 10**6), st.sampled_from(RENDERED))
def test_what_the_server_stored_of_an_apply_needs_no_other(seed: int, item: Object):
    assert needs_apply(item, stored(item, seed), MANAGER) is None


QUANTITIES = st.sampled_from(["1", "1000m", "0.5", "500m", "1Gi", "1024Mi", "1e3", "1k", "1048576Ki", "2.50"])


@given(cpu=QUANTITIES, memory=QUANTITIES, seed=st.integers(0, 100))
def test_however_a_quantity_is_written_it_needs_no_apply(cpu: str, memory: str, seed: int):
    item = copy.deepcopy(DEPLOYMENT)
    of(item, *SERVER)["resources"] = {"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": cpu}}
    assert needs_apply(item, stored(item, seed), MANAGER) is None


@given(st.sampled_from(LEAVES), st.integers(0, 100))
@settings(max_examples=300)
def test_any_changed_leaf_is_found(leaf: tuple[int, PATH], seed: int):
    index, path = leaf
    item = copy.deepcopy(RENDERED[index])
    live = stored(item, seed)
    parent, last = of(item, *path[:-1]), path[-1]
    value = parent[last]
    parent[last] = {bool: lambda: not value, int: lambda: value + 1}.get(type(value), lambda: f"{value}7")()
    assert needs_apply(item, live, MANAGER) is not None


@given(st.sampled_from(LEAVES), st.integers(0, 100))
@settings(max_examples=300)
def test_any_leaf_that_vanished_from_the_cluster_is_found(leaf: tuple[int, PATH], seed: int):
    index, path = leaf
    live = copy.deepcopy(RENDERED[index])
    live.setdefault("status", {})
    parent, last = of(live, *path[:-1]), path[-1]
    if last == "protocol":  # a key's default: it cannot vanish
        return
    del parent[last]
    assert needs_apply(RENDERED[index], live, MANAGER) is not None


@given(st.sampled_from(LEAVES), st.integers(0, 100))
@settings(max_examples=300)
def test_any_leaf_that_is_no_longer_rendered_is_found(leaf: tuple[int, PATH], seed: int):
    index, path = leaf
    live = stored(RENDERED[index], seed)
    item = copy.deepcopy(RENDERED[index])
    parent, last = of(item, *path[:-1]), path[-1]
    if last == "protocol":
        return
    del parent[last]
    assert needs_apply(item, live, MANAGER) is not None


def test_the_sentence_names_the_field_and_both_values():
    item = copy.deepcopy(DEPLOYMENT)
    live = stored(item)
    of(item, *SERVER)["image"] = "r/x:2"
    assert needs_apply(item, live, MANAGER) == (
        "Deployment everything: spec.template.spec.containers[server].image is registry.example/runtime:2 "
        "and should be r/x:2."
    )


def test_a_field_that_should_go_is_named():
    item = copy.deepcopy(DEPLOYMENT)
    live = stored(item)
    del of(item, *POD)["nodeSelector"]
    assert needs_apply(item, live, MANAGER) == (
        "Deployment everything: spec.template.spec.nodeSelector is no longer rendered and should go."
    )


def test_an_env_entry_that_should_go_is_named():
    item = copy.deepcopy(DEPLOYMENT)
    live = stored(item)
    of(item, *SERVER)["env"] = [entry for entry in of(item, *SERVER)["env"] if entry["name"] != "TZ"]
    assert needs_apply(item, live, MANAGER) == (
        "Deployment everything: spec.template.spec.containers[server].env[TZ] is no longer rendered "
        "and should go."
    )


def test_what_others_add_needs_no_apply():
    live = stored(DEPLOYMENT)
    live["metadata"].setdefault("annotations", {})["deployment.kubernetes.io/revision"] = "3"
    template = live["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = "2026-08-22"
    template["spec"]["containers"].append({"name": "istio-proxy", "image": "istio:1"})
    template["spec"]["containers"][0]["env"].append({"name": "ADDED", "value": "1"})
    assert needs_apply(DEPLOYMENT, live, MANAGER) is None


def test_a_key_that_someone_adds_to_an_atomic_map_is_found():
    live = stored(SERVICE)
    live["spec"]["selector"]["version"] = "2"
    assert "spec.selector.version" in (needs_apply(SERVICE, live, MANAGER) or "")


def test_an_empty_dir_that_became_another_volume_is_found():
    live = stored(DEPLOYMENT)
    volume = next(one for one in of(live, *POD)["volumes"] if one["name"] == "tmp")
    del volume["emptyDir"]
    volume["hostPath"] = {"path": "/tmp"}
    assert "volumes[tmp].emptyDir" in (needs_apply(DEPLOYMENT, live, MANAGER) or "")


def test_items_of_a_list_from_the_api_server_lack_their_kind():
    live = stored(SERVICE)
    del live["kind"], live["apiVersion"]
    assert needs_apply(SERVICE, live, MANAGER) is None


def test_an_empty_variable_is_stored_without_its_value():
    item = copy.deepcopy(DEPLOYMENT)
    of(item, *SERVER)["env"].append({"name": "EMPTY", "value": ""})
    live = stored(item)
    assert all("value" not in one for one in of(live, *POD)["containers"][0]["env"] if one["name"] == "EMPTY")
    assert needs_apply(item, live, MANAGER) is None


def test_true_is_not_1():
    item = copy.deepcopy(SERVICE)
    item["spec"]["publishNotReadyAddresses"] = True
    live = stored(item)
    live["spec"]["publishNotReadyAddresses"] = 1
    assert needs_apply(item, live, MANAGER) is not None


def test_variables_of_ours_that_someone_else_set_are_named():
    live = stored(DEPLOYMENT)
    env = of(live, *POD)["containers"][0]["env"]
    env += [{"name": name, "value": "1"} for name in ("VLLM_B", "SLIPWAY_A", "OTHER", "NCCL_DEBUG")]
    assert foreign_env(live, MANAGER) == ["SLIPWAY_A", "VLLM_B"]
    assert foreign_env(stored(DEPLOYMENT), MANAGER) == []


def test_a_variable_in_an_injected_container_is_named_too():
    live = stored(DEPLOYMENT)
    of(live, *POD)["containers"].append({"name": "x", "env": [{"name": "VLLM_C", "value": "1"}]})
    assert foreign_env(live, MANAGER) == ["VLLM_C"]


def test_changes_are_told_both_ways_with_their_values():
    before = {"spec": {"containers": [{"name": "server", "image": "a:1", "tty": True}], "x": 1}}
    after = {"spec": {"containers": [{"name": "server", "image": "a:2", "stdin": True}]}}
    assert changes(before, after) == [
        "containers[server].image a:1 → a:2",
        "containers[server].stdin absent → true",
        "containers[server].tty true → absent",
        "x 1 → absent",
    ]


@pytest.mark.parametrize(("length", "told"), [(80, "x" * 80), (81, "x" * 79 + "…")])
def test_a_long_value_is_truncated(length: int, told: str):
    assert changes({"a": ""}, {"a": "x" * length}) == [f'a "" → {told}']


@given(st.sampled_from(RENDERED), st.integers(0, 9), st.integers(0, 9))
def test_the_order_of_merged_lists_is_no_change(item: Object, one: int, other: int):
    assert changes(stored(item, one), stored(item, other)) == []
