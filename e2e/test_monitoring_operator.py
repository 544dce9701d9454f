"""From a document to a target that is up: our operator, the Prometheus Operator, and Prometheus.

The control plane has no node, so each pod's address is written into its status as a kubelet would, and one
server answers there for both of them.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.ground.control_plane import SERVER, ControlPlane
from e2e.ground.names import NODE_ADDRESS
from e2e.ground.programs import MODULES, PROGRAMS
from e2e.operators import ROOT, Namespace, Operator, service, until
from e2e.test_monitoring import DIRECT, OPERATORS, needed
from slipway.metrics.alerts import ALERTS
from slipway.metrics.dashboard import queries
from slipway.metrics.promql import metrics_in

sys.path.insert(0, str(ROOT / "tests"))

from factory import make_model

LABEL = {"release": "e2e"}
"""By which this Prometheus selects monitors, as that of a popular chart does."""
MONITORS = {"watched": "ServiceMonitor", "other": "PodMonitor"}
LOADING = "watched"
PROMETHEUS = "http://127.0.0.1:9090"
MODULE = "github.com/prometheus-operator/prometheus-operator"
CRDS = ("prometheuses", "prometheusrules", "servicemonitors", "podmonitors", "probes", "scrapeconfigs")
PATIENCE = 90.0


@dataclass(frozen=True, slots=True)
class Services:
    """The namespace, our operator in it, and what its Prometheus says once there is one."""

    namespace: Namespace
    operator: Operator

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of Prometheus' answer. Raises AssertionError with its own sentence."""
        answer = get(self.namespace.plane, f"{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        assert answer is not None
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]

    def query(self, promql: str) -> list[dict[str, Any]]:
        samples: list[dict[str, Any]] = self.ask("query", query=promql)["result"]
        return samples


def get(plane: ControlPlane, url: str) -> Any:
    """The JSON at a URL of the ground's network; None while nobody answers 200 there."""
    with plane.inside():
        try:
            with DIRECT.open(url, timeout=10) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            return json.load(error)
        except OSError:
            return None


