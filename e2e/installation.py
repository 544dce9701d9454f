"""The operator as people install it: by its chart, as a pod of the cluster, and clients of what it serves."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import openai

from e2e.ground.node import Cluster
from e2e.ground.patience import at_most, scaled
from e2e.helm.command import CRD, OPERATOR_CHART, Helm, run_in
from e2e.images.release import Released
from e2e.operators import Namespace, Object, requests_of, undefine, until, writes_in

SYSTEM = "slipway-system"
PLACE = ("--namespace", SYSTEM)
USER = f"system:serviceaccount:{SYSTEM}:slipway-operator"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
LABEL = "app.kubernetes.io/name=slipway-operator"


class Installation:
    """The release `slipway` in a namespace that admits restricted pods only; it goes with its CRD."""

    def __init__(self, cluster: Cluster, released: Released, folder: Path) -> None:
        """`folder` is for Helm's own files."""
        self.cluster = cluster
        self.released = released
        self.helm = Helm(cluster.binaries["helm"], folder, run_in(cluster))

    def __enter__(self) -> Self:
        self.cluster.kubectl("create", "namespace", SYSTEM)
        self.cluster.kubectl("label", "namespace", SYSTEM, RESTRICTED)
        self.helm("install", "slipway", OPERATOR_CHART, *PLACE, "--wait", at_most(120))
        return self

    def __exit__(self, *_: object) -> None:
        self.helm("uninstall", "slipway", *PLACE, "--wait")
        undefine(self.cluster)
        self.cluster.kubectl("delete", "namespace", SYSTEM, at_most(120))

    def namespace(self, name: str) -> Namespace:
        """A namespace for models, restricted too."""
        made = Namespace(self.cluster, name)
        self.cluster.kubectl("label", "namespace", name, RESTRICTED)
        return made

    def remove(self, namespace: Namespace) -> None:
        """End its services, then the namespace.

        Its controller comes back only after half of the grace period of a pod that it meets.
        """
        namespace.kubectl("delete", CRD, "--all", at_most(120))
        until(lambda: not namespace.all("pods"), f"no pods in {namespace.name}", 90)
        self.cluster.kubectl("delete", "namespace", namespace.name, at_most(120))

    def pod(self) -> Object:
        """The operator's."""
        (found,) = json.loads(self.cluster.kubectl("get", "pods", *PLACE, "-l", LABEL, "-o", "json"))["items"]
        return dict(found)

    def reconciled(self) -> float:
        """Reconciliations that the running operator has done."""
        text = self.cluster.fetch(f"http://{in_url(self.pod()['status']['podIP'])}:8080/metrics").decode()
        name = 'slipway_operator_reconciles_total{outcome="done"} '
        return next((float(line[len(name) :]) for line in text.splitlines() if line.startswith(name)), 0.0)

    def writes(self) -> list[str]:
        """What the operator wrote."""
        return writes_in(requests_of(self.cluster, USER))

    def rest(self, namespace: Namespace, name: str) -> None:
        """Wait until the memory of a service that serves is measured, and a reconciliation writes nothing."""

        def nothing_written() -> bool:
            written, count = len(self.writes()), self.reconciled()
            namespace.kubectl("annotate", CRD, name, f"look={count}", "--overwrite")
            until(lambda: self.reconciled() > count, "a reconciliation")
            return len(self.writes()) == written

        def memory() -> Object:
            return dict(namespace.the(CRD, name)["status"].get("memory", {}))

        until(lambda: "measured" in memory(), lambda: f"{name} has measured: {memory()}")
        until(nothing_written, lambda: f"{name} is at rest: {self.writes()[-5:]}")


def pods_of(namespace: Namespace, service: str) -> list[Object]:
    """The service's pods that are not on their way out."""
    found = namespace.all("pods", "-l", f"app.kubernetes.io/instance={service}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


@contextmanager
def client(namespace: Namespace, service: str) -> Iterator[openai.OpenAI]:
    """A client of the service's address in the cluster, from inside the ground's network.

    The thread is in there for as long as the client is open: its connections are made when they are needed.
    """
    port = namespace.the("service", service)["spec"]
    url = f"http://{in_url(port['clusterIP'])}:{port['ports'][0]['port']}"
    with namespace.plane.inside():
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        until(lambda: _answers(opener, url), f"{url} answers")
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=_direct()) as api:
            yield api


def in_url(address: str) -> str:
    """fd78::4 → [fd78::4]"""
    return f"[{address}]" if ":" in address else address


def _direct() -> openai.DefaultHttpxClient:
    """Without the environment: a proxy of the machine is none of this network's."""
    return openai.DefaultHttpxClient(trust_env=False, timeout=scaled(120))


def _answers(opener: urllib.request.OpenerDirector, url: str) -> bool:
    try:
        with opener.open(f"{url}/health", timeout=scaled(5)) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
