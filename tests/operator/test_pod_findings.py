"""Pods that find no node, may not be made or are on their way: each has a reason, and its values."""

from __future__ import annotations

import itertools
import random

import pytest
from as_printed import (
    NOW,
    crash_loop,
    deployment,
    event,
    node,
    pod,
    ready_pod,
    replica_set,
    running,
    unscheduled,
    waiting,
)
from explaining import SETS, explained, first, pods_summary

from slipway_operator import reasons
from slipway_operator.progress import Progress

NO_PREEMPTION = (
    "no new claims to deallocate, preemption: 0/1 nodes are available: "
    "1 Preemption is not helpful for scheduling."
)
GPU_SHORT = f"0/1 nodes are available: 1 Insufficient nvidia.com/gpu. {NO_PREEMPTION}"


def test_too_few_devices_are_told_with_what_the_node_has():
    found = explained(
        unscheduled(GPU_SHORT, {"nvidia.com/gpu": "8"}),
        nodes=[node(**{"nvidia.com/gpu": "4"}), node("node1")],
    )
    assert found.reason.name == "Unschedulable"
    assert first(found) == "wants nvidia.com/gpu 8, node0 has 4"
    assert "0/1 nodes are available: 1 Insufficient nvidia.com/gpu" in found.message


def test_what_sidecars_ask_for_is_counted_and_what_ends_before_is_not():
    message = f"0/1 nodes are available: 1 Insufficient cpu. {NO_PREEMPTION}"
    before = {
        "init_containers": [{**running(), "name": "fetch"}],
        "sidecars": [{**running(), "name": "proxy"}],
    }
    found = explained(unscheduled(message, {"cpu": "2"}, **before), nodes=[node(cpu="3")])
    assert first(found) == "wants cpu 4, node0 has 3"


def test_a_resource_that_no_node_has_is_said_to_be_nowhere():
    message = f"0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.10gb. {NO_PREEMPTION}"
    found = explained(unscheduled(message, {"nvidia.com/mig-1g.10gb": "1"}), nodes=[node()])
    assert first(found) == "wants nvidia.com/mig-1g.10gb 1, no node has any"


def test_a_device_in_use_is_told_apart_from_one_that_is_not_there():
    found = explained(
        unscheduled(GPU_SHORT, {"nvidia.com/gpu": "1"}), nodes=[node(**{"nvidia.com/gpu": "1"})]
    )
    assert first(found) == "wants nvidia.com/gpu 1, node0 has 1, not enough of it free"


def test_nodes_that_the_selector_does_not_admit_do_not_count():
    wants = unscheduled(GPU_SHORT, {"nvidia.com/gpu": "8"})
    wants["spec"]["nodeSelector"] = {"pool": "large"}
    small, large = node(**{"nvidia.com/gpu": "16"}), node("node1")
    large["metadata"]["labels"] = {"pool": "large", "zone": "a"}
    assert first(explained(wants, nodes=[small, large])) == (
        "wants nvidia.com/gpu 8, no node that its nodeSelector admits has any"
    )
    large["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    assert first(explained(wants, nodes=[small, large])) == "wants nvidia.com/gpu 8, node1 has 4"


def test_an_image_that_no_node_can_run_is_told_by_its_architecture():
    wants = unscheduled("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.")
    wants["spec"]["nodeSelector"] = {"kubernetes.io/arch": "amd64"}
    arm = node()
    arm["metadata"]["labels"] = {"kubernetes.io/arch": "arm64"}
    amd = node("node1")
    amd["metadata"]["labels"] = {"kubernetes.io/arch": "amd64"}
    advice = "No node is amd64, as the image is. Add one, or name another image in spec.runtime.image."
    assert advice in explained(wants, nodes=[arm]).message
    assert advice not in explained(wants, nodes=[arm, amd]).message
    assert advice not in explained(wants).message


@pytest.mark.parametrize(
    ("reason", "said", "outlook"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{large 0->1 (max: 3)}]", "the autoscaler adds a node"),
        ("Nominated", "Pod should schedule on: nodeclaim/large-x7k2p", "the autoscaler adds a node"),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 max node group size reached",
            "the autoscaler adds no node",
        ),
    ],
)
def test_what_an_autoscaler_does_is_part_of_the_reason(reason, said, outlook):
    wants = unscheduled(GPU_SHORT, {"nvidia.com/gpu": "8"})
    older = event(wants, "NotTriggerScaleUp", "not yet", seen="2026-08-22T11:00:00Z")
    newer = event(wants, reason, said, seen="2026-08-22T11:00:01Z")
    found = explained(wants, events=[older, newer], nodes=[node()])
    assert found.reason.name == "Unschedulable"
    assert first(found) == f"wants nvidia.com/gpu 8, no node has any; {outlook}"
    assert f"The autoscaler says: {said}. The scheduler says: 0/1" in found.message