def definitions() -> str:
    """The Prometheus Operator's CRDs, of the version that the ground's module pins."""
    words = ("go", "list", "-m", "-f", "{{.Dir}}", MODULE)
    path = f"{os.environ['PATH']}{os.pathsep}/usr/local/go/bin"
    done = subprocess.run(
        words,
        cwd=MODULES / "prometheus-operator",
        env=os.environ | {"PATH": path, "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(done.stdout.strip()) / "example" / "prometheus-operator-crd"
    return "\n---\n".join((folder / f"monitoring.coreos.com_{name}.yaml").read_text() for name in CRDS)


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with our CRD and those of the Prometheus Operator, which go with the module."""
    ours = (ROOT / "crds/inferenceservices.slipway.dev.yaml").read_text()
    theirs = definitions()
    served = ["inferenceservices.slipway.dev", *(f"{name}.monitoring.coreos.com" for name in CRDS)]
    before = control_plane.kubectl("get", "crd", "-o", "name").split()
    control_plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", input=f"{ours}\n---\n{theirs}"
    )
    for name in served:
        control_plane.kubectl("wait", f"crd/{name}", "--for=condition=Established", "--timeout=30s")
    yield control_plane
    made = [f"crd/{n}" for n in served if f"customresourcedefinition.apiextensions.k8s.io/{n}" not in before]
    if made:
        control_plane.kubectl("delete", *made, "--timeout=60s")


@pytest.fixture(scope="module")
def services(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Two services, one by each kind of monitor, whose pods have addresses; one of them still loads."""
    namespace = Namespace(plane, f"monitoring-{uuid.uuid4().hex[:8]}")
    label = ",".join(f"--monitoring-label={key}={value}" for key, value in LABEL.items())
    folder = tmp_path_factory.mktemp("services")
    operator = Operator(plane, folder, namespace.name, label, namespaces=[namespace.name])
    try:
        for name, kind in MONITORS.items():
            namespace.apply(service(name, monitoring={"enabled": True, "kind": kind, "interval": "1s"}))
        _place_pods(namespace)
        yield Services(namespace, operator)
    finally:
        operator.stop()
        plane.kubectl("delete", "node", namespace.name, "--ignore-not-found")
        plane.kubectl("delete", "namespace", namespace.name, "--wait=false")


@pytest.fixture(scope="module")
def watched(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The services under a Prometheus that the Prometheus Operator configured, after its first scrapes."""
    namespace, plane = services.namespace, services.namespace.plane
    program = scraper(plane)
    folder = tmp_path_factory.mktemp("watched")
    children: list[subprocess.Popen[bytes]] = []
    try:
        children.append(_serve(plane, folder))
        namespace.kubectl("apply", "-f", str(ROOT / "monitoring/alerts.yaml"))
        children.append(_run(plane, folder, plane.binaries["prometheus-operator"]))
        children.append(_prometheus(namespace, folder, program))
        until(lambda: len(_up(services)) == len(MONITORS), "both targets are up", PATIENCE)
        _complete(plane)
        until(lambda: services.query("vllm:request_success_total > 0"), "the completion counts", PATIENCE)
        yield services
    finally:
        for child in reversed(children):
            child.kill()
            child.wait()


def scraper(plane: ControlPlane) -> Path:
    """A Prometheus that discovers targets by the Kubernetes API, which Debian builds its own without."""
    if "prometheus" in PROGRAMS:
        return plane.binaries["prometheus"]
    program = Path(needed("prometheus"))
    if b"prometheus/discovery/kubernetes" not in program.read_bytes():
        sentence = f"{program} cannot discover targets in Kubernetes: put another Prometheus first on PATH."
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return program


def _up(watched: Services) -> list[dict[str, Any]]:
    return watched.query("up == 1") if get(watched.namespace.plane, f"{PROMETHEUS}/api/v1/labels") else []


def _run(plane: ControlPlane, folder: Path, *argv: str | Path) -> subprocess.Popen[bytes]:
    """A program in the ground's network, with a log in the folder."""
    name = Path(argv[0]).name
    path = os.pathsep.join(str(ROOT / part) for part in ("runtime", "kernels"))
    with (folder / f"{name}.log").open("wb") as log:
        return plane.popen(*argv, stdout=log, stderr=subprocess.STDOUT, env={"PYTHONPATH": path})


def _serve(plane: ControlPlane, folder: Path) -> subprocess.Popen[bytes]:
    """The server at which both pods' addresses lead."""
    model = make_model("llama", folder / "model")
    words = ("-m", "slipway", "serve", str(model), "--served-model-name", "tiny", "--host", "0.0.0.0")
    server = _run(plane, folder, sys.executable, *words, "--port", "8000")
    until(lambda: get(plane, f"http://{NODE_ADDRESS}:8000/v1/models"), "the server answers", PATIENCE)
    return server


def _place_pods(namespace: Namespace) -> None:
    """What scheduler and kubelet would say: both pods have a node and an address, and one still loads."""
    node = namespace.name
    namespace.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    for name in MONITORS:
        look = partial(namespace.all, "pods", f"--selector=app.kubernetes.io/instance={name}")
        (pod,) = until(look, f"a pod of {name}", PATIENCE)
        pod_name = pod["metadata"]["name"]
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod_name}}
        target = {"target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        path = f"/api/v1/namespaces/{namespace.name}/pods/{pod_name}/binding"
        namespace.kubectl("create", f"--raw={path}", "-f", "-", input=json.dumps(binding | target))
        status = {
            "phase": "Running",
            "podIP": NODE_ADDRESS,
            "podIPs": [{"ip": NODE_ADDRESS}],
            "conditions": [{"type": "Ready", "status": str(name != LOADING)}],
        }
        patch = json.dumps({"status": status})
        namespace.kubectl("patch", "pod", pod_name, "--subresource=status", f"--patch={patch}")


def _prometheus(namespace: Namespace, folder: Path, program: Path) -> subprocess.Popen[bytes]:
    """Prometheus with the configuration and the rules that the Prometheus Operator made."""
    plane = namespace.plane
    user = yaml.safe_load(plane.kubeconfig.read_text())["users"][0]["user"]
    files = {"certFile": user["client-certificate"], "keyFile": user["client-key"]}
    access = {"host": SERVER, "tlsConfig": {"caFile": str(plane.authority.certificate), **files}}
    selector = {"matchLabels": LABEL}
    namespace.apply(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "Prometheus",
            "metadata": {"name": "watch"},
            "spec": {
                "version": "v2.42.0",
                "replicas": 1,
                "scrapeInterval": "1s",
                "evaluationInterval": "1s",
                "serviceDiscoveryRole": "EndpointSlice",
                "serviceMonitorSelector": selector,
                "podMonitorSelector": selector,
                "ruleSelector": {"matchLabels": {"app.kubernetes.io/name": "slipway"}},
                "apiserverConfig": access,
            },
        }
    )
    rules = until(lambda: namespace.get("configmap", "prometheus-watch-rulefiles-0"), "the rules", PATIENCE)
    for name, text in rules["data"].items():
        (folder / f"rules-{name}").write_text(text)
    made = until(lambda: _configuration(namespace), "a configuration with both monitors", PATIENCE)
    del made["global"]["external_labels"]  # what the config reloader fills in inside a pod
    made["rule_files"] = [str(folder / "rules-*.yaml")]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(made))
    return _run(
        plane,
        folder,
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={PROMETHEUS.removeprefix('http://')}",
    )


