"""The status tells the truth to people, `kubectl wait` and kstatus alike."""

from __future__ import annotations

import dataclasses
import datetime
from itertools import pairwise
from typing import Any

import pytest
from as_printed import (
    NOW,
    Object,
    cause,
    crash_loop,
    deployment,
    node,
    pod,
    ready_pod,
    replica_set,
    resource,
    running,
    service,
    terminated,
    unscheduled,
)
from hypothesis import given
from hypothesis import strategies as st

from slipway.service import InvalidService, ServiceSpec, from_mapping
from slipway_operator import reasons
from slipway_operator.cluster import Refused
from slipway_operator.conditions import CONDITIONS, READY, RECONCILING, STALLED
from slipway_operator.events import transitions
from slipway_operator.progress import Progress
from slipway_operator.reasons import BY_NAME
from slipway_operator.reconcile import refused
from slipway_operator.status import Observed, refusal, status

ALWAYS = ("Valid", "Scheduled", "ModelLoaded", "Available", "Progressing")
LATER = NOW + datetime.timedelta(hours=1)


def spec_of(document: Object) -> ServiceSpec:
    return from_mapping(document)


def told(observed: Observed, refused: bool = False) -> dict[str, Any]:
    return status(observed, None if refused else spec_of(dict(observed.resource)))


def serving(**more: Any) -> Observed:
    fields: dict[str, Any] = {
        "resource": resource(),
        "deployment": deployment(available=1),
        "replica_sets": [replica_set(1, replicas=0), replica_set(2)],
        "pods": [ready_pod()],
        "service": service(),
        "now": NOW,
    }
    return Observed(**{**fields, **more})


def broken(one: Object, **more: Any) -> Observed:
    return serving(**{"pods": [one], "deployment": deployment(), **more})


def conditions(whole: Object) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in whole["conditions"]}


def kstatus(whole: Object | None, generation: int) -> str:
    """What kstatus (helm 4, Flux) makes of it, by the rules of its `Compute` for a custom resource."""
    if whole is None:
        return "Current"
    if whole["observedGeneration"] != generation:
        return "InProgress"
    by_type = {one["type"]: one["status"] for one in whole["conditions"]}
    if by_type.get("Reconciling") == "True":
        return "InProgress"
    if by_type.get("Stalled") == "True":
        return "Failed"
    return {"True": "Current", None: "Current"}.get(by_type.get("Ready"), "InProgress")


def test_a_service_that_serves_is_ready_and_says_where():
    whole = told(serving())
    assert conditions(whole) == {
        "Valid": ("True", "Accepted"),
        "Scheduled": ("True", "Scheduled"),
        "ModelLoaded": ("True", "Loaded"),
        "Available": ("True", "Serving"),
        "Progressing": ("True", "RolledOut"),
        "Ready": ("True", "Serving"),
    }
    assert whole["summary"] == "Serving: 1 of 1 replicas admit requests"
    assert whole["url"] == "http://demo.models.svc:8000"
    assert whole["replicas"] == 1
    assert whole["selector"] == "app.kubernetes.io/instance=demo,app.kubernetes.io/name=slipway"
    assert kstatus(whole, 1) == "Current"


def test_the_url_is_that_of_a_load_balancer_and_of_tls():
    assert told(serving(service=service(ip="192.0.2.7")))["url"] == "http://192.0.2.7:8000"
    assert told(serving(service=service(hostname="llm.example.com")))["url"] == "http://llm.example.com:8000"
    secured = resource(secrets={"tls": {"name": "cert"}})
    assert told(serving(resource=secured))["url"] == "https://demo.models.svc:8000"
    assert "url" not in told(serving(service=None))


def test_a_new_resource_is_on_its_way():
    whole = told(Observed(resource=resource(), now=NOW))
    assert conditions(whole)["Ready"] == ("False", "RollingOut")
    assert whole["replicas"] == 0
    assert kstatus(whole, 1) == "InProgress"


def test_a_generation_that_was_not_seen_is_in_progress():
    assert kstatus(told(serving()), 2) == "InProgress"


def test_the_summary_names_the_missing_resource_in_one_line():
    message = (
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: "
        "1 Preemption is not helpful for scheduling."
    )
    waiting = unscheduled(message, {"nvidia.com/gpu": "8"})
    whole = told(broken(waiting, nodes=[node(**{"nvidia.com/gpu": "4"})]))
    assert whole["summary"] == "Unschedulable: wants nvidia.com/gpu 8, node0 has 4"
    assert conditions(whole)["Scheduled"] == ("False", "Unschedulable")
    assert conditions(whole)["ModelLoaded"] == ("Unknown", "NoPods")
    assert kstatus(whole, 1) == "InProgress"  # a node may come


