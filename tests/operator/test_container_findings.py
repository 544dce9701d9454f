"""Each way in which a container fails has a reason, and words with its values in them."""

from __future__ import annotations

import copy

import pytest
from as_printed import (
    cause,
    crash_loop,
    pod,
    running,
    terminated,
    waiting,
)
from explaining import explained, first, of_container

PULL = (
    'Back-off pulling image "{0}": ErrImagePull: rpc error: code = {1} desc = '
    'failed to pull and unpack image "{0}": {2}'
)


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        ("NotFound", 'failed to resolve reference "r/x:1": r/x:1: not found', "ImageNotFound"),
        (
            "Unknown",
            'failed to resolve reference "r/x:1": pull access denied, repository does not exist or may '
            "require authorization: server message: insufficient_scope: authorization failed",
            "ImagePullDenied",
        ),
        (
            "Unknown",
            "failed to resolve reference: unexpected status from HEAD request to r/v2: 401 Unauthorized",
            "ImagePullDenied",
        ),
        (
            "Unknown",
            "failed to do request: dial tcp 10.0.0.1:443: connect: connection refused",
            "ImagePullFailed",
        ),
        (
            "Unknown",
            'Head "https://1.dkr.ecr.eu-west-1.amazonaws.com/v2/x": no basic auth credentials',
            "ImagePullDenied",
        ),
        ("NotFound", "no match for platform in manifest: not found", "ImageNotFound"),
        (
            "Unknown",
            'no image found in image index for architecture "arm64", variant "v8", OS "linux"',
            "ImageNotFound",
        ),
        ("Unknown", "failed to extract layer: mkdir /var/lib/x: permission denied", "ImagePullFailed"),
        ("Unknown", 'exec: "docker-credential-x": executable file not found in $PATH', "ImagePullFailed"),
    ],
)
def test_an_image_that_cannot_be_pulled_is_told_by_cause(code, words, reason):
    found = of_container(waiting("ImagePullBackOff", PULL.format("r/x:1", code, words)))
    assert found.reason.name == reason
    assert found.message.startswith("the registry refuses r/x:1" if reason == "ImagePullDenied" else "r/x:1 ")
    assert "ErrImagePull" not in found.message


def test_an_image_for_other_processors_is_not_said_to_be_missing():
    words = PULL.format("r/x:1", "NotFound", "no match for platform in manifest: not found")
    found = of_container(waiting("ErrImagePull", words))
    assert first(found) == "r/x:1 is not there for the node's processor architecture"
    assert (
        "Correct spec.runtime.image, or choose other nodes in spec.scheduling.nodeSelector." in found.message
    )


def test_a_bare_back_off_takes_its_cause_from_the_event():
    words = 'Failed to pull image "r/x:1": rpc error: code = NotFound desc = r/x:1: not found'
    found = of_container(
        waiting("ImagePullBackOff", 'Back-off pulling image "r/x:1"'),
        ("Failed", "Error: ErrImagePull"),
        ("Failed", words),
    )
    assert found.reason.name == "ImageNotFound"
    assert "Correct spec.runtime.image" in found.message


def test_a_model_image_that_is_not_there_points_at_the_model():
    found = of_container(
        waiting("ErrImagePull", PULL.format("r/model:9", "NotFound", "r/model:9: not found")),
        volumes=[{"name": "model", "image": {"reference": "r/model:9", "pullPolicy": "IfNotPresent"}}],
    )
    assert "Correct spec.model.image.reference" in found.message


def test_a_name_that_is_no_image_is_told():
    message = (
        'Failed to apply default image tag "r/X:1": '
        'couldn\'t parse image name "r/X:1": invalid reference format'
    )
    assert of_container(waiting("InvalidImageName", message)).reason.name == "ImageNotFound"


@pytest.mark.parametrize(
    ("message", "reason", "start"),
    [
        ('secret "hub" not found', "SecretMissing", "Secret hub does not exist"),
        ('secrets "hub" not found', "SecretMissing", "Secret hub does not exist"),
        ("couldn't find key token in Secret models/hub", "SecretMissing", "Secret hub has no key token"),
        ('configmap "tuning" not found', "ConfigMapMissing", "ConfigMap tuning does not exist"),
        (
            "couldn't find key a in ConfigMap models/tuning",
            "ConfigMapMissing",
            "ConfigMap tuning has no key a",
        ),
        (
            "container has runAsNonRoot and image will run as root",
            "ContainerRefused",
            "container has runAsNonRoot",
        ),
    ],
)
def test_what_a_variable_needs_and_is_not_there_is_named(message, reason, start):
    found = of_container(waiting("CreateContainerConfigError", message))
    assert (found.reason.name, first(found).rstrip(".")[: len(start)]) == (reason, start)


