"""Chart, services, Prometheus Operator and Prometheus as a cluster has them, on a control plane.

There is no node. What scheduler and kubelet would do is done here: each pod has an address of its own, and
the program of its container runs there with the arguments that were rendered for it.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from e2e.ground.build import Binaries, source
from e2e.ground.children import Child
from e2e.ground.control_plane import SERVER, ControlPlane
from e2e.ground.patience import scaled
from e2e.helm.command import OPERATOR_CHART, Helm, run_in
from e2e.helm.installed import operator_of
from e2e.operators import ROOT, Namespace, Object, served, service, until

sys.path.insert(0, str(ROOT / "tests"))

from factory import make_model

RELEASE = "slipway"
SYSTEM, TEAM, WATCH = f"{RELEASE}-system", "team", "monitoring"
"""Namespaces: of the chart, of the services, of Prometheus."""
LABEL = {"release": "e2e"}
"""By which this Prometheus selects monitors, as that of a popular chart does."""
OPERATOR, SHOWN, REVEALING = f"{RELEASE}-operator", "shown", "revealing"
"""The three jobs: a ServiceMonitor of the chart, one of a pod that still loads, and a PodMonitor."""
ADDRESSES = {OPERATOR: "10.78.0.11", SHOWN: "10.78.0.12", REVEALING: "10.78.0.13"}
MODEL, TLS = "tiny", f"{SHOWN}-tls"
SPECS: dict[str, Object] = {
    SHOWN: {"secrets": {"tls": {"name": TLS}}, "engine": {"servedModelName": [MODEL]}},
    REVEALING: {"engine": {"servedModelName": [MODEL], "showHiddenMetricsForVersion": "0.8"}},
}
KINDS = {SHOWN: "ServiceMonitor", REVEALING: "PodMonitor"}
NODE: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}
FOUND = "prometheus-watch"
"""What the Prometheus Operator calls the parts of a Prometheus called watch."""
COMPLETIONS, TOKENS = 5, 4
MEASURED = "slipway_memory_measured_bytes"
"""What a server tells once it has been ready for a while."""
PROMETHEUS = "http://127.0.0.1:9090"
MODULE = "github.com/prometheus-operator/prometheus-operator"
CRDS = ("prometheuses", "prometheusrules", "servicemonitors", "podmonitors", "probes", "scrapeconfigs")
MOUNTED_TLS, MOUNTED_RULES = "/etc/slipway/tls", "/etc/prometheus/rules"
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Monitored:
    """The namespaces of chart and services, and what Prometheus tells of them."""

    plane: ControlPlane
    system: Namespace
    team: Namespace

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of the answer. Raises AssertionError where Prometheus objects or remarks on something."""
        query = urllib.parse.urlencode(parameters)
        answer = asked(self.plane, f"{PROMETHEUS}/api/v1/{path}?{query}")
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        remarks = [*answer.get("warnings", ()), *answer.get("infos", ())]
        assert not remarks, f"{parameters}: {remarks}"
        return answer["data"]

    def query(self, promql: str) -> list[Object]:
        """Samples of an instant vector, now."""
        samples: list[Object] = self.ask("query", query=promql)["result"]
        return samples

    def jobs_with(self, name: str) -> set[str]:
        """Jobs that have a series of this name."""
        return {sample["metric"]["job"] for sample in self.query(f'{{__name__="{name}"}}')}

    def rules(self) -> list[Object]:
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> str:
        """Where it scrapes, and what came of it."""
        active = self.ask("targets")["activeTargets"]
        return "\n".join(f"{one['scrapeUrl']} {one['health']} {one['lastError']}" for one in active)


def url(name: str) -> str:
    """Where the server of a service answers."""
    return f"http{'s' * (name == SHOWN)}://{ADDRESSES[name]}:8000"


