"""Faults that people met with other operators, each in the cluster that it takes: none is met here."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.failing import BUSYBOX, KIND, Failures, explaining
from e2e.ground.children import GroundFailed
from e2e.ground.node import Cluster
from e2e.ground.patience import scaled
from e2e.ground.pki import Authority
from e2e.images.build import build
from e2e.images.release import Released
from e2e.operators import Object, until

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUCKET_PORT, PROXY_PORT = 9443, 15001
"""Of the bucket on the node, and of the proxy in each pod, to which a mesh sends all that leaves the pod."""
SMALL = {"cpu": "200m", "limits": {"cpu": 1}, "memory": "2Gi", "sharedMemory": "64Mi"}
NIC = "rdma/ib"
PATIENCE = 240.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """The demo model in a store whose certificate is of the cluster's own authority."""

    host: str

    def model(self, host: str = "", port: int = BUCKET_PORT) -> Object:
        """spec.model of a service that fetches it, where the store is reached by other than its address."""
        return {"s3": {"uri": f"s3://models/{FILE}", "endpoint": f"https://{host or self.host}:{port}"}}


@pytest.fixture(scope="module")
def bucket(
    cluster: Cluster, released: Released, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    pair = cluster.authority.issue("bucket", "bucket", hosts=(cluster.addresses.node, "127.0.0.1"))
    log = tmp_path_factory.mktemp("bucket") / "log"
    listens = ("-H", cluster.addresses.everywhere, "-p", str(BUCKET_PORT))
    tls = ("--ssl", "--ssl-cert", str(pair.certificate), "--ssl-key", str(pair.key))
    with log.open("w") as file:
        process = cluster.popen(
            os.environ["CLIENTS_PYTHON"], "-m", "moto.server", *listens, *tls, stdout=file, stderr=file
        )
    try:
        until(lambda: "Running on" in log.read_text() or process.poll() is not None, "the bucket's server")
        fill(cluster)
        yield Bucket(cluster.addresses.node)
    finally:
        process.kill()
        process.wait()


def fill(cluster: Cluster) -> None:
    """Put the demo model into the bucket, from the image that carries it."""
    image = build("demo-model")
    folder = Path(cluster.must("podman", "image", "mount", image).strip())
    try:
        trusted = ssl.create_default_context(cafile=cluster.authority.certificate)
        at = f"https://127.0.0.1:{BUCKET_PORT}"
        everyone = {"x-amz-acl": "public-read"}
        options: Any = {"base_url": at, "headers": everyone, "verify": trusted, "trust_env": False}
        with cluster.inside(), httpx.Client(**options) as client:
            client.put("/models").raise_for_status()
            content = (folder / FILE).read_bytes()
            client.put(f"/models/{FILE}", content=content, timeout=scaled(60)).raise_for_status()
    finally:
        cluster.must("podman", "image", "unmount", image)


@pytest.fixture(scope="module")
def failures(
    cluster: Cluster, released: Released, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Failures]:
    """An operator whose settings name the company's certificate authority, once for all services."""
    trusted = {"configMap": "corporate-ca", "key": "ca.crt"}
    folder = tmp_path_factory.mktemp("field")
    with explaining(cluster, folder, facts={"trustedCA": trusted}) as found:
        strange = Authority(folder / "strange")
        for name, authority in (("corporate-ca", cluster.authority), ("strange-ca", strange)):
            data = {"ca.crt": authority.certificate.read_text()}
            found.namespace.apply(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
            )
        yield found


@contextmanager
def admission(
    failures: Failures, kind: str, name: str, spec: Object, binding: Object, reached: Object, sign: str
) -> Iterator[None]:
    """A policy of this kind for the pods of the namespace.

    It is in force a moment after it was made: when what becomes of a pod that it reaches, by the pod's
    metadata, has this sign.
    """
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": failures.namespace.name}}}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    spec = {**spec, "matchConstraints": {"resourceRules": [rule]}}
    bound = {"policyName": name, "matchResources": here, **binding}
    documents = {**head, "kind": kind, "spec": spec}, {**head, "kind": f"{kind}Binding", "spec": bound}
    for document in documents:
        failures.cluster.kubectl("apply", "-f", "-", input=json.dumps(document))
    until(lambda: sign in made_of(failures, reached), f"{name} is in force")
    yield
    failures.cluster.kubectl("delete", f"{kind},{kind}Binding", name)


def made_of(failures: Failures, metadata: Object) -> str:
    """What the API server would make of a pod with this metadata, or why it refuses it."""
    place = {"name": "probe", "namespace": failures.namespace.name}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata | place}
    pod["spec"] = {"containers": [{"name": "only", "image": failures.images["serves"]}]}
    words = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    try:
        return str(failures.cluster.kubectl(*words, input=json.dumps(pod)))
    except GroundFailed as error:
        return str(error)


