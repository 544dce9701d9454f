"""A node beside the control plane: pods run, Services answer, images are pulled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from e2e.ground import images, layers, node_files
from e2e.ground.build import Binaries
from e2e.ground.children import Child
from e2e.ground.control_plane import SERVER, ControlPlane
from e2e.ground.names import NODE, REGISTRY, V4, Addresses

_CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
_CNI = ("bridge", "loopback", "host-local", "portmap")
_NODE = ("kube-scheduler", "kubelet", "kube-proxy", "pause", "registry")


class Cluster(ControlPlane):
    """A one-node Kubernetes with real scheduler, kubelet, containerd, runc, kube-proxy and a registry."""

    registry = REGISTRY

    def __init__(self, binaries: Binaries, addresses: Addresses = V4) -> None:
        super().__init__(binaries, addresses)
        self._dns: Child | None = None

    @property
    def storage(self) -> Path:
        """Where the registry's files are."""
        return node_files.storage(self.ground)

    def programs(self) -> tuple[str, ...]:
        return (*super().programs(), *_NODE, *_CONTAINERD, *_CNI)

    def push(self, image: str | Path, name: str | None = None) -> str:
        """Put an image into the cluster's registry and return the reference that pods pull it by.

        image  a name in buildah's and podman's storage, or an archive that `ground.images` wrote
        name   its name and tag in the registry; by default those it has already
        """
        if isinstance(image, Path):
            return self._push_archive(image, name or f"{image.stem}:latest")
        path = name or image.partition("@")[0].removeprefix("localhost/")
        reference = f"{REGISTRY}/{path if ':' in path.rpartition('/')[2] else path + ':latest'}"
        # zstd at its lowest level: with gzip an image with torch takes minutes on two cores.
        how = ("--quiet", "--tls-verify=false", "--compression-format=zstd", "--compression-level=1")
        self.must("buildah", "push", *how, image, f"docker://{reference}")
        return reference

    def keep(self, *references: str) -> None:
        """Start later clusters with the layers of these images, as `push` returned them, and no others."""
        layers.keep(self.storage, [reference.removeprefix(f"{REGISTRY}/") for reference in references])

    def patch_gpus(self, resource: str = "nvidia.com/gpu", count: int = 4) -> None:
        """Let the node claim devices: the scheduler counts them, the kubelet admits them, none is there.

        A pod that asks for one runs on the CPU.
        """
        amounts = {resource: str(count)}
        patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
        self.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", f"--patch={patch}")

        def claimed() -> bool:
            status = json.loads(self.kubectl("get", "node", NODE, "-o", "json"))["status"]
            return bool(status["allocatable"].get(resource) == str(count))

        self.until(claimed, f"{count} {resource}")

    def start_dns(self) -> None:
        """Start CoreDNS at the address that the kubelet gives to pods; without it they have no DNS."""
        if self._dns is not None:
            return
        config = self.folder / "Corefile"
        config.write_text(node_files.dns(self.kubeconfig, self.addresses))
        child = self._dns = self.spawn(self.binaries["coredns"], "-conf", config)
        child.wait_until(lambda: "CoreDNS-" in child.tail(), "CoreDNS")

    def _start(self) -> None:
        super()._start()
        self._write_files()
        self._start_containerd()
        pki = self.folder / "pki"
        self._start_scheduler()
        self.spawn(
            self.binaries["kubelet"],
            f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={pki / 'kubelet-api.kubeconfig'}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={pki}",
            f"--hostname-override={NODE}",
            f"--node-ip={self.addresses.node}",
        )
        self.spawn(
            self.binaries["kube-proxy"],
            f"--kubeconfig={pki / 'proxy.kubeconfig'}",
            f"--hostname-override={NODE}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={self.addresses.pods}",
            "--healthz-bind-address=127.0.0.1:10256",
            # It may not write the machine's connection tracking settings, and dies when it tries.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )
        self._start_registry()
        self.until(self._node_ready, "a Ready node", 120)

    def _certify(self) -> None:
        super()._certify()
        authority = self.authority
        authority.issue("kubelet", f"system:node:{NODE}", "system:nodes", hosts=(NODE, self.addresses.node))
        authority.kubeconfig("kubelet-api", SERVER, f"system:node:{NODE}", "system:nodes")
        authority.kubeconfig("proxy", SERVER, "system:kube-proxy")

    def _write_files(self) -> None:
        ground, folder = self.ground, self.folder
        plugins = self.binaries.folder(*_CNI)
        runc = shutil.which("runc", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin") or "runc"
        (folder / "cni").mkdir()
        (folder / "cni" / "pods.conflist").write_text(node_files.network(ground, self.addresses))
        (folder / "containerd.toml").write_text(node_files.containerd(ground, runc, plugins))
        (folder / "kubelet.json").write_text(node_files.kubelet(ground, self.addresses))
        (folder / "registry.json").write_text(node_files.registry(ground))
        (folder / "resolv.conf").write_text("")
        # An image without a registry in its name is one of docker.io's.
        mirrored = node_files.registries(ground) / "docker.io"
        mirrored.mkdir(parents=True)
        (mirrored / "hosts.toml").write_text(node_files.mirror())

    def _start_containerd(self) -> None:
        programs = self.binaries.folder(*_CONTAINERD)
        child = self.spawn(
            programs / "containerd",
            f"--config={self.folder / 'containerd.toml'}",
            # It finds its shim by PATH.
            environment={"PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        child.wait_until(lambda: self.ctr("version", check=False), "containerd's socket")
        pause = images.archive(
            self.folder / "pause.tar",
            node_files.PAUSE,
            {"/pause": self.binaries["pause"]},
            entrypoint=["/pause"],
        )
        self.ctr("--namespace=k8s.io", "images", "import", str(pause))

    def _start_registry(self) -> None:
        layers.fill(self.storage)
        child = self.spawn(
            self.binaries["registry"],
            "serve",
            self.folder / "registry.json",
            environment={"OTEL_TRACES_EXPORTER": "none"},
        )
        child.wait_until(self._registry_answers, "the registry's answer")

    def _registry_answers(self) -> bool:
        try:
            return bool(self.fetch(f"http://{REGISTRY}/v2/"))
        except OSError:
            return False

    def ctr(self, *arguments: str, check: bool = True) -> bool:
        """Run containerd's own client; True when it succeeded; with `check` raises GroundFailed."""
        client, address = self.binaries["ctr"], f"--address={node_files.socket(self.ground)}"
        if check:
            self.must(client, address, *arguments)
            return True
        return self.run(client, address, *arguments, capture_output=True).returncode == 0

    def _push_archive(self, path: Path, name: str) -> str:
        reference = f"{REGISTRY}/{name}"
        self.ctr("--namespace=push", "images", "import", f"--index-name={reference}", str(path))
        self.ctr("--namespace=push", "images", "push", "--plain-http", reference)
        self.ctr("--namespace=push", "images", "remove", reference)
        return reference

    def _node_ready(self) -> bool:
        text = self.kubectl("get", "nodes", "-o", "json")
        conditions = [
            condition
            for node in json.loads(text)["items"]
            for condition in node["status"].get("conditions", ())
            if condition["type"] == "Ready"
        ]
        return bool(conditions) and all(condition["status"] == "True" for condition in conditions)