@pytest.mark.parametrize(
    ("words", "summary"),
    [
        ("no nodes available to schedule pods", "no nodes available to schedule pods"),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "none of 2 nodes fits: 2 node(s) didn't match Pod's node affinity/selector",
        ),
        ("0/1 nodes are available: 1 cannot allocate all claims.", "and no node has them free"),
    ],
)
def test_an_autoscaler_is_heard_whatever_is_in_the_way(words, summary):
    wants = unscheduled(words)
    said = event(wants, "TriggeredScaleUp", "pod triggered scale-up: [{large 0->1 (max: 3)}]")
    found = explained(wants, events=[said])
    assert f"{summary}; the autoscaler adds a node." in found.message
    assert "The autoscaler says: pod triggered scale-up: [{large 0->1 (max: 3)}]." in found.message


def test_without_sight_of_nodes_the_scheduler_s_count_stands_in():
    message = (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient memory, "
        "2 Insufficient cpu. preemption: 0/3 nodes are available: "
        "1 Preemption is not helpful for scheduling, "
        "2 No preemption victims found for incoming pod."
    )
    found = explained(unscheduled(message, {"cpu": "64", "memory": "500Gi"}))
    assert first(found) == "wants memory 500Gi, too little free on 2 of 3 nodes"


@pytest.mark.parametrize(
    ("words", "reason", "part"),
    [
        (
            "1 node(s) didn't match Pod's node affinity/selector",
            "Unschedulable",
            "spec.scheduling.nodeSelector",
        ),
        ("1 node(s) had untolerated taint(s)", "Unschedulable", "spec.scheduling.tolerations"),
        ("1 Too many pods", "Unschedulable", "Add a node"),
        ("1 node(s) were unschedulable", "Unschedulable", "Uncordon a node."),
        (
            "1 node(s) didn't satisfy existing pods anti-affinity rules",
            "Unschedulable",
            "scheduling.affinity",
        ),
        ("1 node(s) had volume node affinity conflict", "Unschedulable", "tied to other nodes"),
        ("1 node(s) didn't match PersistentVolume's node affinity", "Unschedulable", "tied to other nodes"),
        ("1 node(s) didn't find available persistent volumes to bind", "Unschedulable", "describe pvc"),
        (
            "request gpu: device class gpu.nvidia.com does not exist",
            "ClaimMissing",
            "DeviceClass gpu.nvidia.com does not exist. ",
        ),
        (
            'persistentvolumeclaim "weights" not found',
            "ClaimMissing",
            "PersistentVolumeClaim weights does not exist. ",
        ),
        ("1 cannot allocate all claims", "Unschedulable", "no node has them free"),
    ],
)
def test_a_rule_that_keeps_nodes_away_is_told_with_the_field_that_answers_it(words, reason, part):
    found = explained(unscheduled(f"0/1 nodes are available: {words}. {NO_PREEMPTION}"))
    assert found.reason.name == reason
    assert part in found.message


def test_a_claim_for_one_pod_that_another_has_is_named():
    message = (
        "0/2 nodes are available: 2 node has pod using PersistentVolumeClaim with the same name and "
        "ReadWriteOncePod access mode. preemption: 0/2 nodes are available"
    )
    volume = {"name": "model", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    found = explained(unscheduled(message, volumes=[volume]))
    assert found.reason.name == "Unschedulable"
    assert first(found) == "another pod holds claim weights, which one pod at a time can mount"


def test_a_claim_that_no_volume_is_for_is_named():
    message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "model-cache"}}
    found = explained(unscheduled(message, volumes=[volume]))
    assert found.reason.name == "ClaimMissing"
    assert first(found) == "claim model-cache is not bound to a volume"


@pytest.mark.parametrize("cause", ["context deadline exceeded", 'provisioning failed for PVC "model-cache"'])
def test_a_volume_that_is_not_made_in_time_is_told_with_its_claim(cause):
    message = f'running PreBind plugin "VolumeBinding": binding volumes: {cause}'
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "model-cache"}}
    found = explained(unscheduled(message, reason="SchedulerError", volumes=[volume]))
    assert found.reason.name == "ClaimMissing"
    assert first(found) == "no volume was made for claim model-cache"
    assert cause in found.message


