"""The operator as a child process before a real API server, with the rights of the chart and no others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from e2e.ground.control_plane import ControlPlane
from e2e.ground.patience import SLOWNESS, scaled
from slipway_operator.cluster import Cluster, Kind
from slipway_operator.permissions import CLUSTER_RULES, LEASE_RULES, SERVICE_RULES, Rule

ROOT = Path(__file__).parents[1]
DEFINITION = ROOT / "crds" / "inferenceservices.slipway.dev.yaml"
PROFILES = ROOT / "crds" / "servingprofiles.slipway.dev.yaml"
RBAC = "rbac.authorization.k8s.io"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
LISTENING = re.compile(r"Listening on port (\d+)")

Object = dict[str, Any]


def until(holds: Callable[[], Any], what: str | Callable[[], str], patience: float = 60.0) -> Any:
    """Poll until `holds` gives something true, which is returned. `patience`: seconds on a quiet machine."""
    return _poll(holds, what, scaled(patience))


def promptly(holds: Callable[[], Any], what: str | Callable[[], str], seconds: float) -> Any:
    """The same for a claim about how soon it comes."""
    return _poll(holds, what, seconds * SLOWNESS)


def _poll(holds: Callable[[], Any], what: str | Callable[[], str], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.1)
    return found


def served(plane: ControlPlane, path: str) -> None:
    """Wait until the API server lists the resource at `GROUP/VERSION/PLURAL`: a new CRD takes a moment."""
    ask = (plane.binaries["kubectl"], "get", "--raw", f"/apis/{path}")
    until(lambda: plane.run(*ask, capture_output=True).returncode == 0, f"{path} is served")


def administrator(plane: ControlPlane) -> Cluster:
    """The API server without kubectl, for many requests; call it `inside()` only."""
    configuration = client.Configuration()
    config.load_kube_config(str(plane.kubeconfig), client_configuration=configuration)
    return Cluster(configuration)


def create_all(plane: ControlPlane, objects: Iterable[tuple[str, Object]]) -> None:
    """POST each object to its path, many at a time: kubectl would take minutes for thousands."""
    api = administrator(plane)

    def create(place: tuple[str, Object]) -> None:
        with plane.inside():
            api.call("POST", place[0], None, place[1])

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(create, objects):
            pass


def define(plane: ControlPlane) -> None:
    """Lay down our CRDs, and wait until they are served."""
    for file in (DEFINITION, PROFILES):
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
        served(plane, f"slipway.dev/v1alpha1/{file.name.partition('.')[0]}")


def undefine(plane: ControlPlane) -> None:
    """Take them away again where they are, with all objects of their kinds."""
    delete_definitions(plane, DEFINITION.stem, PROFILES.stem)


def delete_definitions(plane: ControlPlane, *names: str) -> None:
    """Delete CRDs, where they are, and wait for their end.

    An API server that cannot list the objects of a kind, because their storage has only just begun, tries
    again after minutes, or once the CRD changes.
    """
    resources = [f"customresourcedefinitions/{name}" for name in names]

    def gone() -> bool:
        if plane.run(plane.binaries["kubectl"], "delete", *resources, "--ignore-not-found", "--timeout=5s",
                     capture_output=True).returncode == 0:  # fmt: skip
            return True
        change = ("annotate", *resources, "--overwrite", f"look={uuid.uuid4()}")
        plane.run(plane.binaries["kubectl"], *change, capture_output=True)
        return False

    until(gone, lambda: plane.kubectl("get", *resources, "--ignore-not-found", "-o", "yaml"))


@contextmanager
def defined(plane: ControlPlane) -> Iterator[None]:
    """Our CRDs are served meanwhile; they go again unless they stood there before."""
    resource = f"customresourcedefinitions/{DEFINITION.stem}"
    before = plane.kubectl("get", resource, "--ignore-not-found", "-o", "name")
    define(plane)
    yield
    if not before:
        undefine(plane)


def put_profile(plane: ControlPlane, name: str, **spec: Any) -> None:
    """Make or change a ServingProfile; `spec` as the kind has it."""
    head = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ServingProfile", "metadata": {"name": name}}
    plane.kubectl("apply", "--validate=strict", "-f", "-", input=json.dumps({**head, "spec": spec}))


def taking_anything(kind: Kind) -> Object:
    """A CRD without rules, for a kind that the cluster has not by itself."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.name, "plural": kind.plural, "singular": kind.name.lower()},
            "versions": [version],
        },
    }