@pytest.fixture(scope="module")
def mesh(failures: Failures) -> Iterator[None]:
    """A policy that injects a proxy as Istio does where a node agent sends all traffic of a pod to it: beside
    the server, or before all init containers where the pod wants a native sidecar.

    Here the proxy knows one way, which is that of the bucket.
    """
    node = failures.cluster.addresses.node
    forward = f"{BUSYBOX} nc -ll -p {PROXY_PORT} -e {BUSYBOX} nc {node} {BUCKET_PORT}"
    words = (BUSYBOX, "sh", "-c", f"trap 'exit 0' TERM; {forward} & wait")
    common = f"name: 'istio-proxy', image: '{failures.images['serves']}', command: {json.dumps(words)}"
    native = f"Object.spec.initContainers{{{common}, restartPolicy: 'Always'}}"
    beside = f"Object.spec.containers{{{common}}}"
    first = f"JSONPatch{{op: 'add', path: '/spec/initContainers/0', value: {native}}}"
    last = f"JSONPatch{{op: 'add', path: '/spec/containers/-', value: {beside}}}"
    wanted = "object.metadata.?annotations[?'sidecar.istio.io/nativeSidecar'].orValue('') == 'true'"
    asked = "object.metadata.?labels[?'sidecar.istio.io/inject'].orValue('') == 'true'"
    patch = {"patchType": "JSONPatch", "jsonPatch": {"expression": f"{wanted} ? [{first}] : [{last}]"}}
    spec = {
        "matchConditions": [{"name": "asked-for", "expression": asked}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [patch],
    }
    reached = {"labels": {"sidecar.istio.io/inject": "true"}}
    with admission(failures, "MutatingAdmissionPolicy", "mesh", spec, {}, reached, "istio-proxy"):
        yield


@pytest.fixture(scope="module")
def applied(failures: Failures, bucket: Bucket, released: Released, mesh: None) -> None:
    """All that fetch a model: those that fail try it for a minute."""
    meshed = {"sidecar.istio.io/inject": "true"}
    through = bucket.model("127.0.0.1", PROXY_PORT)

    def fetching(name: str, model: Object, runtime: Object | None = None, **more: object) -> Object:
        spec = {"resources": SMALL, "engine": {"maxModelLen": 512}, **more}
        runs = {"image": released.runtime, **(runtime or {})}
        return failures.service(name, model=model, runtime=runs, **spec)

    old = {"sidecar.istio.io/nativeSidecar": "false"}
    folder = {"name": "spool", "mountPath": "/mnt/spool", "emptyDir": {}}
    failures.namespace.apply(
        fetching("trusted", bucket.model(), volumes=[folder]),
        fetching("distrusted", bucket.model(), trustedCA={"configMap": "strange-ca", "key": "ca.crt"}),
        fetching("meshed", through, {"podLabels": meshed}),
        fetching("meshed-as-before", through, {"podLabels": meshed, "podAnnotations": old}),
    )


def the_pod(failures: Failures, name: str) -> Object:
    (found,) = failures.namespace.all("pods", f"-lapp.kubernetes.io/instance={name}")
    return found


@pytest.mark.usefixtures("applied")
def test_a_store_behind_a_private_authority_is_trusted_where_that_was_said_once(failures: Failures) -> None:
    failures.until_summary("trusted", "Serving: .*", PATIENCE)


@pytest.mark.usefixtures("applied")
def test_folders_of_a_pod_do_not_keep_a_node_that_an_autoscaler_empties(failures: Failures) -> None:
    """Cluster Autoscaler keeps a node for the empty folders of its pods, unless an annotation names them. It
    names ours; the document's own may be precious."""
    pod = the_pod(failures, "trusted")
    folders = {volume["name"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume}
    told = pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]
    assert {*told.split(",")} | {"spool"} == folders


@pytest.mark.usefixtures("applied")
def test_in_a_mesh_a_model_is_fetched_since_the_proxy_starts_first(failures: Failures) -> None:
    failures.until_summary("meshed", "Serving: .*", PATIENCE)
    first, *_ = the_pod(failures, "meshed")["spec"]["initContainers"]
    assert first["name"] == "istio-proxy"


@pytest.mark.usefixtures("applied")
def test_where_a_proxy_starts_too_late_that_is_said(failures: Failures) -> None:
    failures.until_summary("meshed-as-before", "NoNetwork: init container fetch: .*", PATIENCE)
    message = failures.namespace.condition("meshed-as-before", "Ready")["message"]
    assert "sidecar.istio.io/nativeSidecar must not be false in spec.runtime.podAnnotations" in message


@pytest.mark.usefixtures("applied")
def test_where_a_store_is_not_trusted_the_field_is_named(failures: Failures) -> None:
    failures.until_summary("distrusted", "NoNetwork: init container fetch: .*", PATIENCE)
    message = failures.namespace.condition("distrusted", "Ready")["message"]
    assert "spec.trustedCA" in message


def test_what_stands_beside_the_devices_is_asked_for_counted_and_told(failures: Failures) -> None:
    failures.cluster.patch_gpus(NIC, 1)
    failures.cluster.patch_gpus(count=4)
    spec = {
        "devices": {"vendor": "nvidia"},
        "resources": {"cpu": "100m", "memory": "64Mi", "sharedMemory": "64Mi", NIC: 1},
    }
    failures.namespace.apply(failures.service("connected", **spec))
    failures.until_summary("connected", "Serving: .*")
    (container,) = the_pod(failures, "connected")["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert (limits[NIC], limits["nvidia.com/gpu"]) == ("1", "1")
    failures.namespace.apply(failures.service("another", **spec))
    failures.until_summary("another", f"Unschedulable: wants {NIC} 1, node has 1, not enough of it free")
    failures.namespace.kubectl("delete", KIND, "connected", "another")


@pytest.mark.parametrize("name", ["NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"])
def test_devices_that_nobody_counted_come_by_no_variable(failures: Failures, name: str) -> None:
    """The API server refuses it; with `devices`, into which its rules cannot look, the operator does."""
    named = f"uncounted-{name.partition('_')[0].lower()}"
    env = [{"name": name, "value": "all"}]
    with pytest.raises(GroundFailed, match=f"{name}.* may not be set: this service asks for no devices"):
        failures.namespace.apply(failures.service(named, env=env))
    failures.namespace.apply(failures.service(named, env=env, devices={}))
    failures.until_summary(named, f"InvalidSpec: spec.env\\[0\\]: {name} may not be set: .*")
    assert failures.namespace.get("deployment", named) is None
    failures.namespace.kubectl("delete", KIND, named)


REFUSALS = {
    "pod-security": (
        'violates PodSecurity "restricted:v1.31": restricted volume types (volume "model" uses restricted '
        'volume type "image")',
        "Pod Security admits volumes of images at the restricted level from Kubernetes 1.33 on",
    ),
    "openshift": (
        "unable to validate against any security context constraint: [spec.volumes[3]: Invalid value: "
        '"image": image volumes are not allowed to be used]',
        "OpenShift's own SecurityContextConstraints admit volumes of images from 4.22 on",
    ),
}
"""What clusters say that are older or another's than this one, and what has to be said of it."""


@pytest.fixture(scope="module")
def refusing(failures: Failures) -> Iterator[None]:
    """A policy that refuses pods in the words of their annotation."""
    words = "object.metadata.?annotations[?'refused.example.com/with']"
    spec = {
        "validations": [{"expression": f"!{words}.hasValue()", "messageExpression": f"{words}.orValue('')"}]
    }
    deny = {"validationActions": ["Deny"]}
    reached = {"annotations": {"refused.example.com/with": "not this one"}}
    with admission(
        failures, "ValidatingAdmissionPolicy", "refusing", spec, deny, reached, "denied request: not this one"
    ):
        yield


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize("name", REFUSALS)
def test_a_cluster_that_admits_no_volumes_of_images_is_told_with_what_it_needs(
    failures: Failures, released: Released, name: str
) -> None:
    words, advice = REFUSALS[name]
    image = {"image": {"reference": released.demo_model, "path": FILE}}
    annotated = {"podAnnotations": {"refused.example.com/with": words}}
    failures.namespace.apply(failures.service(name, model=image, runtime=annotated))
    failures.until_summary(name, "AdmissionRefused: the image of spec.model.image cannot be mounted: .*")
    assert advice in failures.namespace.condition(name, "Ready")["message"]
    failures.namespace.kubectl("delete", KIND, name)