def test_a_service_that_starts_and_rolls_out_well_has_no_warnings():
    new = Observed(resource=resource(), now=NOW)
    life = [{}, *map(told, (new, broken(pod(containers=[running()])), serving(), rolling(), serving()))]
    events = [event for before, after in pairwise(life) for event in transitions(before, after)]
    assert {event.type for event in events} == {"Normal"}


def test_what_only_a_person_can_mend_is_stalled():
    said = cause(10, "ModelNotFound", "There is no model org/nope on the hub.", "Check the spelling.")
    whole = told(broken(pod(containers=[crash_loop(10, said)])))
    assert whole["summary"] == "ModelNotFound: There is no model org/nope on the hub"
    assert conditions(whole)["ModelLoaded"] == ("False", "ModelNotFound")
    assert conditions(whole)["Progressing"] == ("False", "ModelNotFound")
    assert conditions(whole)["Stalled"] == ("True", "ModelNotFound")
    assert "Reconciling" not in conditions(whole)
    assert kstatus(whole, 1) == "Failed"


def test_what_may_mend_itself_is_not_stalled():
    whole = told(broken(pod(containers=[crash_loop(12, cause(12, "NoNetwork", "No route."))])))
    assert conditions(whole)["Ready"] == ("False", "NoNetwork")
    assert kstatus(whole, 1) == "InProgress"


def rolling() -> Observed:
    return serving(
        pods=[ready_pod("demo-5d4f1-old", revision=1), pod(containers=[running()])],
        replica_sets=[replica_set(1), replica_set(2)],
        deployment=deployment(made=2, updated=1, available=1),
    )


def test_a_rollout_is_not_ready_while_the_old_pods_serve_on():
    whole = told(rolling())
    assert conditions(whole)["Available"] == ("True", "Serving")
    assert conditions(whole)["Progressing"] == ("True", "RollingOut")
    assert conditions(whole)["Ready"] == ("False", "Loading")
    assert kstatus(whole, 1) == "InProgress"


def test_a_deployment_that_was_written_but_not_seen_by_its_controller_is_not_ready():
    stale = serving(deployment=deployment(available=1, generation=2, observed=1))
    assert conditions(told(stale))["Ready"] == ("False", "RollingOut")


def test_a_rollout_without_a_spare_device_stops_while_the_old_pods_serve():
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available."
    whole = told(
        serving(
            pods=[
                ready_pod("demo-5d4f1-old", revision=1),
                unscheduled(message, {"nvidia.com/gpu": "1"}),
            ],
            deployment=deployment(made=2, updated=1, available=1),
            nodes=[node(**{"nvidia.com/gpu": "1"})],
        )
    )
    assert conditions(whole)["Available"] == ("True", "Serving")
    assert conditions(whole)["Scheduled"] == ("False", "Unschedulable")
    assert conditions(whole)["Progressing"] == ("False", "RolloutNeedsSpareDevice")
    assert conditions(whole)["Ready"] == ("False", "RolloutNeedsSpareDevice")
    assert whole["summary"].startswith("RolloutNeedsSpareDevice: a new pod wants nvidia.com/gpu 1")


@pytest.mark.parametrize("oldest", ["NoNetwork", "ModelNotFound"])
def test_of_pods_that_fail_differently_what_counts_most_is_told_whichever_is_older(oldest):
    codes = {"NoNetwork": 12, "ModelNotFound": 10}
    pods = [
        pod(f"demo-5d4f2-{'a' if reason == oldest else 'b'}", containers=[crash_loop(code)])
        for reason, code in codes.items()
    ]
    whole = told(broken(pods[0], pods=pods, deployment=deployment(replicas=2)))
    assert {conditions(whole)[one][1] for one in ("ModelLoaded", "Ready", "Stalled")} == {"ModelNotFound"}


