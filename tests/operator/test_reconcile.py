"""The parts of a reconciliation that need no API server: transitions, pods that wait, rights."""

from __future__ import annotations

from typing import Any

import pytest

from slipway_operator.cluster import KINDS, MADE, OPTIONAL, Refused
from slipway_operator.events import Transition, transitions, waits
from slipway_operator.permissions import CLUSTER_RULES, LEASE_RULES, SERVICE_RULES
from slipway_operator.reconcile import may_pass, refused

Object = dict[str, Any]


def status(*conditions: tuple[str, str, str]) -> Object:
    """A .status of (type, status, reason)."""
    listed = [
        {"type": kind, "status": value, "reason": reason, "message": f"{reason}."}
        for kind, value, reason in conditions
    ]
    return {"conditions": listed}


def test_a_condition_that_stays_is_no_transition() -> None:
    same = status(("Valid", "True", "Accepted"), ("Scheduled", "False", "Unschedulable"))
    assert transitions(same, same) == []


def test_a_new_reason_is_one_event_with_the_conditions_message() -> None:
    before = status(("Scheduled", "False", "Scheduling"))
    after = status(("Scheduled", "False", "Unschedulable"), ("Ready", "False", "Unschedulable"))
    assert transitions(before, after) == [Transition("Warning", "Unschedulable", "Unschedulable.")]


SERVES = status(("Available", "True", "Serving"), ("Ready", "True", "Serving"))


def test_a_service_that_serves_no_more_is_a_warning_with_its_cause() -> None:
    stopped = status(("Available", "False", "NoReadyPod"), ("Ready", "False", "Unresponsive"))
    assert transitions(SERVES, stopped) == [
        Transition("Warning", "NoReadyPod", "NoReadyPod. Unresponsive: Unresponsive.")
    ]
    assert transitions({}, stopped) == []  # it has not served yet
    assert transitions(stopped, stopped) == []


def test_a_service_that_is_suspended_has_not_failed() -> None:
    suspended = status(("Available", "False", "Suspended"), ("Progressing", "True", "Suspended"))
    assert transitions(SERVES, suspended) == [Transition("Normal", "Suspended", "Suspended.")]


def test_a_good_end_is_an_event_and_the_way_to_it_is_none() -> None:
    assert transitions({}, status(("ModelLoaded", "False", "Loading"))) == []
    assert transitions({}, status(("ModelLoaded", "True", "Loaded"))) == [
        Transition("Normal", "Loaded", "Loaded.")
    ]


def test_a_reason_of_another_version_is_no_calm_one() -> None:
    assert transitions({}, status(("Available", "False", "Unheard"))) == [
        Transition("Warning", "Unheard", "Unheard.")
    ]


def pod(*conditions: tuple[str, str], deleted: bool = False) -> Object:
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    return {
        "metadata": metadata,
        "status": {"conditions": [{"type": kind, "status": value} for kind, value in conditions]},
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (pod(), True),
        (pod(("PodScheduled", "True"), ("Ready", "False")), True),
        (pod(("PodScheduled", "False")), True),
        (pod(("PodScheduled", "True"), ("Ready", "True")), False),
        (pod(deleted=True), False),
    ],
)
def test_a_pod_waits_while_it_is_not_ready(item: Object, expected: bool) -> None:
    assert waits(item) is expected


def test_every_kind_that_is_made_may_be_made_and_every_kind_that_is_seen_may_be_listed() -> None:
    verbs: dict[tuple[str, str], set[str]] = {}
    for rule in (*SERVICE_RULES, *CLUSTER_RULES, *LEASE_RULES):
        for resource in rule.resources:
            assert (rule.group, resource) not in verbs
            verbs[rule.group, resource] = set(rule.verbs)
    for kind in (*MADE, *OPTIONAL, KINDS["Pod"]):
        assert verbs[kind.group, kind.plural] == {"get", "list", "watch", "create", "patch", "delete"}
    assert verbs["apps", "replicasets"] == {"list", "watch"}
    assert not any(resource == "secrets" or "*" in resource for _, resource in verbs)


def test_a_path_names_all_objects_those_of_a_namespace_one_or_a_part_of_it() -> None:
    pods, deployments = KINDS["Pod"], KINDS["Deployment"]
    assert pods.path(None) == "/api/v1/pods"
    assert pods.path("ns") == "/api/v1/namespaces/ns/pods"
    assert deployments.path("ns", "x", "status") == "/apis/apps/v1/namespaces/ns/deployments/x/status"


TYPED = (
    "failed to create typed patch object (ns/demo; apps/v1, Kind=Deployment): .spec.no: field not declared"
)


@pytest.mark.parametrize(
    ("problem", "passes", "reason"),
    [
        (Refused(500, "", TYPED), False, "InvalidSpec"),
        (Refused(422, "Invalid", "spec.replicas: must not be negative"), False, "InvalidSpec"),
        (Refused(403, "Forbidden", "exceeded quota"), False, "AdmissionRefused"),
        (Refused(500, "InternalError", 'failed calling webhook "a.example"'), False, "AdmissionRefused"),
        (Refused(500, "InternalError", "etcdserver: leader changed"), True, "AdmissionRefused"),
        (Refused(409, "Conflict", "the object has been modified"), True, "AdmissionRefused"),
    ],
)
def test_a_refusal_that_waiting_does_not_mend_is_told(problem: Refused, passes: bool, reason: str) -> None:
    assert may_pass(problem) is passes
    found = refused({"kind": "Deployment", "metadata": {"name": "demo"}}, problem)
    assert found.reason.name == reason
    assert "typed patch object" not in found.message


def test_an_api_server_that_drops_volumes_of_images_is_told_with_the_gate() -> None:
    problem = Refused(
        422,
        "Invalid",
        'Deployment.apps "demo" is invalid: [spec.template.spec.volumes[3]: Required value: must specify a '
        'volume type, spec.template.spec.containers[0].volumeMounts[3].name: Not found: "model"]',
    )
    found = refused({"kind": "Deployment", "metadata": {"name": "demo"}}, problem)
    assert found.reason.name == "AdmissionRefused"
    assert "feature gate ImageVolume: it is on by default from Kubernetes 1.35" in found.message
    assert "The API server refuses Deployment demo: " in found.message