def bind(plane: ControlPlane, pod: Object, node: str) -> None:
    """Place a pod as a scheduler would."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    plane.kubectl("create", f"--raw={path}", "-f", "-", input=json.dumps(binding))


def happen(namespace: Namespace, pod: Object, reason: str, message: str, component: str) -> None:
    """Write an event about a pod, as a controller does that this cluster has not."""
    metadata = pod["metadata"]
    regarded = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace.name}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{reason.lower()}"},
        "involvedObject": {**regarded, "name": metadata["name"], "uid": metadata["uid"]},
        "reason": reason,
        "message": message,
        "type": "Normal",
        "source": {"component": component},
    }
    namespace.kubectl("create", "-f", "-", input=json.dumps(event))


class Operator:
    """`python -m slipway_operator` in the ground's network; ended by the ground at the latest."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        name: str,
        *,
        namespaces: Sequence[str] = (),
        facts: Mapping[str, object] | None = None,
        code: str = "import sys; from slipway_operator.main import main; sys.exit(main())",
        kubeconfig: Path | None = None,
    ) -> None:
        """`name` is the user; `code` the program, which a test replaces to have another version of it.

        facts       of its settings
        kubeconfig  where it is not that of the ground for this user
        """
        self.plane = plane
        self.user = f"operator:{name}"
        self.namespaces = tuple(namespaces)
        self.log = folder / f"{name}.log"
        lease = namespaces[0] if namespaces else "default"
        grant(plane, self.user, self.namespaces, lease)
        settings = {
            "namespaces": [*namespaces],
            "leaseNamespace": lease,
            "facts": dict(facts or {}),
            "healthPort": 0,
        }
        file = folder / f"{name}-settings.yaml"
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        environment = {
            "KUBECONFIG": str(kubeconfig or plane.kubeconfig_for(self.user)),
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("runtime", "operator")),
        }
        with self.log.open("w") as log:
            self.process = plane.popen(
                sys.executable, "-c", code, f"--settings={file}",
                env=environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        found = until(self._listening, f"{self.log.read_text()}\nthe operator listens")
        self.port = int(found[1])

    def _listening(self) -> re.Match[str] | None:
        assert self.process.poll() is None, self.log.read_text()
        return LISTENING.search(self.log.read_text())

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer of the health port."""
        with self.plane.inside():
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.port}{path}", timeout=scaled(5)
                ) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """The value of a series as /metrics prints it, 0 where it is not there."""
        lines = self.get("/metrics")[1].splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def is_active(self) -> bool:
        """Whether it holds the Lease."""
        return self.metric("slipway_operator_active") == 1

    def wait_active(self) -> None:
        until(self.is_active, "the operator holds the Lease")

    def wait_reconciled(self, since: float) -> None:
        """Wait until more reconciliations are done than `reconciled` said."""
        until(lambda: self.reconciled() > since and self.metric("slipway_operator_queue_depth") == 0,
              "a reconciliation")  # fmt: skip

    def wait_all_ready(self, services: int, patience: float) -> None:
        """Wait until the operator knows so many services, all serve, and its queue is empty."""
        wanted = (f"resources {services:.1f}", "queue_depth 0.0")

        def ready() -> bool:
            time.sleep(1)  # to look is work for the operator, too
            text = self.get("/metrics")[1]
            at_rest = all(f"slipway_operator_{one}\n" in text for one in wanted)
            return at_rest and "slipway_operator_unready{" not in text

        until(ready, lambda: f"{self.get('/metrics')[1]}\nevery service is ready", patience)

    def reconciled(self) -> float:
        return self.metric('slipway_operator_reconciles_total{outcome="done"}')

    def requests(self) -> list[Object]:
        return requests_of(self.plane, self.user)

    def writes(self) -> list[str]:
        return writes_in(self.requests())

    def forbidden(self) -> set[tuple[str, str]]:
        """As `forbidden_in`; but an API server that ends a namespace refuses whatever is made in it."""

        def of_an_end(event: Object) -> bool:
            answer = event.get("responseStatus", {})
            return answer.get("code") == 403 and "being terminated" in answer.get("message", "")

        return forbidden_in(event for event in self.requests() if not of_an_end(event))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and the end that follows."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        try:
            self.process.wait(scaled(30))
        finally:
            self.process.kill()
            self.process.wait()


def requests_of(plane: ControlPlane, user: str) -> list[Object]:
    """What a user asked of the API server, in the words of the audit log; whom it turned away has no name."""
    return [event for event in plane.audit() if event["user"].get("username") == user]


def writes_in(requests: Iterable[Object]) -> list[str]:
    """Verb and path of what an operator wrote, but for its Lease and its Events."""
    return [
        f"{event['verb']} {event['requestURI'].split('?')[0]}"
        for event in requests
        if event["verb"] in WRITES and event["objectRef"]["resource"] not in ("leases", "events")
    ]


def forbidden_in(requests: Iterable[Object]) -> set[tuple[str, str]]:
    """Verbs and resources that were refused and never granted: an API server that starts refuses at first."""
    answers: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
    for event in requests:
        reference = event.get("objectRef", {"resource": event["requestURI"]})
        refused = event.get("responseStatus", {}).get("code") == 403
        answers[refused].add((event["verb"], reference["resource"]))
    return answers[True] - answers[False]


def grant(plane: ControlPlane, user: str, namespaces: Sequence[str], lease: str) -> None:
    """The rights of the chart: a ClusterRole, or Roles in these namespaces only."""
    name = user.replace(":", "-")
    subject = {"apiGroup": RBAC, "kind": "User", "name": user}
    roles: list[Object] = [*_role(f"{name}-lease", lease, LEASE_RULES, subject)]
    for namespace in namespaces:
        roles += _role(name, namespace, SERVICE_RULES, subject)
    if not namespaces:
        roles += _role(name, None, (*SERVICE_RULES, *CLUSTER_RULES), subject)
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(roles))


def _role(name: str, namespace: str | None, rules: Sequence[Rule], subject: Object) -> list[Object]:
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    role = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata}
    return [
        {**role, "rules": [rule.as_object() for rule in rules]},
        {
            **role,
            "kind": f"{kind}Binding",
            "subjects": [subject],
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        },
    ]


class Namespace:
    """A namespace of a test, and what is in it."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane = plane
        self.name = name
        plane.kubectl("create", "namespace", name)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.plane.kubectl("--namespace", self.name, *arguments, input=input)

    def apply(self, *documents: Mapping[str, Any]) -> str:
        return self.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))

    def get(self, kind: str, name: str) -> Object | None:
        """The object, or None where it does not exist."""
        text = self.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        found: Object | None = json.loads(text) if text else None
        return found

    def the(self, kind: str, name: str) -> Object:
        """The object, which exists."""
        found = self.get(kind, name)
        assert found is not None, f"{kind} {name} is not there"
        return found

    def all(self, kinds: str, *arguments: str) -> list[Object]:
        found: list[Object] = json.loads(self.kubectl("get", kinds, "-o", "json", *arguments))["items"]
        return found

    def condition(self, name: str, kind: str) -> Object:
        """A condition of an InferenceService, empty where it is not there yet."""
        status = (self.get("inferenceservices.slipway.dev", name) or {}).get("status") or {}
        return next((item for item in status.get("conditions") or () if item["type"] == kind), {})


@contextmanager
def fresh_namespace(plane: ControlPlane, subject: str) -> Iterator[Namespace]:
    """A namespace of a name that no other test has; its end is not waited for."""
    made = Namespace(plane, f"{subject}-{uuid.uuid4().hex[:8]}")
    yield made
    plane.kubectl("delete", "namespace", made.name, "--wait=false")


@contextmanager
def serving(plane: ControlPlane, folder: Path, name: str, **more: Any) -> Iterator[Namespace]:
    """The namespace `models` while an operator serves it, which is refused nothing and fails nowhere."""
    operator = Operator(plane, folder, name, **more)
    try:
        operator.wait_active()
        yield Namespace(plane, "models")
        assert operator.forbidden() == set()
        assert "Traceback" not in operator.log.read_text(), operator.log.read_text()
    finally:
        operator.stop()


def service(name: str = "demo", **spec: Any) -> Object:
    """An InferenceService with a model in the image."""
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"path": "/models/demo"}, **spec},
    }