@pytest.mark.parametrize(
    ("message", "reason", "start"),
    [
        (
            'MountVolume.SetUp failed for volume "tls" : secret "cert" not found',
            "SecretMissing",
            "Secret cert does",
        ),
        (
            'MountVolume.SetUp failed for volume "tls" : references non-existent secret key: tls.crt',
            "SecretMissing",
            "Secret cert has no key tls.crt",
        ),
        (
            'MountVolume.SetUp failed for volume "files-0" : '
            "configmap references non-existent config key: a.json",
            "ConfigMapMissing",
            "ConfigMap tuning has no key a.json",
        ),
        (
            'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-5d4f1-a',
            "VolumeNotMounted",
            "a claim for one node is mounted on another: Multi-Attach error",
        ),
        (
            "Unable to attach or mount volumes: unmounted volumes=[cache]: timed out waiting",
            "VolumeNotMounted",
            "Unable to attach or mount volumes",
        ),
    ],
)
def test_what_a_volume_needs_is_found_in_events_alone(message, reason, start):
    volumes = [
        {"name": "tls", "secret": {"secretName": "cert", "defaultMode": 420}},
        {"name": "files-0", "configMap": {"name": "tuning", "defaultMode": 420}},
    ]
    found = of_container(waiting("ContainerCreating"), ("FailedMount", message), volumes=volumes)
    assert found.reason.name == reason
    assert found.message.startswith(start)


def test_a_key_that_a_projected_volume_misses_is_told_with_its_object():
    sources = [{"secret": {"name": "cert"}}, {"configMap": {"name": "tuning"}}, {"serviceAccountToken": {}}]
    volumes = [{"name": "files", "projected": {"sources": sources}}]
    text = 'MountVolume.SetUp failed for volume "files" : references non-existent {} key: a'
    for kind, reason, start in (
        ("config", "ConfigMapMissing", "ConfigMap tuning has no key a"),
        ("secret", "SecretMissing", "Secret cert has no key a"),
    ):
        broken = waiting("ContainerCreating")
        found = of_container(broken, ("FailedMount", text.format(kind)), volumes=volumes)
        assert (found.reason.name, first(found)) == (reason, start)


def test_that_a_volume_is_waited_for_does_not_hide_why():
    awaited = (
        "Unable to attach or mount volumes: unmounted volumes=[cache], unattached volumes=[], failed to "
        "process volumes=[]: context deadline exceeded"
    )
    attached = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-5d4f1-a'
    missing = 'MountVolume.MountDevice failed for volume "pvc-1" : driver nfs.csi.k8s.io not found'
    for text, start in ((attached, "a claim for one node is mounted on another: "), (missing, missing)):
        found = of_container(
            waiting("ContainerCreating"), ("FailedMount", awaited), ("FailedAttachVolume", text)
        )
        assert found.message.startswith(start)


@pytest.mark.parametrize(
    "cause",
    [
        'failed to get sandbox runtime: no runtime for "nvidia" is configured',
        "failed to find runtime handler nvidia from runtime list map[runc:0xc0002]",
    ],
)
def test_a_runtime_that_the_node_lacks_is_named(cause):
    said = f"Failed to create pod sandbox: rpc error: code = Unknown desc = {cause}"
    found = of_container(waiting("ContainerCreating"), ("FailedCreatePodSandBox", said))
    assert found.reason.name == "ContainerRefused"
    assert first(found) == "the node has no container runtime nvidia, which the RuntimeClass asks for"


def test_a_volume_event_of_the_past_says_nothing_of_a_running_container():
    text = 'MountVolume.SetUp failed for volume "tls" : secret "cert" not found'
    assert of_container(running(), ("FailedMount", text)).reason.name == "Loading"


def test_events_in_the_form_of_events_k8s_io_are_read_too():
    broken = pod(containers=[waiting("ContainerCreating")])
    newer = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": broken["metadata"]["name"], "uid": broken["metadata"]["uid"]},
        "reason": "FailedMount",
        "note": 'MountVolume.SetUp failed for volume "tls" : secret "cert" not found',
        "eventTime": "2026-08-22T11:59:00.000000Z",
    }
    assert explained(broken, events=[newer]).reason.name == "SecretMissing"