@contextmanager
def monitored(binaries: Binaries, folder: Path) -> Iterator[Monitored]:
    """After scrapes of all three jobs, before and after `COMPLETIONS` of each service."""
    with ControlPlane(binaries) as plane:
        system, team, watch = (Namespace(plane, name) for name in (SYSTEM, TEAM, WATCH))
        _install(system, folder)
        _apply(team, make_model("llama", folder / "model"))
        with operator_of(plane, folder, RELEASE, port=8080):
            plane.kubectl("create", "-f", "-", input=json.dumps(NODE))
            _place(system, RELEASE, ADDRESSES[OPERATOR])
            _serve(team, folder)
            prometheus = _prometheus(plane, _configured(watch, folder), folder)
            told = Monitored(plane, system, team)
            prometheus.wait_until(lambda: _answers(plane, f"{PROMETHEUS}/api/v1/labels"), "an answer")
            until(lambda: len(told.query("up == 1")) == len(ADDRESSES), told.targets, PATIENCE)
            for name in SPECS:
                for _ in range(COMPLETIONS):
                    _complete(plane, name)
            counted = f"sum by (job) (vllm:request_success_total) == {COMPLETIONS}"
            until(lambda: len(told.query(counted)) == len(SPECS), "the requests are counted", PATIENCE)
            until(lambda: len(told.query(MEASURED)) == len(SPECS), "memory is measured", PATIENCE)
            twice = "sum_over_time(up[1m]) >= 2"  # of less there is no rate
            until(lambda: len(told.query(twice)) == len(ADDRESSES), told.targets, PATIENCE)
            yield told


def asked(plane: ControlPlane, url: str, body: Object | None = None) -> Any:
    """The JSON at a URL of the ground's network, also of an answer that is an error."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with plane.inside():
        try:
            with _direct().open(request, timeout=scaled(30)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)


@cache
def _direct() -> urllib.request.OpenerDirector:
    """Asks pods by address, which no certificate names."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    secure = urllib.request.HTTPSHandler(context=trusting)
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), secure)


def _answers(plane: ControlPlane, url: str) -> bool:
    """Whether somebody answers there, and not with an error."""
    try:
        return "error" not in asked(plane, url)
    except (OSError, ValueError):
        return False


def _install(system: Namespace, folder: Path) -> None:
    """The CRDs of the Prometheus Operator, which lie beside its code, and our chart."""
    plane = system.plane
    crds = source("prometheus-operator", MODULE) / "example" / "prometheus-operator-crd"
    files = (f"--filename={crds / f'monitoring.coreos.com_{name}.yaml'}" for name in CRDS)
    plane.kubectl("apply", "--server-side", *files)
    for name in CRDS:
        served(plane, f"monitoring.coreos.com/v1{'alpha1' * (name == 'scrapeconfigs')}/{name}")
    values = folder / "values.yaml"
    monitoring = {"labels": LABEL, "serviceMonitor": {"enabled": True, "interval": "1s"}}
    values.write_text(yaml.safe_dump({"monitoring": monitoring}))
    helm = Helm(plane.binaries["helm"], folder / "helm", run_in(plane))
    helm("install", RELEASE, OPERATOR_CHART, "--namespace", system.name, "--values", values)
    served(plane, "slipway.dev/v1alpha1/inferenceservices")


def _apply(team: Namespace, model: Path) -> None:
    """A service for each kind of monitor; the certificate of the one names its Service."""
    pair = team.plane.authority.issue(SHOWN, SHOWN, hosts=(f"{SHOWN}.{TEAM}.svc",))
    files = (f"--cert={pair.certificate}", f"--key={pair.key}")
    team.kubectl("create", "secret", "tls", TLS, *files)
    for name, spec in SPECS.items():
        monitoring = {"enabled": True, "kind": KINDS[name], "interval": "1s"}
        team.apply(service(name, model={"path": str(model)}, monitoring=monitoring, **spec))


def _serve(team: Namespace, folder: Path) -> None:
    """Run at the address of each service's pod what its container would run."""
    tls = folder / "tls"
    tls.mkdir()
    for file, text in team.the("secret", TLS)["data"].items():
        (tls / file).write_bytes(base64.b64decode(text))
    servers: dict[str, Child] = {}
    for name in SPECS:
        pod = _place(team, name, ADDRESSES[name], loading=name == SHOWN)
        rendered = [word.replace(MOUNTED_TLS, str(tls)) for word in pod["spec"]["containers"][0]["args"]]
        words = ("-m", "slipway", *rendered, "--host", ADDRESSES[name])
        path = {"PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("runtime", "kernels"))}
        servers[name] = team.plane.spawn(sys.executable, *words, environment=path)
    for name, server in servers.items():
        server.wait_until(partial(_answers, team.plane, f"{url(name)}/v1/models"), "an answer", PATIENCE)


def _place(namespace: Namespace, instance: str, address: str, loading: bool = False) -> Object:
    """Say of the only pod of `instance` what scheduler and kubelet would; returns the pod.

    Its node was never ready, so the controllers leave its pods alone for five minutes.
    """
    selector = f"--selector=app.kubernetes.io/instance={instance}"
    found: list[Object] = until(lambda: namespace.all("pods", selector), f"a pod of {instance}", PATIENCE)
    (pod,) = found
    name = pod["metadata"]["name"]
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
    bound = json.dumps({**binding, "target": {"kind": "Node", "name": NODE["metadata"]["name"]}})
    path = f"/api/v1/namespaces/{namespace.name}/pods/{name}/binding"
    namespace.kubectl("create", f"--raw={path}", "-f", "-", input=bound)
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": str(not loading)}],
    }
    patch = json.dumps({"status": status})
    namespace.kubectl("patch", "pod", name, "--subresource=status", f"--patch={patch}")
    namespace.plane.must("ip", "address", "add", f"{address}/32", "dev", "lo")
    return pod