def _configuration(namespace: Namespace) -> dict[str, Any] | None:
    secret = namespace.get("secret", "prometheus-watch")
    packed = ((secret or {}).get("data") or {}).get("prometheus.yaml.gz", "")
    made: dict[str, Any] = yaml.safe_load(gzip.decompress(base64.b64decode(packed))) if packed else {}
    return made if len(made.get("scrape_configs") or ()) == len(MONITORS) else None


def _complete(plane: ControlPlane) -> None:
    body = json.dumps({"model": "tiny", "prompt": "the ship", "max_tokens": 4, "ignore_eos": True}).encode()
    url = f"http://{NODE_ADDRESS}:8000/v1/completions"
    with (
        plane.inside(),
        DIRECT.open(
            urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=60
        ) as response,
    ):
        assert json.load(response)["usage"]["completion_tokens"] == 4


def test_both_kinds_of_monitor_make_a_target_that_is_up_and_named_after_the_service(watched: Services):
    found = {sample["metric"]["job"]: sample["metric"] for sample in _up(watched)}
    assert set(found) == set(MONITORS)
    for name, labels in found.items():
        assert labels["namespace"] == watched.namespace.name
        assert labels["pod"].startswith(f"{name}-")
    assert found["watched"]["service"] == "watched"


def test_a_pod_that_still_loads_is_scraped_too(watched: Services):
    (slice_,) = watched.namespace.all("endpointslices", "--selector=kubernetes.io/service-name=watched")
    assert not slice_["endpoints"][0]["conditions"]["ready"]
    assert watched.query('up{job="watched"} == 1')


def test_the_chart_wide_labels_are_on_each_monitor(services: Services):
    for name, kind in MONITORS.items():
        monitor = services.namespace.get(kind, name)
        assert monitor is not None
        assert LABEL.items() <= monitor["metadata"]["labels"].items()


@pytest.mark.parametrize("query", queries(), ids=str)
def test_a_query_of_the_dashboard_finds_what_a_monitor_brought(query: str, watched: Services):
    asked = query.replace("$namespace", watched.namespace.name).replace("$model", "tiny")
    found = watched.query(asked.replace("$__rate_interval", "1m"))
    assert bool(found) == (not metrics_in(query) & OPERATORS)


def test_the_rules_are_those_of_the_applied_object_and_run(watched: Services):
    def rules() -> list[dict[str, Any]]:
        return [rule for group in watched.ask("rules")["groups"] for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in rules()), "every rule has run", PATIENCE)
    assert {rule["name"]: rule["health"] for rule in rules()} == {alert.name: "ok" for alert in ALERTS}


def test_our_operator_says_which_service_is_not_ready(services: Services):
    def told() -> bool:
        lines = services.operator.get("/metrics")[1].splitlines()
        unready = [line for line in lines if line.startswith("slipway_operator_unready{")]
        return len(unready) == 1 and f'resource="{LOADING}"' in unready[0]

    until(told, "it names that service alone", PATIENCE)