def test_each_condition_has_its_own_cause_where_another_counts_more():
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    fails = pod("demo-5d4f2-a", containers=[crash_loop(12)])
    waits = unscheduled(message, {"nvidia.com/gpu": "1"}, name="demo-5d4f2-b")
    loads = pod("demo-5d4f2-c", containers=[running()])
    two = {"deployment": deployment(replicas=2)}
    whole = conditions(told(broken(fails, pods=[fails, waits], **two)))
    assert (whole["Ready"][1], whole["Scheduled"]) == ("NoNetwork", ("False", "Unschedulable"))
    whole = conditions(told(broken(loads, pods=[loads, waits], **two)))
    assert (whole["Ready"][1], whole["ModelLoaded"]) == ("Unschedulable", ("False", "Loading"))


def test_of_containers_that_fail_what_counts_most_is_told():
    beside = {**crash_loop(1), "name": "proxy"}
    said = cause(10, "ModelNotFound", "There is no model org/nope on the hub.")
    whole = told(broken(pod(sidecars=[beside], containers=[crash_loop(10, said)])))
    assert whole["summary"] == "ModelNotFound: There is no model org/nope on the hub"


@pytest.mark.parametrize("wish", [{}, {"suspend": True}])
def test_a_change_that_is_refused_is_not_ready_though_the_pods_of_before_serve(wish):
    problem = Refused(403, "Forbidden", 'admission webhook "a.example" denied the request: no team')
    found = refused({"kind": "Deployment", "metadata": {"name": "demo"}}, problem)
    whole = told(serving(resource=resource(**wish), invalid=found))
    assert conditions(whole)["Ready"] == ("False", "AdmissionRefused")
    assert conditions(whole)["Progressing"] == ("False", "AdmissionRefused")
    assert conditions(whole)["Available"] == ("True", "Serving")
    assert kstatus(whole, 1) == "InProgress"
    assert whole["summary"] == "AdmissionRefused: the webhook a.example refuses Deployment demo: no team"


def test_a_rollout_that_ends_old_pods_first_says_why():
    odd = deployment(available=1)
    odd["metadata"]["annotations"]["slipway.dev/rollout"] = "Recreate: the claim cache is ReadWriteOnce."
    whole = told(serving(deployment=odd))
    (progressing,) = (one for one in whole["conditions"] if one["type"] == "Progressing")
    assert progressing["message"] == (
        "1 of 1 replicas run the current template. Recreate: the claim cache is ReadWriteOnce."
    )


def test_a_rollout_past_its_deadline_is_stalled_with_its_cause():
    whole = told(broken(pod(containers=[crash_loop(12)]), deployment=deployment(overdue=True)))
    assert conditions(whole)["Progressing"] == ("False", "ProgressDeadlineExceeded")
    assert conditions(whole)["Stalled"] == ("True", "ProgressDeadlineExceeded")
    assert conditions(whole)["Ready"] == ("False", "NoNetwork")


LOADS = pod(containers=[running()])
NAME = LOADS["metadata"]["name"]
SOME_GB = (494 * 10**9, 810 * 10**9)


def past_deadline(*pods: Object, **more: Any) -> dict[str, Any]:
    late = deployment(replicas=len(pods), overdue=True)
    return told(serving(pods=[*pods], deployment=late, **more))


@pytest.mark.parametrize(
    "moving", [Progress("download", *SOME_GB), Progress("load", 0, 0), Progress("warmup", 3, 7)]
)
def test_a_load_that_moves_is_never_past_the_deadline(moving: Progress):
    whole = past_deadline(LOADS, progress={NAME: moving})
    assert conditions(whole)["Progressing"] == ("True", "RollingOut")
    assert conditions(whole)["Ready"] == ("False", "Loading")
    assert kstatus(whole, 1) == "InProgress"


@pytest.mark.parametrize(
    ("still", "reason"),
    [
        (Progress("download", *SOME_GB, still_since=NOW), "LoadStalled"),
        (Progress("warmup", 3, 7, still_since=NOW), "Loading"),
        (Progress("asleep", 0, 0), "Asleep"),
        (Progress("stalled", 0, 0), "EngineStalled"),
        (None, "Loading"),
    ],
)
def test_a_load_that_stands_still_or_says_nothing_is_past_it(still: Progress | None, reason: str):
    whole = past_deadline(LOADS, progress={NAME: still} if still else {})
    assert conditions(whole)["Progressing"] == ("False", "ProgressDeadlineExceeded")
    assert conditions(whole)["Ready"] == ("False", reason)
    assert kstatus(whole, 1) == "Failed"


def test_one_pod_whose_load_moves_is_enough():
    stuck = pod("demo-5d4f2-aaaaa", containers=[crash_loop(12)])
    moving = {NAME: Progress("download", *SOME_GB)}
    assert kstatus(past_deadline(stuck, LOADS, progress=moving), 1) == "InProgress"
    assert kstatus(past_deadline(stuck, progress=moving), 1) == "Failed"


