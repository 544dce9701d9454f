"""Whether a model fits the devices of the nodes: which are asked for, and what the answer comes to."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from as_printed import MADE, NOW, Object, kept, node, resource

from slipway.service import Facts, ServiceSpec, from_mapping, render
from slipway.service.fit_pod import FIT
from slipway_operator import conditions, reasons
from slipway_operator.fits import PATIENCE, devices_of, is_asked, judged, stands
from slipway_operator.status import Observed, status

GPU = "nvidia.com/gpu"
H100 = {"product": "NVIDIA-H100-80GB-HBM3", "memory": "81559", "compute.major": "9", "compute.minor": "0"}
L4 = {"product": "NVIDIA-L4", "memory": "23034"}
TEXT = (
    "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3,nvidia.com/gpu.memory=81559,nvidia.com/gpu.compute.major=9,"
    "nvidia.com/gpu.compute.minor=0,nvidia.com/gpu.count=8"
)
TERM = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
PLACED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}
POD = {"metadata": {"name": "demo-fit-1"}}


def spec_of(**spec: Any) -> ServiceSpec:
    return from_mapping(resource(**{"devices": {"vendor": "nvidia"}, **spec}))


def machine(name: str, facts: dict[str, str], count: int = 8, resource: str = GPU, **labels: str) -> Object:
    made = node(name, **{"cpu": "32", "memory": "64Gi", resource: str(count)})
    said = {f"{resource}.{fact}": value for fact, value in facts.items()}
    made["metadata"]["labels"] = {"kubernetes.io/arch": "amd64", **said, **labels}
    return made


def counted(facts: dict[str, str], count: int) -> dict[str, str]:
    return {**facts, "count": str(count)}


def devices(*nodes: Object, **spec: Any) -> list[str]:
    whole = spec_of(**spec)
    pod_spec = render(whole, Facts())[0]["spec"]["template"]["spec"]
    assert is_asked(whole, pod_spec)
    return devices_of(map(kept, nodes), whole, pod_spec)


def test_each_kind_of_device_is_asked_for_once_with_the_most_that_a_node_has() -> None:
    small = "nvidia.com/gpu.product=NVIDIA-L4,nvidia.com/gpu.memory=23034"
    nodes = machine("a", counted(H100, 4)), machine("b", counted(H100, 8)), machine("c", L4)
    assert devices(*nodes) == [TEXT, small]


def test_what_no_pod_may_use_is_not_asked_for() -> None:
    tainted, bare = machine("a", L4), machine("c", L4)
    tainted["spec"] = {"taints": [{"key": "team", "value": "other", "effect": "NoSchedule"}]}
    del bare["status"]["allocatable"][GPU]
    assert devices(tainted, bare) == []
    placed = {"nodeSelector": {"pool": "large"}}
    large = machine("b", counted(H100, 8), pool="large")
    assert devices(machine("a", L4), large, scheduling=placed) == [TEXT]


def test_a_node_that_takes_no_pods_now_has_its_devices_all_the_same() -> None:
    cordoned = machine("a", counted(H100, 8), count=0)  # its device plugin starts anew
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cordoned["spec"] = {"unschedulable": True, "taints": [taint]}
    assert devices(cordoned) == [TEXT]


def test_of_many_kinds_the_largest_are_asked_for() -> None:
    kinds = [
        machine(f"n{size}", {"product": f"GPU-{size}", "memory": f"{size}"}) for size in range(8000, 8009)
    ]
    asked = devices(*kinds)
    assert [text.partition(",")[0] for text in asked] == [
        f"nvidia.com/gpu.product=GPU-{size}" for size in range(8008, 8002, -1)
    ]


@pytest.mark.parametrize(
    "facts",
    [{}, {"product": "NVIDIA-L4"}, {"memory": "23034"}, {"product": "NVIDIA-L4", "memory": "much"}],
)
def test_labels_that_do_not_say_both_product_and_memory_are_no_question(facts: dict[str, str]) -> None:
    assert devices(machine("a", facts)) == []


def test_a_slice_of_a_device_has_labels_of_its_own() -> None:
    facts = {"product": "NVIDIA-A100-MIG-1g.10gb", "memory": "9856", "count": "7"}
    whole = {f"{GPU}.compute.major": "8", f"{GPU}.compute.minor": "0", f"{GPU}.memory": "81920"}
    sliced = {"vendor": "nvidia", "profile": "1g.10gb"}
    (asked,) = devices(machine("a", facts, 7, "nvidia.com/mig-1g.10gb", **whole), devices=sliced)
    assert asked == (
        "nvidia.com/gpu.product=NVIDIA-A100-MIG-1g.10gb,nvidia.com/gpu.memory=9856,"
        "nvidia.com/gpu.compute.major=8,nvidia.com/gpu.compute.minor=0,nvidia.com/gpu.count=1"
    )


def test_parts_of_devices_are_no_place_for_ranks() -> None:
    (asked,) = devices(machine("a", {"product": "Tesla-T4-SHARED", "memory": "15360", "count": "4"}))
    assert asked.endswith("nvidia.com/gpu.count=1")


def test_a_resource_of_an_administrator_s_own_name_needs_labels_of_that_name() -> None:
    own = {"vendor": "nvidia", "resource": "nvidia.com/a100"}
    several = machine("a", L4)
    several["status"]["allocatable"]["nvidia.com/a100"] = "1"
    assert devices(several, devices=own) == []
    labelled = {"product": "NVIDIA-A100", "memory": "40960"}
    assert len(devices(machine("a", labelled, 1, "nvidia.com/a100"), devices=own)) == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"devices": {}},
        {"devices": {"claims": ["gpus"]}},
        {"devices": {"vendor": "amd"}, "runtime": {"image": "registry.example/rocm:1"}},
        {"resources": {"nvidia.com/gpumem": 8000}},
        {"engine": {"cpuOffloadGb": 10}},
        {"engine": {"speculativeConfig": {"model": "org/draft", "num_speculative_tokens": 3}}},
        {"model": {"image": {"reference": "registry.example/model:1"}}},
        {"initContainers": [{"name": "own", "image": "registry.example/own:1"}]},
        {"scheduling": {"affinity": {"nodeAffinity": PLACED}}},
    ],
)
def test_where_labels_do_not_say_what_a_pod_gets_nobody_is_asked(spec: dict[str, Any]) -> None:
    whole = spec_of(**spec)
    assert not is_asked(whole, render(whole, Facts())[0]["spec"]["template"]["spec"])


def asked(state: Object, phase: str = "Running", **status: Any) -> Object:
    """The pod that asks, with its container in this state."""
    statuses = [{"name": FIT, "image": "", "ready": False, "state": state}]
    head = {"name": "demo-fit-1", "namespace": "models", "uid": "1", "creationTimestamp": MADE}
    whole = {"phase": phase, "containerStatuses": statuses, **status}
    return kept({"kind": "Pod", "metadata": head, "spec": {}, "status": whole})


def answered(answer: object, code: int = 1) -> Object:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return asked({"terminated": {"exitCode": code, "message": text}}, "Failed" if code else "Succeeded")


def verdict(live: Object | None, age: float = 10, status: Object | None = None) -> reasons.Finding | None:
    made = datetime.datetime.fromisoformat(MADE)
    return judged(resource(status=status), POD, live, made + datetime.timedelta(seconds=age))


def of(device: str, fits: bool, memory: int = 24, **more: Any) -> dict[str, Any]:
    return {"device": device, "memory": memory << 30, "fits": fits, **more}


@pytest.mark.parametrize("live", [None, asked({"running": {}}), asked({"waiting": {}}, "Pending")])
def test_a_rollout_waits_for_the_answer(live: Object | None) -> None:
    found = verdict(live)
    assert found is not None
    assert found.reason is reasons.ASKING
    assert found.message == "Pod demo-fit-1 asks whether the model fits the nodes' devices."


def test_why_the_pod_does_not_begin_is_said() -> None:
    pulling = asked({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}, "Pending")
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    waits = asked({}, "Pending", conditions=[unplaced])
    for live, said in ((pulling, "Back-off pulling"), (waits, "0/3 nodes are available")):
        assert (found := verdict(live)) is not None
        assert found.message.endswith(f" It waits: {said}")


def test_one_device_that_fits_is_enough() -> None:
    answer = {"fit": [of("NVIDIA-L4", False, short="Too large."), of("NVIDIA-H100", True, 80)]}
    assert verdict(answered(answer, 0)) is None


def test_where_none_fits_the_message_says_what_would_in_the_documents_words() -> None:
    small = of("NVIDIA-L4", False, short="Small.", instead=[{"device": "A100 40GB"}])
    changes = [
        {"max_model_len": 8192},
        {"tensor_parallel_size": 2, "quantization": "fp8"},
        {"device": "H200"},
    ]
    large = of("NVIDIA-L40S", False, 48, short="Weights leave nothing.", instead=changes)
    found = verdict(answered({"fit": [small, large]}))
    assert found is not None
    assert found.reason is reasons.NO_DEVICE_FITS
    assert found.message == (
        "The model does not fit NVIDIA-L4 (24.0 GiB) or NVIDIA-L40S (48.0 GiB). Weights leave nothing. It "
        "would fit with spec.engine.maxModelLen: 8192, or with spec.engine.tensorParallelSize: 2 and "
        "spec.engine.quantization: fp8, or on H200. spec.rollout.fit: Off starts it all the same."
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "slipway fit: error: config.json is missing",
        "{}",
        "[]",
        {"fit": []},
        {"fit": [{"device": "L4"}]},
        {"fit": {"fits": False}},
        {"fit": [of("L4", False, instead=[3])]},
        {"fit": [of("L4", False, short=["x"])]},
        '{"fit": [{"device": "L4", "memory": 1e999, "fits": false}]}',
        '{"fit": [{"device": "L4", "memory": ' + "9" * 400 + ', "fits": false}]}',
        "[" * 4000,
        '{"fit": [{"device": "L4", "memory": 1, "fits": false, "short": ' + "[" * 990 + "]" * 990 + "}]}",
    ],
)
def test_what_is_no_answer_holds_nothing_up_and_is_logged(answer: object, caplog) -> None:
    assert verdict(answered(answer)) is None
    assert "models/demo: rolling out, though pod demo-fit-1 did not say what fits" in caplog.text


def test_a_pod_that_never_begins_or_is_evicted_holds_nothing_up() -> None:
    stuck = asked({"waiting": {"reason": "ImagePullBackOff"}}, "Pending")
    assert verdict(stuck, PATIENCE.total_seconds() - 1) is not None
    assert verdict(stuck, PATIENCE.total_seconds()) is None
    assert (
        verdict(kept({**asked({}), "kind": "Pod", "status": {"phase": "Failed", "reason": "Evicted"}}))
        is None
    )


def test_what_the_api_server_would_change_is_changed_before() -> None:
    found = verdict(answered('{"fit": [{"device": "L\\ud8004", "memory": 1, "fits": false}]}'))
    assert found is not None
    assert "L?4" in found.message


def told(reason: str, since: str = MADE, generation: int = 1) -> Object:
    """A status that says this of Fits."""
    known = {"type": "Fits", "status": "Unknown", "reason": reason, "message": "As told.",
             "observedGeneration": generation, "lastTransitionTime": since}  # fmt: skip
    return {"conditions": [known]}


def test_another_pod_for_the_same_question_waits_no_longer() -> None:
    long_ago = told("Asking", "2026-08-22T10:00:00Z")
    assert verdict(None, status=long_ago) is None
    assert verdict(asked({"running": {}}), status=long_ago) is None
    assert verdict(asked({"running": {}}), status=told("NoDeviceFits", "2026-08-22T10:00:00Z")) is not None


def test_another_document_asks_a_question_of_its_own() -> None:
    before = told("Asking", "2026-08-22T10:00:00Z", generation=0)
    assert verdict(None, status=before) is not None
    assert verdict(asked({"running": {}}), status=before) is not None


def test_a_refusal_stands_while_no_node_is_in_sight_and_for_its_document_alone() -> None:
    found = stands(resource(status=told("NoDeviceFits")))
    assert found is not None
    assert (found.reason.name, found.message) == ("NoDeviceFits", "As told.")
    assert stands(resource(status=told("NoDeviceFits", generation=0))) is None
    assert stands(resource(status=told("Asking"))) is None
    assert stands(resource()) is None


def whole(found: reasons.Finding, **observed: Any) -> dict[str, dict[str, Any]]:
    made = status(Observed(resource=resource(), fit=found, now=NOW, **observed), spec_of())
    return {one["type"]: one for one in made["conditions"]} | {"summary": made["summary"]}


def test_the_status_waits_with_the_question() -> None:
    made = whole(reasons.ASKING.found("Pod demo-fit-1 asks whether the model fits the nodes' devices."))
    assert made["summary"] == "Asking: Pod demo-fit-1 asks whether the model fits the nodes' devices"
    assert made[conditions.FITS]["status"] == "Unknown"
    assert made[conditions.READY]["status"] == "False"
    assert made[conditions.RECONCILING]["reason"] == "Asking"
    assert conditions.STALLED not in made


def test_a_model_that_fits_nothing_is_stalled_before_there_is_a_pod() -> None:
    made = whole(reasons.NO_DEVICE_FITS.found("The model does not fit NVIDIA-L4 (22.4 GiB). Weights."))
    assert made["summary"] == "NoDeviceFits: The model does not fit NVIDIA-L4 (22.4 GiB)"
    assert made[conditions.FITS] | {"lastTransitionTime": ""} == {
        "type": "Fits",
        "status": "False",
        "reason": "NoDeviceFits",
        "message": "The model does not fit NVIDIA-L4 (22.4 GiB). Weights.",
        "observedGeneration": 1,
        "lastTransitionTime": "",
    }
    assert made[conditions.STALLED]["status"] == "True"
    assert conditions.RECONCILING not in made