def test_a_cluster_without_nodes_is_told():
    found = explained(unscheduled("no nodes available to schedule pods"))
    assert (found.reason.name, found.message) == ("Unschedulable", "no nodes available to schedule pods.")


def test_a_claim_that_is_still_to_be_made_is_told():
    found = explained(unscheduled('waiting for dynamic resource controller to create the resourceclaim "g"'))
    assert found.reason.name == "ClaimMissing"


def test_a_scheduling_gate_is_named():
    gated = unscheduled("Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated")
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    assert explained(gated).message == "waits for the scheduling gate kueue.x-k8s.io/admission."


def test_a_rollout_without_a_spare_device_says_which_fields_to_set():
    new = unscheduled(GPU_SHORT, {"nvidia.com/gpu": "1"})
    nodes = [node(**{"nvidia.com/gpu": "1"})]
    found = explained(new, ready_pod("demo-5d4f1-old", revision=1), nodes=nodes)
    assert found.reason.name == "RolloutNeedsSpareDevice"
    assert first(found) == (
        "a new pod wants nvidia.com/gpu 1, node0 has 1, not enough of it free; the old ones serve on"
    )
    assert "spec.rollout.maxSurge to 0" in found.message
    assert "spec.rollout.maxUnavailable to 1" in found.message


def test_a_rollout_without_spare_devices_for_a_claim_says_it_too():
    new = unscheduled("0/1 nodes are available: 1 cannot allocate all claims.")
    new["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}]
    assert first(explained(new)) == "wants the devices of claim two-gpus, and no node has them free"
    found = explained(new, ready_pod("demo-5d4f1-old", revision=1))
    assert found.reason.name == "RolloutNeedsSpareDevice"
    assert first(found) == (
        "a new pod wants the devices of claim two-gpus, and no node has them free; the old ones serve on"
    )


def test_a_shared_claim_that_is_missing_or_elsewhere_is_named():
    shared = {"resourceClaims": [{"name": "devices-0", "resourceClaimName": "pair"}]}
    missing = unscheduled('0/1 nodes are available: resourceclaim.resource.k8s.io "pair" not found.')
    assert first(explained(missing)) == "ResourceClaim pair does not exist"
    wants = unscheduled(
        "0/2 nodes are available: 1 node(s) were unschedulable, 1 resourceclaim not available on the node. "
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    wants["spec"] |= shared
    found = explained(wants)
    assert found.reason.name == "Unschedulable"
    assert first(found).startswith(
        "the devices of claim pair are on a node that does not take the pod: 1 node"
    )


def test_a_claim_without_its_template_is_told_though_the_scheduler_is_silent():
    waits = pod(node=None)
    waits["status"]["conditions"] = []
    said = (
        'PodResourceClaim two-gpus: resource claim template "two-gpus": '
        'resourceclaimtemplate.resource.k8s.io "two-gpus" not found'
    )
    found = explained(waits, events=[event(waits, "FailedResourceClaimCreation", said)])
    assert found.reason.name == "ClaimMissing"
    assert first(found) == "ResourceClaimTemplate two-gpus does not exist"


def test_amounts_of_memory_are_told_in_units_that_people_compare():
    message = f"0/1 nodes are available: 1 Insufficient memory. {NO_PREEMPTION}"
    shared = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    wants = unscheduled(message, {"memory": "513024Mi"}, volumes=[shared])
    found = explained(wants, nodes=[node(memory="24632896Ki")])
    assert first(found) == "wants memory 501Gi (1Gi of it /dev/shm), node0 has 23.5Gi"


def test_a_first_pod_without_a_device_is_unschedulable_and_no_rollout():
    gone = ready_pod("demo-5d4f1-old", revision=1)
    gone["metadata"]["deletionTimestamp"] = "2026-08-22T11:59:00Z"
    assert explained(unscheduled(GPU_SHORT, {"nvidia.com/gpu": "1"}), gone).reason.name == "Unschedulable"


@pytest.mark.parametrize(
    ("message", "reason", "part"),
    [
        (
            'pods "demo-5d4f2-" is forbidden: exceeded quota: small, '
            "requested: limits.cpu=2,limits.memory=4Gi, used: limits.cpu=1,limits.memory=2Gi, "
            "limited: limits.cpu=2,limits.memory=4Gi",
            "QuotaExceeded",
            "wants limits.cpu=2,limits.memory=4Gi, quota small has limits.cpu=2,limits.memory=4Gi, of which "
            "limits.cpu=1,limits.memory=2Gi is used",
        ),
        (
            'pods "demo-5d4f2-abcde" is forbidden: violates PodSecurity "restricted:latest": '
            "runAsNonRoot != true",
            "AdmissionRefused",
            'violates PodSecurity "restricted:latest"',
        ),
        (
            'admission webhook "pods.example.com" denied the request: no images from r',
            "AdmissionRefused",
            "the webhook pods.example.com refuses the pod: no images from r.",
        ),
        (
            'pods "demo-5d4f2-x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi',
            "QuotaExceeded",
            "maximum memory usage per Container is 1Gi",
        ),
        (
            'admission webhook "validate.kyverno.svc-fail" denied the request: \n\nresource Pod/a/demo '
            "was blocked due to the following policies \n\nlabels:\n  team: 'no team of ours'\n",
            "AdmissionRefused",
            "the webhook validate.kyverno.svc-fail refuses the pod: resource Pod/a/demo was blocked due to "
            "the following policies labels: team: 'no team of ours'.",
        ),
        (
            'admission webhook "pods.example.com" denied the request without explanation',
            "AdmissionRefused",
            "the webhook pods.example.com refuses the pod: it does not say why.",
        ),
        (
            'Internal error occurred: failed calling webhook "a.example": failed to call webhook: Post '
            '"https://hook.default.svc:443/": context deadline exceeded',
            "AdmissionRefused",
            "the webhook a.example, which decides on the pod, cannot be asked: failed to call webhook",
        ),
        (
            'pods "demo-5d4f2-x" is forbidden: memory max limit to request ratio per Container is 2, but '
            "provided ratio is 4.000000",
            "QuotaExceeded",
            "memory max limit to request ratio per Container is 2",
        ),
        (
            'pods "demo-5d4f2-" is forbidden: error looking up service account models/x: '
            'serviceaccount "x" not found',
            "PodsNotCreated",
            "ServiceAccount x does not exist. Create it, or correct spec.runtime.serviceAccountName.",
        ),
        (
            'pods "demo-5d4f2-" is forbidden: no PriorityClass with name urgent was found',
            "PodsNotCreated",
            "PriorityClass urgent does not exist. Create it, or correct spec.scheduling.priorityClassName.",
        ),
        (
            "pods \"demo-5d4f2-x\" is forbidden: ValidatingAdmissionPolicy 'teams' with binding 'all' "
            "denied request: no such team",
            "AdmissionRefused",
            "the policy teams refuses the pod: no such team.",
        ),
    ],
)
@pytest.mark.parametrize("place", ["condition", "event"])
def test_pods_that_may_not_be_made_are_told_from_their_replica_set(message, reason, part, place):
    failing = replica_set(made=0, failure=message if place == "condition" else "")
    events = [event(failing, "FailedCreate", f"Error creating: {message}")] if place == "event" else []
    found = pods_summary([], events, [failing], deployment(made=0))
    assert found is not None
    assert found.reason.name == reason
    assert part in found.message


NOT_USABLE = "Forbidden: not usable by user or serviceaccount"
KYVERNO = """admission webhook "validate.kyverno.svc-fail" denied the request:

resource Pod/models/demo-5d4f2-x was blocked due to the following policies

restrict-volume-types:
  restricted-volumes: 'validation failure: Only the following types of volumes may be used: configMap, csi,
    downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected, and secret.'
"""


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            'pods "demo-5d4f2-x" is forbidden: violates PodSecurity "restricted:latest": restricted volume '
            'types (volume "model" uses restricted volume type "unknown")',
            "from Kubernetes 1.33 on. Upgrade, or have the namespace's level lowered to baseline. Or take "
            "the model from spec.model.pvc, spec.model.s3 or spec.model.hub. ",
        ),
        (
            'pods "demo-5d4f2-x" is forbidden: violates PodSecurity "restricted:v1.31": restricted volume '
            'types (volumes "a", "model" use restricted volume types "hostPath", "image")',
            "from Kubernetes 1.33 on",
        ),
        (
            'pods "demo-5d4f2-" is forbidden: unable to validate against any security context constraint: '
            f'[provider "anyuid": {NOT_USABLE}, spec.volumes[3]: Invalid value: "image": image volumes are '
            f'not allowed to be used, provider "restricted": {NOT_USABLE}, provider "nonroot": {NOT_USABLE}]',
            "from 4.22 on, and from 4.20.15 in 4.20. Upgrade, or let spec.runtime.serviceAccountName use one",
        ),
        (
            'pods "demo-5d4f2-" is forbidden: unable to validate against any security context constraint: ['
            + "".join(f'provider "scc-{index}": {NOT_USABLE}, ' for index in range(12))
            + 'spec.volumes[3]: Invalid value: "": unknown volume type for volume: core.Volume{Name:"model", '
            "VolumeSource:core.VolumeSource{HostPath:(*core.HostPathVolumeSource)(nil)}}]",
            "OpenShift's own SecurityContextConstraints admit volumes of images from 4.22 on",
        ),
        (KYVERNO, "A policy of the cluster does not list volumes of images. Have image added"),
        (
            'admission webhook "validation.gatekeeper.sh" denied the request: [psp-volume-types] The volume '
            'type image is not allowed, pod: demo-5d4f2-x. Allowed volume types: ["configMap", "secret"]',
            "A policy of the cluster does not list volumes of images",
        ),
    ],
)
def test_a_volume_of_an_image_that_a_cluster_does_not_admit_is_told_with_what_it_needs(message, advice):
    failing = replica_set(made=0)
    events = [event(failing, "FailedCreate", f"Error creating: {message}")]
    found = pods_summary([], events, [failing], deployment(made=0))
    assert found is not None
    assert found.reason.name == "AdmissionRefused"
    assert first(found).startswith("the image of spec.model.image cannot be mounted: ")
    assert advice in found.message
    assert "The API server says: " in found.message


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "unable to validate against any security context constraint: [spec.volumes[4]: Invalid value: "
            '"csi": csi volumes are not allowed to be used]',
            "no SecurityContextConstraints that the pods may use admit csi volumes. Let",
        ),
        (
            "unable to validate against any security context constraint: [provider restricted-v2: "
            ".containers[0].runAsUser: Invalid value: 1001: must be in the ranges: [1000680000, 1000689999]]",
            "must be in the ranges",
        ),
        (
            'violates PodSecurity "restricted:latest": seccompProfile (pod or container "server" must set '
            "securityContext.seccompProfile.type)",
            "violates PodSecurity",
        ),
        (
            'admission webhook "a" denied the request: Only the following types of volumes may be used: '
            "configMap, image and secret.",
            "the webhook a refuses the pod",
        ),
    ],
)
def test_another_refusal_says_nothing_of_images(message, said):
    failing = replica_set(made=0, failure=f'pods "demo-5d4f2-" is forbidden: {message}')
    found = pods_summary([], [], [failing], deployment(made=0))
    assert found is not None
    assert found.reason.name == "AdmissionRefused"
    assert said in found.message
    assert "spec.model.image" not in found.message


