"""The programs a cluster is made of, and the module under `e2e/go` that pins each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parent.parent / "go"
KUBERNETES = "1.36.3"


@dataclass(frozen=True, slots=True)
class Program:
    """`package` and `tags` are what `go build` takes; `module` is the folder whose files pin it.

    Programs of one `batch` are built by one call of `go build`: whoever needs one needs the others.
    """

    name: str
    batch: str
    package: str
    module: str = "cluster"
    tags: tuple[str, ...] = ()


def _kubernetes(batch: str, *names: str) -> Iterator[Program]:
    for name in names:
        yield Program(name, batch, f"k8s.io/kubernetes/cmd/{name}")


def _containerd(name: str) -> Program:
    return Program(name, "node", f"github.com/containerd/containerd/v2/cmd/{name}")


def _cni(kind: str, name: str) -> Program:
    return Program(name, "node", f"github.com/containernetworking/plugins/plugins/{kind}/{name}")


def _prometheus_operator(name: str, command: str) -> Program:
    package = f"github.com/prometheus-operator/prometheus-operator/cmd/{command}"
    return Program(name, "monitoring", package, module="prometheus-operator")


def _prometheus(name: str) -> Program:
    # Of the 25 ways to discover targets one is needed: the SDKs of the clouds are most of the build.
    tags = ("remove_all_sd", "enable_kubernetes_sd")
    return Program(name, "prometheus", f"github.com/prometheus/prometheus/cmd/{name}", tags=tags)


# In the order in which tests come to need them.
PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "control-plane", "go.etcd.io/etcd/server/v3"),
        *_kubernetes("control-plane", "kube-apiserver", "kubectl", "kube-controller-manager"),
        Program("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
        *_kubernetes("node", "kube-scheduler", "kubelet", "kube-proxy"),
        *map(_containerd, ("containerd", "containerd-shim-runc-v2", "ctr")),
        *(_cni("main", name) for name in ("bridge", "loopback")),
        _cni("ipam", "host-local"),
        _cni("meta", "portmap"),
        Program("pause", "node", "slipway.dev/e2e/pause"),
        Program("registry", "node", "slipway.dev/e2e/registry"),
        Program("coredns", "coredns", "slipway.dev/e2e/coredns"),
        Program("helm3", "helm3", "helm.sh/helm/v3/cmd/helm"),
        Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        _prometheus_operator("prometheus-operator", "operator"),
        _prometheus_operator("prometheus-config-reloader", "prometheus-config-reloader"),
        _prometheus("prometheus"),
        _prometheus("promtool"),
        Program("compose", "compose", "slipway.dev/e2e/compose/config", module="compose"),
        Program("quadlet", "quadlet", "github.com/containers/podman/v5/cmd/quadlet", module="quadlet"),
    )
}


def batch(name: str) -> tuple[Program, ...]:
    """The program of this name and those that are built with it."""
    return tuple(program for program in PROGRAMS.values() if program.batch == PROGRAMS[name].batch)
