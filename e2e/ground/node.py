"""A node beside the control plane: pods run, Services answer, images are pulled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.ground import guardian, layers, namespaces, node_files
from e2e.ground.build import Binaries
from e2e.ground.children import Child
from e2e.ground.control_plane import SERVER, ControlPlane
from e2e.ground.machine import CNI, CONTAINERD, Machine
from e2e.ground.names import API_PORT, NODE, REGISTRY, SECOND, V4, Addresses, Ground
from e2e.ground.remains import claim, clear

_NODE = ("kube-scheduler", "kubelet", "kube-proxy", "pause", "registry")


class Cluster(ControlPlane):
    """A one-node Kubernetes with real scheduler, kubelet, containerd, runc, kube-proxy and a registry."""

    registry = REGISTRY

    def __init__(self, binaries: Binaries, addresses: Addresses = V4) -> None:
        super().__init__(binaries, addresses)
        self._dns: Child | None = None
        self.machine = Machine(NODE, binaries, self.ground, addresses, server=SERVER)

    @property
    def storage(self) -> Path:
        """Where the registry's files are."""
        return node_files.storage(self.ground)

    def programs(self) -> tuple[str, ...]:
        return (*super().programs(), *_NODE, *CONTAINERD, *CNI)

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

    @contextmanager
    def second_node(self) -> Iterator[Machine]:
        """Another machine on the network meanwhile: its namespace, folder and pods' addresses are its own."""
        ground, logs = Ground.fresh(), self.logs / "second"
        for folder in (ground.folder, logs):
            folder.mkdir()
        claim(ground)
        watch = guardian.start(ground)
        beside = self.addresses.node
        machine = Machine(
            "second",
            self.binaries,
            ground,
            SECOND,
            server=f"https://{beside}:{API_PORT}",
            beside=beside,
            dns=beside,
        )
        children: list[Child] = []

        def spawn(*argv: str | Path, environment: dict[str, str] | None = None) -> Child:
            children.append(Child.start(ground.netns, logs, list(argv), environment))
            return children[-1]

        try:
            namespaces.create(ground.netns, SECOND.network)
            namespaces.connect(self.ground.netns, ground.netns)
            namespaces.route(self.ground.netns, SECOND.pods_of_node, SECOND.node)
            namespaces.route(ground.netns, self.addresses.pods_of_node, beside)
            machine.certify(self.authority)
            machine.start(spawn, self.must)
            self.until(lambda: len(self._nodes()) == 2 and self._nodes_ready(), "a second Ready node", 120)
            yield machine
        finally:
            self.kubectl("delete", "node", machine.name, "--ignore-not-found", "--wait=false")
            clear(ground)
            for process in (*(child.process for child in children), watch):
                process.kill()
                process.wait()

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
        (self.folder / "registry.json").write_text(node_files.registry(self.ground))
        self._start_scheduler()
        self.machine.start(self.spawn, self.must)
        self._start_registry()
        self.until(self._nodes_ready, "a Ready node", 120)

    def _certify(self) -> None:
        super()._certify()
        self.machine.certify(self.authority)

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

    def ctr(self, *arguments: str) -> None:
        """Run containerd's own client. Raises GroundFailed."""
        self.machine.ctr(self.must, *arguments)

    def _push_archive(self, path: Path, name: str) -> str:
        reference = f"{REGISTRY}/{name}"
        self.ctr("--namespace=push", "images", "import", f"--index-name={reference}", str(path))
        self.ctr("--namespace=push", "images", "push", "--plain-http", reference)
        self.ctr("--namespace=push", "images", "remove", reference)
        return reference

    def _nodes(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return listed

    def _nodes_ready(self) -> bool:
        conditions = [
            condition
            for node in self._nodes()
            for condition in node["status"].get("conditions", ())
            if condition["type"] == "Ready"
        ]
        return bool(conditions) and all(condition["status"] == "True" for condition in conditions)