def test_before_a_pod_has_answered_a_new_operator_says_what_was_said_before():
    moving = past_deadline(LOADS, progress={NAME: Progress("download", *SOME_GB)})
    assert kstatus(past_deadline(LOADS, resource=resource(status=moving), awaited={NAME}), 1) == "InProgress"
    assert kstatus(past_deadline(LOADS, resource=resource(status=moving)), 1) == "Failed"
    stalled = past_deadline(LOADS)
    assert kstatus(past_deadline(LOADS, resource=resource(status=stalled), awaited={NAME}), 1) == "Failed"


def test_what_ended_a_server_before_stalls_none_that_has_come_further():
    gated = cause(11, "ModelGated", "The hub does not let this token read the model.")
    again = pod(containers=[running(last=terminated(11, gated))])
    assert kstatus(told(broken(again)), 1) == "Failed"
    whole = told(broken(again, progress={NAME: Progress("download", *SOME_GB)}))
    assert conditions(whole)["Ready"] == ("False", "Loading")
    assert kstatus(whole, 1) == "InProgress"


def test_what_ends_a_server_while_it_loads_stalls_the_next_try_too():
    again = pod(containers=[running(last=terminated(137, reason="OOMKilled"))])
    whole = told(broken(again, progress={NAME: Progress("load", *SOME_GB)}))
    assert conditions(whole)["Stalled"] == ("True", "OutOfMemory")


def fetching(last: Object | None = None, since: datetime.timedelta = datetime.timedelta(minutes=2)) -> Object:
    """A pod whose model is fetched, for so long."""
    status = running(last=last, name="fetch")
    status["state"]["running"]["startedAt"] = (NOW - since).isoformat().replace("+00:00", "Z")
    return pod(init_containers=[status])


def test_a_fetch_that_runs_is_never_past_the_deadline():
    whole = past_deadline(fetching())
    assert conditions(whole)["Ready"] == ("False", "Fetching")
    assert kstatus(whole, 1) == "InProgress"
    assert kstatus(past_deadline(fetching(since=datetime.timedelta(seconds=1))), 1) == "InProgress"


@pytest.mark.parametrize(("code", "reason"), [(10, "ModelNotFound"), (11, "ModelGated"), (12, "NoNetwork")])
def test_what_ended_a_fetch_before_is_said_until_another_has_begun(code: int, reason: str):
    last = terminated(code)
    for whole in (told(broken(fetching(last))), past_deadline(fetching(last))):
        assert conditions(whole)["Ready"] == ("False", "Fetching")
        assert kstatus(whole, 1) == "InProgress"
    tries = fetching(last, datetime.timedelta(seconds=70))
    assert conditions(told(broken(tries)))["Ready"] == ("False", reason)
    assert kstatus(past_deadline(tries), 1) == "Failed"


def test_what_ends_a_fetch_while_it_fetches_is_said_of_the_next_try_too():
    full = terminated(13, cause(13, "NoSpace", "/cache lacks 3 GB."))
    for last, reason in ((terminated(137, reason="OOMKilled"), "OutOfMemory"), (full, "NoSpace")):
        assert conditions(told(broken(fetching(last))))["Ready"] == ("False", reason)


def test_an_invalid_spec_is_told_with_its_field_and_what_serves_serves_on():
    error = InvalidService("spec.engine.maxModelLen", "-5 is below 1.")
    whole = told(serving(invalid=refusal(error)), refused=True)
    assert conditions(whole)["Valid"] == ("False", "InvalidSpec")
    assert conditions(whole)["Available"] == ("True", "Serving")
    assert conditions(whole)["Ready"] == ("False", "InvalidSpec")
    assert whole["summary"] == "InvalidSpec: spec.engine.maxModelLen: -5 is below 1"
    assert kstatus(whole, 1) == "Failed"


@pytest.mark.parametrize("reason", ["PolicyDenied", "MultiNodeNotSupported", "NotSupported"])
def test_a_refused_resource_without_pods_has_nothing_to_say_of_them(reason):
    error = InvalidService("spec.engine", "No.", reason=reason)
    whole = told(Observed(resource=resource(), invalid=refusal(error), now=NOW))
    assert conditions(whole)["Valid"] == ("False", reason)
    assert conditions(whole)["Scheduled"] == ("Unknown", "NoPods")
    assert kstatus(whole, 1) == "Failed"