def test_a_refusal_of_the_past_says_nothing_of_pods_that_are_there():
    failing = replica_set(failure="exceeded quota")
    found = pods_summary([pod(containers=[running()])], [], [failing], deployment())
    assert found is not None
    assert found.reason.name == "Loading"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ('Usage of EmptyDir volume "cache" exceeds the limit "10Gi". ', "Raise spec.model.cache.size."),
        (
            'Usage of EmptyDir volume "spool" exceeds the limit "1Gi". ',
            "Raise its sizeLimit in spec.volumes.",
        ),
        ('Usage of EmptyDir volume "shm" exceeds the limit "1Gi". ', "Raise spec.resources.sharedMemory."),
        (
            "Container server exceeded its local ephemeral storage limit. Pod ephemeral local storage usage "
            "exceeds the total limit of containers 1Gi. ",
            "Raise spec.resources.ephemeralStorage.",
        ),
        (
            'Container server exceeded its local ephemeral storage limit "1Gi". ',
            "Raise spec.resources.ephemeralStorage.",
        ),
        (
            "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy "
            "devices nvidia.com/gpu, which is unexpected",
            "The device plugin on that node has lost devices; its log says why.",
        ),
    ],
)
def test_an_end_by_the_node_says_what_to_do_where_that_is_known(words, advice):
    evicted = pod()
    evicted["status"] = {"phase": "Failed", "reason": "Evicted", "message": words, "conditions": []}
    assert explained(evicted).message.endswith(f". {advice}")


