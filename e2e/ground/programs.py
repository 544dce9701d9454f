"""The programs a cluster is made of, and the module under `e2e/go` that pins each of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parent.parent / "go"
KUBERNETES = "1.36.3"


@dataclass(frozen=True, slots=True)
class Program:
    """`package` and `tags` are what `go build` takes; `module` is the folder whose files pin it."""

    name: str
    module: str
    package: str
    tags: tuple[str, ...] = ()


def _kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}")


def _containerd(name: str) -> Program:
    return Program(name, "containerd", f"github.com/containerd/containerd/v2/cmd/{name}")


def _cni(kind: str, name: str) -> Program:
    return Program(name, "cni", f"github.com/containernetworking/plugins/plugins/{kind}/{name}")


def _prometheus_operator(name: str, command: str) -> Program:
    package = f"github.com/prometheus-operator/prometheus-operator/cmd/{command}"
    return Program(name, "prometheus-operator", package)


def _prometheus(name: str) -> Program:
    # Of the 25 ways to discover targets one is needed: the SDKs of the clouds are most of the build.
    tags = ("remove_all_sd", "enable_kubernetes_sd")
    return Program(name, "prometheus", f"github.com/prometheus/prometheus/cmd/{name}", tags)


# In the order in which a person who builds all of them can begin to use them.
PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kubectl"),
        _kubernetes("kube-controller-manager"),
        Program("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        _containerd("containerd"),
        _containerd("containerd-shim-runc-v2"),
        _containerd("ctr"),
        _cni("main", "bridge"),
        _cni("main", "loopback"),
        _cni("ipam", "host-local"),
        _cni("meta", "portmap"),
        Program("pause", "pause", "slipway.dev/e2e/pause"),
        Program("registry", "registry", "github.com/distribution/distribution/v3/cmd/registry"),
        Program("coredns", "coredns", "slipway.dev/e2e/coredns"),
        Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        _prometheus_operator("prometheus-operator", "operator"),
        _prometheus_operator("prometheus-config-reloader", "prometheus-config-reloader"),
        _prometheus("prometheus"),
        _prometheus("promtool"),
        Program("helm3", "helm3", "helm.sh/helm/v3/cmd/helm"),
        Program("quadlet", "quadlet", "github.com/containers/podman/v5/cmd/quadlet"),
    )
}