@pytest.mark.parametrize("between", ["waiting", "running", "ended"])
def test_the_runtime_s_own_cause_is_told_all_through_the_loop(between):
    said = cause(10, "ModelNotFound", "There is no model org/nope on the hub.", "Check the spelling.")
    status = {
        "waiting": crash_loop(10, said),
        "running": running(last=terminated(10, said)),
        "ended": {**running(), "state": terminated(10, said)},
    }[between]
    found = of_container(status)
    assert found.reason.name == "ModelNotFound"
    assert found.message == "There is no model org/nope on the hub. Check the spelling."


def test_a_refused_argument_is_named_in_the_runtime_s_words():
    said = cause(2, "BadArguments", "-5 is below 1.", "Set it to 1 or more.", "max_model_len")
    found = of_container(crash_loop(2, said))
    assert found.reason.name == "BadArguments"
    assert found.message == "spec.engine.maxModelLen: -5 is below 1. Set it to 1 or more."


def test_an_argument_that_the_message_names_is_named_once_more_as_the_field_that_sets_it():
    message = "--enable-expert-parallel is not supported yet."
    said = cause(3, "NotSupported", message, "Drop it.", "enable_expert_parallel")
    assert of_container(crash_loop(3, said)).message == (
        f"{message} Drop it. The field is spec.engine.enableExpertParallel."
    )


def test_an_argument_with_a_place_of_its_own_in_the_document_is_no_field_of_the_engine():
    said = cause(10, "ModelNotFound", "There is no folder /m.", "Check the path.", "model")
    assert of_container(crash_loop(10, said)).message == "model: There is no folder /m. Check the path."


def test_an_oom_kill_is_told_with_its_limit():
    found = of_container(crash_loop(137, reason="OOMKilled"), resources={"limits": {"memory": "64Mi"}})
    assert found.reason.name == "OutOfMemory"
    assert first(found) == "killed at its limit of 64Mi"


def test_our_own_exit_for_lack_of_memory_is_out_of_memory_too():
    found = of_container(
        crash_loop(20, cause(20, "OutOfMemory", "The weights take 9 GB of 8.", "Allow more."))
    )
    assert (found.reason.name, first(found)) == ("OutOfMemory", "The weights take 9 GB of 8")


def test_an_exit_code_of_ours_is_known_without_its_message():
    found = of_container(crash_loop(30))
    assert found.reason.name == "LoadStalled"
    assert found.message.startswith("Download or loading made no progress")


def test_a_foreign_exit_code_is_told_with_its_last_words():
    log = "Traceback (most recent call last):\n  File x\nImportError: no module named torch\n"
    found = of_container(crash_loop(77, log))
    assert found.reason.name == "CrashLoop"
    assert first(found) == "server ended with exit code 77: no module named torch"
    assert found.message.endswith(" `kubectl logs --previous` has more.")


def test_a_signal_is_named():
    assert first(of_container(crash_loop(139))) == "server ended with signal 11"


def test_a_container_that_its_probe_has_killed_is_unresponsive():
    found = of_container(
        running(last=terminated(0, reason="Completed")),
        ("Killing", "Container server failed startup probe, will be restarted"),
    )
    assert found.reason.name == "Unresponsive"
    assert "startup probe" in found.message


def test_a_program_that_is_not_in_the_image_is_refused():
    message = 'failed to create containerd task: exec: "slipway": executable file not found in $PATH: unknown'
    found = of_container(crash_loop(128, message, reason="StartError"))
    assert found.reason.name == "ContainerRefused"
    assert "executable file not found" in found.message


def test_a_failed_fetch_is_told_as_the_init_container_s():
    said = cause(12, "NoNetwork", "s3.example.com cannot be reached.", "Check egress.")
    broken = pod(
        init_containers=[{**crash_loop(12, said), "name": "fetch"}], containers=[waiting("PodInitializing")]
    )
    found = explained(broken)
    assert found.reason.name == "NoNetwork"
    assert found.message == "init container fetch: s3.example.com cannot be reached. Check egress."


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (12, "NoNetwork", "s3.example.com cannot be reached."),
        (1, "CrashLoop", "dial tcp 10.0.0.7:443: connect: connection refused"),
    ],
)
def test_an_init_container_before_istio_s_proxy_is_told_what_it_lacks(code, reason, words):
    said = cause(code, reason, words, "Check egress.") if code == 12 else words
    name = "fetch" if code == 12 else "own"
    proxy, failed = (
        {**waiting("PodInitializing"), "name": "istio-proxy"},
        {**crash_loop(code, said), "name": name},
    )
    broken = pod(init_containers=[failed], containers=[waiting("PodInitializing")])
    assert "Istio" not in explained(broken).message
    classic = copy.deepcopy(broken)
    classic["spec"]["containers"].append({"name": "istio-proxy", "image": "istio/proxyv2"})
    classic["status"]["containerStatuses"].append(proxy)
    found = explained(classic)
    assert found.reason.name == reason
    assert "Istio's proxy starts only after the init containers" in found.message
    assert "sidecar.istio.io/nativeSidecar" in found.message
    native = pod(
        sidecars=[{**running(ready=True), "name": "istio-proxy"}],
        init_containers=[failed],
        containers=[waiting("PodInitializing")],
    )
    assert "Istio" not in explained(native).message