def test_a_pod_that_its_node_ended_and_that_stopped_in_time_is_told_by_its_event():
    evicted = pod()
    evicted["status"] = {"phase": "Succeeded", "conditions": []}
    assert explained(evicted).message == (
        "node0 ended the pod, which stopped in order. `kubectl get events` may say why."
    )
    said = event(evicted, "Evicted", "The node was low on resource: memory. ")
    assert explained(evicted, events=[said]).message == (
        "node0 ended the pod as Evicted: The node was low on resource: memory."
    )


def test_a_pod_that_its_node_ended_is_told_until_the_one_in_its_place_is_ready():
    evicted = pod()
    evicted["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory. ",
        "conditions": [{"type": "DisruptionTarget", "lastTransitionTime": "2026-08-22T11:30:00Z"}],
    }
    ended = "node0 ended the pod as Evicted: The node was low on resource: memory."
    assert explained(evicted).message == ended
    successor = pod("demo-5d4f2-next", containers=[running()])
    successor["metadata"]["creationTimestamp"] = "2026-08-22T11:30:01Z"
    found = explained(evicted, successor)
    assert (found.reason.name, found.message) == (
        "NodeRefused",
        f"{ended} In its place: the server loads the model.",
    )
    assert pods_summary([evicted, ready_pod("demo-5d4f2-next")], [], SETS, deployment()) is None
    later = pod("demo-5d4f2-later", containers=[running()])
    later["metadata"]["creationTimestamp"] = "2026-08-22T11:45:00Z"
    assert explained(evicted, later).reason.name == "Loading"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (Progress("load", 610_000_000, 1_000_000_000), "weights 61 % of 1.0 GB."),
        (Progress("download", 0, 2_500_000), "download 0 % of 2.5 MB."),
        (Progress("warmup", 1, 4), "warmup 25 % of 4 steps."),
        (Progress("load", 0, 0), "weights."),
    ],
)
def test_loading_is_told_in_percent_where_the_server_says_how_far_it_is(told, message):
    loading = pod(containers=[running()])
    found = pods_summary([loading], [], SETS, deployment(), progress={"demo-5d4f2-abcde": told})
    assert found == reasons.LOADING.found(message)