def _configured(watch: Namespace, folder: Path) -> Path:
    """The configuration that the Prometheus Operator makes of all monitors and of our rules."""
    plane = watch.plane
    watch.kubectl("apply", "-f", str(ROOT / "helm/slipway/files/alerts.yaml"))
    watch.apply(_prometheus_object(plane))
    # Not 8080, where our operator listens.
    listen, access = "--web.listen-address=127.0.0.1:8081", {"KUBECONFIG": str(plane.kubeconfig)}
    plane.spawn(plane.binaries["prometheus-operator"], listen, environment=access)
    rules = until(lambda: watch.get("configmap", f"{FOUND}-rulefiles-0"), "the rules", PATIENCE)
    place = folder / "rules" / f"{FOUND}-rulefiles-0"
    place.mkdir(parents=True)
    for name, text in rules["data"].items():
        (place / name).write_text(text)
    packed, loaded = folder / "prometheus.yaml.gz", folder / "prometheus.yaml"
    packed.write_bytes(until(lambda: _packed(watch), "a configuration with all monitors", PATIENCE))
    reloader = plane.binaries["prometheus-config-reloader"]
    words = (f"--config-file={packed}", f"--config-envsubst-file={loaded}", "--watch-interval=0")
    pod = {"POD_NAME": f"{FOUND}-0", "SHARD": "0"}
    plane.must(reloader, *words, "--listen-address=127.0.0.1:8082", env=pod)
    loaded.write_text(loaded.read_text().replace(MOUNTED_RULES, str(folder / "rules")))
    return loaded


def _prometheus_object(plane: ControlPlane) -> Object:
    """A Prometheus that takes the monitors of every namespace by their label."""
    user = yaml.safe_load(plane.kubeconfig.read_text())["users"][0]["user"]
    files = {"certFile": user["client-certificate"], "keyFile": user["client-key"]}
    spec: Object = {
        "replicas": 1,
        "evaluationInterval": "1s",
        "serviceDiscoveryRole": "EndpointSlice",
        "ruleSelector": {"matchLabels": {"app.kubernetes.io/name": "slipway"}},
        "apiserverConfig": {
            "host": SERVER,
            "tlsConfig": {"caFile": str(plane.authority.certificate), **files},
        },
    }
    for kind in ("serviceMonitor", "podMonitor"):
        spec |= {f"{kind}Selector": {"matchLabels": LABEL}, f"{kind}NamespaceSelector": {}}
    name = FOUND.removeprefix("prometheus-")
    head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus"}
    return {**head, "metadata": {"name": name}, "spec": spec}


def _packed(watch: Namespace) -> bytes | None:
    """The configuration as the pod would mount it, once there is a job for each monitor."""
    secret = watch.get("secret", FOUND) or {}
    packed = base64.b64decode(secret.get("data", {}).get("prometheus.yaml.gz", ""))
    made = yaml.safe_load(gzip.decompress(packed)) if packed else {}
    return packed if len(made.get("scrape_configs") or ()) == len(ADDRESSES) else None


def _prometheus(plane: ControlPlane, configuration: Path, folder: Path) -> Child:
    return plane.spawn(
        plane.binaries["prometheus"],
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={PROMETHEUS.removeprefix('http://')}",
    )


def _complete(plane: ControlPlane, name: str) -> None:
    """One completion of `TOKENS` tokens, as a client asks for it."""
    body = {"model": MODEL, "prompt": "the ship", "max_tokens": TOKENS, "ignore_eos": True}
    answer = asked(plane, f"{url(name)}/v1/completions", body)
    assert answer["usage"]["completion_tokens"] == TOKENS, answer
