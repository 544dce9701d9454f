"""A machine of a cluster: containerd, kubelet and kube-proxy, all their files in one folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from e2e.ground import images, node_files
from e2e.ground.build import Binaries
from e2e.ground.children import Child, GroundFailed
from e2e.ground.names import REGISTRY_PORT, Addresses, Ground
from e2e.ground.pki import Authority

CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
CNI = ("bridge", "loopback", "host-local", "portmap")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Spawn = Callable[..., Child]


class Machine:
    """A node in the network namespace of its ground, which `spawn` enters."""

    def __init__(
        self,
        name: str,
        binaries: Binaries,
        ground: Ground,
        addresses: Addresses,
        *,
        server: str,
        beside: str = "127.0.0.1",
        dns: str = "",
    ) -> None:
        """server  the API server's URL, as the machine reaches it
        beside  where the cluster's registry is
        dns     where its name server is; by default on this machine
        """
        self.name = name
        self.ground = ground
        self.addresses = addresses
        self._binaries = binaries
        self._server = server
        self._registry = f"{beside}:{REGISTRY_PORT}"
        self._dns = dns or addresses.node

    def certify(self, authority: Authority) -> None:
        """What it shows to others, and to the API server."""
        self._pki = authority.folder
        user = f"system:node:{self.name}"
        authority.issue(self.name, user, "system:nodes", hosts=(self.name, self.addresses.node))
        authority.kubeconfig(f"{self.name}-kubelet", self._server, user, "system:nodes")
        authority.kubeconfig(f"{self.name}-proxy", self._server, "system:kube-proxy")

    def start(self, spawn: Spawn, must: Callable[..., str]) -> None:
        """Its programs, once its namespace and folder are there; the node is ready some seconds later."""
        self._write_files()
        self._start_containerd(spawn, must)
        folder = self.ground.folder
        spawn(
            self._binaries["kubelet"],
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={self._pki / f'{self.name}-kubelet.kubeconfig'}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet-pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.addresses.node}",
        )
        spawn(
            self._binaries["kube-proxy"],
            f"--kubeconfig={self._pki / f'{self.name}-proxy.kubeconfig'}",
            f"--hostname-override={self.name}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={self.addresses.pods}",
            "--healthz-bind-address=127.0.0.1:10256",
            # It may not write the machine's connection tracking settings, and dies when it tries.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def ctr(self, must: Callable[..., str], *arguments: str) -> None:
        """Run containerd's own client. Raises GroundFailed."""
        must(self._binaries["ctr"], f"--address={node_files.socket(self.ground)}", *arguments)

    def _write_files(self) -> None:
        ground, folder = self.ground, self.ground.folder
        plugins = self._binaries.folder(*CNI)
        runc = shutil.which("runc", path=_PATH) or "runc"
        (folder / "cni").mkdir()
        (folder / "cni" / "pods.conflist").write_text(node_files.network(ground, self.addresses))
        (folder / "containerd.toml").write_text(node_files.containerd(ground, runc, plugins))
        (folder / "kubelet.json").write_text(
            node_files.kubelet(ground, self.addresses, self._pki, self.name, self._dns)
        )
        (folder / "resolv.conf").write_text("")
        # An image without a registry in its name is one of docker.io's.
        mirrored = node_files.registries(ground) / "docker.io"
        mirrored.mkdir(parents=True)
        (mirrored / "hosts.toml").write_text(node_files.mirror(self._registry))

    def _start_containerd(self, spawn: Spawn, must: Callable[..., str]) -> None:
        programs = self._binaries.folder(*CONTAINERD)
        child = spawn(
            programs / "containerd",
            f"--config={self.ground.folder / 'containerd.toml'}",
            # It finds its shim by PATH.
            environment={"PATH": f"{programs}:{_PATH}"},
        )
        child.wait_until(lambda: self._answers(must), "containerd's socket")
        pause = images.archive(
            self.ground.folder / "pause.tar",
            node_files.PAUSE,
            {"/pause": self._binaries["pause"]},
            entrypoint=["/pause"],
        )
        self.ctr(must, "--namespace=k8s.io", "images", "import", str(pause))

    def _answers(self, must: Callable[..., str]) -> bool:
        try:
            self.ctr(must, "version")
        except GroundFailed:
            return False
        return True