def test_a_taken_name_is_told():
    conflict = "Service demo belongs to Deployment other and is left alone."
    whole = told(Observed(resource=resource(), conflict=conflict, now=NOW))
    assert conditions(whole)["Progressing"] == ("False", "NameConflict")
    assert conditions(whole)["Valid"] == ("True", "Accepted")
    assert whole["summary"] == f"NameConflict: {conflict.rstrip('.')}"


@pytest.mark.parametrize(
    ("wish", "why"), [({"suspend": True}, "spec.suspend is true"), ({"replicas": 0}, "spec.replicas is 0")]
)
def test_a_suspended_resource_is_neither_ready_nor_awaited(wish, why):
    idle = serving(resource=resource(**wish), deployment=deployment(replicas=0), pods=[])
    whole = told(idle)
    assert "Ready" not in conditions(whole)
    assert conditions(whole)["Available"] == ("False", "Suspended")
    assert whole["summary"] == f"Suspended: {why}, so no pod runs"
    assert kstatus(whole, 1) == "Current"


def test_a_resource_whose_pods_still_go_is_on_its_way_to_be_suspended():
    going = serving(resource=resource(suspend=True), deployment=deployment(replicas=0, made=1))
    assert kstatus(told(going), 1) == "InProgress"


def test_a_foreign_variable_is_told_and_harms_no_readiness():
    whole = told(serving(drift=["VLLM_FOO"], upgrade="template.spec.x 1 → 2."))
    assert conditions(whole)["Drifted"] == ("True", "Drifted")
    assert conditions(whole)["UpgradeAvailable"] == ("True", "UpgradeAvailable")
    assert conditions(whole)["Ready"] == ("True", "Serving")
    assert whole["summary"] == "Drifted: someone else added VLLM_FOO to the Deployment"


def test_a_kind_of_monitor_that_the_cluster_lacks_is_told_and_harms_no_readiness():
    whole = told(serving(missing_monitor="ServiceMonitor", upgrade="template.spec.x 1 → 2."))
    assert conditions(whole)["Unmonitored"] == ("True", "MonitorKindMissing")
    assert conditions(whole)["Ready"] == ("True", "Serving")
    assert whole["summary"].startswith("MonitorKindMissing: the cluster has no kind ServiceMonitor")
    assert kstatus(whole, 1) == "Current"


ARGUMENTS = [
    reason.found("An image.")
    for reason in (reasons.SCHEMA_MATCHES, reasons.SCHEMA_UNKNOWN, reasons.ARGUMENTS_REFUSED)
]


@pytest.mark.parametrize(
    ("arguments", "told_as"), [*zip(ARGUMENTS, ("True", "Unknown", "False"), strict=True)], ids=str
)
def test_what_an_image_takes_is_told_and_harms_no_pods_that_run(arguments, told_as):
    whole = told(serving(arguments=arguments))
    assert conditions(whole)["ArgsCompatible"] == (told_as, arguments.reason.name)
    assert conditions(whole)["Ready"] == ("True", "Serving")
    assert "ArgsCompatible" not in conditions(told(serving()))


def test_arguments_that_an_image_refuses_leave_the_spec_valid_and_unfulfilled():
    found = reasons.ARGUMENTS_REFUSED.found("A does not take the arguments. spec.engine.a: no.")
    whole = told(serving(arguments=found, invalid=found))
    assert conditions(whole)["Valid"] == ("True", "Accepted")
    assert conditions(whole)["Ready"] == ("False", "ArgumentsRefused")
    assert conditions(whole)["Available"] == ("True", "Serving")
    assert conditions(whole)["Stalled"] == ("True", "ArgumentsRefused")
    assert whole["summary"] == "ArgumentsRefused: A does not take the arguments. spec.engine.a: no"
    assert kstatus(whole, 1) == "Failed"


def test_an_upgrade_is_told_where_pods_are_not_ready_too():
    whole = told(broken(pod(), upgrade="containers[server].image a → b. Latest takes it."))
    assert conditions(whole)["UpgradeAvailable"] == ("True", "UpgradeAvailable")


def test_a_status_is_stable_under_repetition():
    observed = serving()
    once = told(observed)
    seen = resource(status=once)
    assert told(dataclasses.replace(observed, resource=seen, now=LATER)) == once