@pytest.mark.parametrize(
    "failed",
    [
        crash_loop(10, cause(10, "ModelNotFound", "There is nothing.", "Check it.")),
        waiting(
            "ImagePullBackOff", PULL.format("r/x:1", "Unknown", "dial tcp 10.0.0.1:443: connection refused")
        ),
    ],
)
def test_an_init_container_that_fails_for_another_reason_hears_nothing_of_istio(failed):
    failed = {**failed, "name": "fetch"}
    broken = pod(init_containers=[failed], containers=[waiting("PodInitializing")])
    broken["spec"]["containers"].append({"name": "istio-proxy", "image": "istio/proxyv2"})
    assert "Istio" not in explained(broken).message


def test_a_running_fetch_is_progress():
    broken = pod(init_containers=[{**running(), "name": "fetch"}], containers=[waiting("PodInitializing")])
    assert explained(broken).reason.name == "Fetching"


def test_an_own_container_that_fails_is_told_with_its_name_and_its_image():
    words = PULL.format("r/adapt:1", "NotFound", "r/adapt:1: not found")
    broken = pod(init_containers=[{**waiting("ErrImagePull", words), "name": "adapt"}])
    found = explained(broken)
    assert found.reason.name == "ImageNotFound"
    assert found.message.startswith(
        "init container adapt: r/adapt:1 is not in its registry. Correct the image of adapt. "
    )


def test_a_sidecar_that_runs_is_no_step_of_the_start():
    beside = {**running(ready=True), "name": "proxy"}
    assert explained(pod(sidecars=[beside], containers=[running()])).reason.name == "Loading"
    assert (
        explained(pod(sidecars=[beside], containers=[waiting("PodInitializing")])).reason.name == "Starting"
    )


@pytest.mark.parametrize("code", [0, 3])
def test_a_sidecar_that_ends_is_told_however_it_ends(code: int):
    broken = pod(sidecars=[{**crash_loop(code), "name": "proxy"}], containers=[running()])
    found = explained(broken)
    assert found.reason.name == "CrashLoop"
    assert found.message == (
        f"sidecar proxy: proxy ended with exit code {code}. "
        "`kubectl logs --previous --container proxy` has more."
    )


def test_a_sidecar_without_memory_is_told_by_its_own_limit():
    killed = {**crash_loop(137, reason="OOMKilled"), "name": "proxy"}
    broken = pod(sidecars=[killed], containers=[running()], resources={"limits": {"memory": "64Mi"}})
    assert (
        explained(broken).message
        == "sidecar proxy: killed at its limit of 64Mi. Raise the memory limit of proxy."
    )


def test_a_finished_fetch_is_forgotten():
    done = {
        **running(),
        "name": "fetch",
        "state": terminated(0, reason="Completed"),
        "lastState": terminated(12),
    }
    assert explained(pod(init_containers=[done], containers=[running()])).reason.name == "Loading"


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        (
            "RunContainerError",
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc "
            'create failed: unable to start container process: exec: "/x": no such file or directory',
            'exec: "/x": no such file or directory.',
        ),
        (
            "ErrImagePull",
            'failed to pull and unpack image "r.example/m:1": failed to resolve reference "r.example/m:1": '
            'failed to do request: Head "https://r.example/v2/m/manifests/1": dial tcp: connection refused',
            "r.example/m:1 cannot be pulled: dial tcp: connection refused.",
        ),
    ],
)
def test_the_cause_is_told_without_the_layers_that_it_went_through(reason, message, told):
    assert of_container(waiting(reason, message)).message == told


def test_a_runtime_that_mounts_no_images_is_told_with_the_versions_that_do():
    words = (
        'failed to generate container "5a1f" spec: failed to apply OCI options: failed to mkdir "": mkdir : '
        "no such file or directory"
    )
    found = of_container(waiting("CreateContainerError", words))
    assert found.reason.name == "ContainerRefused"
    assert "containerd does from 2.1 on, CRI-O from 1.31" in found.message