def test_a_load_that_stands_still_is_told_with_the_hour_and_how_far_it_came():
    still = Progress("download", 450_000_000, 1_000_000_000, NOW)
    found = pods_summary(
        [pod(containers=[running()])], [], SETS, deployment(), progress={"demo-5d4f2-abcde": still}
    )
    assert found is not None
    assert found.reason.name == "LoadStalled"
    assert first(found) == "no byte since 12:00 UTC, download 45 % of 1.0 GB"


@pytest.mark.parametrize(
    ("phase", "reason"), [("draining", "Starting"), ("asleep", "Asleep"), ("stalled", "EngineStalled")]
)
def test_a_server_that_has_served_says_why_it_does_not(phase, reason):
    told = {"demo-5d4f2-abcde": Progress(phase, 0, 0)}
    found = pods_summary([pod(containers=[running()])], [], SETS, deployment(), progress=told)
    assert found is not None
    assert found.reason.name == reason


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (pod(node=None), "Scheduling"),
        (pod(), "Starting"),
        (pod(containers=[waiting("ContainerCreating")]), "Starting"),
        (pod(containers=[running()]), "Loading"),
    ],
)
def test_each_step_of_a_start_has_its_reason(step, reason):
    if reason == "Scheduling":
        step["status"]["conditions"] = []
    assert explained(step).reason.name == reason


def test_pods_of_an_older_template_are_no_matter():
    old = pod("demo-5d4f1-old", revision=1, containers=[crash_loop(10)])
    assert pods_summary([old, ready_pod()], [], SETS, deployment()) is None


def test_nothing_is_found_where_all_pods_are_ready():
    assert pods_summary([ready_pod()], [], SETS, deployment()) is None


def test_the_order_in_which_things_are_seen_changes_nothing():
    broken = [
        pod("demo-5d4f2-a", containers=[crash_loop(10)]),
        pod("demo-5d4f2-b", containers=[crash_loop(20)]),
        unscheduled(GPU_SHORT, {"nvidia.com/gpu": "1"}, name="demo-5d4f2-c"),
    ]
    events = [
        event(broken[0], "FailedMount", text, seen)
        for text, seen in itertools.product("ab", ("2026", "2027"))
    ]
    seen = set()
    for seed in range(20):
        shuffle = random.Random(seed).sample
        pods, told, sets = shuffle(broken, 3), shuffle(events, 4), shuffle(SETS, 2)
        seen.add(pods_summary(pods, told, sets, deployment()))
    assert len(seen) == 1