def test_the_time_of_a_condition_moves_only_with_its_status():
    once = told(broken(pod(containers=[running()])))
    seen = resource(status=once)
    again = told(broken(pod(containers=[crash_loop(12)]), resource=seen, now=LATER))
    times = {one["type"]: one["lastTransitionTime"] for one in again["conditions"]}
    assert times["Ready"] == "2026-08-22T12:00:00Z"
    later = told(serving(resource=seen, now=LATER))
    times = {one["type"]: one["lastTransitionTime"] for one in later["conditions"]}
    assert times["Ready"] == "2026-08-22T13:00:00Z"
    assert times["Valid"] == "2026-08-22T12:00:00Z"


POD_STATES = st.sampled_from(
    [
        ready_pod,
        lambda name, revision: pod(name, revision=revision, node=None),
        lambda name, revision: pod(name, revision=revision, containers=[running()]),
        lambda name, revision: pod(name, revision=revision, containers=[crash_loop(10)]),
        lambda name, revision: pod(name, revision=revision, containers=[crash_loop(137, "x" * 5000)]),
        lambda name, revision: unscheduled("line\n" * 400, name=name, revision=revision),
    ]
)


PODS = [f"demo-{index}" for index in range(4)]
LOADING = [Progress("download", 1, 9), Progress("load", 1, 9, still_since=NOW), Progress("asleep", 0, 0)]


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    replicas = draw(st.integers(0, 3))
    pods = [
        draw(POD_STATES)(name, draw(st.integers(1, 2))) for name in PODS[: draw(st.integers(0, len(PODS)))]
    ]
    counts = {key: draw(st.integers(0, 3)) for key in ("made", "updated", "available", "observed")}
    return Observed(
        resource=resource(replicas=replicas, suspend=draw(st.booleans())),
        deployment=draw(
            st.sampled_from([None, deployment(replicas=replicas, overdue=draw(st.booleans()), **counts)])
        ),
        replica_sets=[replica_set(1), replica_set(2)],
        pods=pods,
        conflict=draw(st.sampled_from([None, "Taken. " * 60])),
        drift=draw(st.sampled_from([[], ["VLLM_X"]])),
        progress=draw(st.dictionaries(st.sampled_from([*PODS]), st.sampled_from(LOADING))),
        awaited=draw(st.sets(st.sampled_from([*PODS]))),
        missing_monitor=draw(st.sampled_from([None, "PodMonitor"])),
        arguments=draw(st.sampled_from([None, *ARGUMENTS])),
        now=NOW,
    )


@given(observations())
def test_whatever_is_seen_the_status_is_whole_and_of_one_mind(observed: Observed):
    whole = told(observed)
    found = conditions(whole)
    assert tuple(found)[: len(ALWAYS)] == ALWAYS
    assert len(found) == len(whole["conditions"])
    assert set(found) <= set(CONDITIONS)
    assert all(reason in BY_NAME for _, reason in found.values())
    assert all(one["message"] and one["observedGeneration"] == 1 for one in whole["conditions"])
    assert len(whole["summary"]) <= 120
    assert whole["summary"].isprintable()
    if found.get(READY, ("",))[0] == "True":
        assert found["Available"][0] == "True"
        assert RECONCILING not in found
        assert STALLED not in found
    assert not (RECONCILING in found and STALLED in found)
    assert (
        told(dataclasses.replace(observed, resource={**observed.resource, "status": whole}, now=LATER))
        == whole
    )


def test_the_image_is_that_of_the_current_template() -> None:
    template = {
        "spec": {
            "containers": [{"name": "proxy", "image": "mesh:1"}, {"name": "server", "image": "slipway:2"}]
        }
    }
    made = deployment(available=1)
    injected = {**made, "spec": {**made["spec"], "template": template}}
    assert told(serving(deployment=injected))["image"] == "slipway:2"
    assert "image" not in told(serving(deployment=None))


def test_what_failed_before_a_change_is_not_told_of_the_change() -> None:
    text = 'pods "demo" is forbidden: serviceaccount "x" not found'
    failing = {"replica_sets": [replica_set(2, made=0, failure=text)], "pods": []}
    seen = told(serving(deployment=deployment(overdue=True), **failing))
    assert conditions(seen)["Ready"] == ("False", "PodsNotCreated")
    unseen = told(serving(deployment=deployment(overdue=True, generation=2, observed=1), **failing))
    assert conditions(unseen)["Ready"] == ("False", "RollingOut")
    assert "Stalled" not in conditions(unseen)
