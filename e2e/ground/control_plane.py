"""etcd, kube-apiserver and kube-controller-manager in a network namespace of their own."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from e2e.ground import audit, fakes, guardian, namespaces
from e2e.ground.build import Binaries, source
from e2e.ground.children import Child, GroundFailed
from e2e.ground.names import (
    API_PORT,
    V4,
    Addresses,
    Ground,
)
from e2e.ground.patience import at_most, scaled
from e2e.ground.pki import Authority
from e2e.ground.remains import claim, clear

SERVER = f"https://127.0.0.1:{API_PORT}"
_ETCD = "http://127.0.0.1:2379"


class ControlPlane:
    """A Kubernetes API with its controllers and no node: objects live, workloads stay pending.

    Use it as a context manager. Nothing that it started outlives the process that made it.
    """

    def __init__(self, binaries: Binaries, addresses: Addresses = V4) -> None:
        self.binaries = binaries
        self.addresses = addresses
        self.ground = Ground.fresh()
        self.folder = self.ground.folder
        self.logs = self.folder / "logs"
        self._children: list[Child] = []
        self._api: Child | None = None
        self._controllers: Child | None = None
        self._scheduler: Child | None = None
        self._kwok: Child | None = None

    def __enter__(self) -> Self:
        # Before anything starts: a first build takes minutes.
        for name in self.programs():
            self.binaries[name]
        self.folder.mkdir(mode=0o755)
        claim(self.ground)
        self._guardian = guardian.start(self.ground)
        try:
            self.logs.mkdir()
            namespaces.create(self.ground.netns, self.addresses.network)
            self._certify()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Nothing is worth an orderly end: the way out is the guardian's, and so every run proves it.
        clear(self.ground)
        for process in (*(child.process for child in self._children), self._guardian):
            process.kill()
            process.wait()

    @property
    def name(self) -> str:
        """The ground's unique name, also its namespace's under /run/netns."""
        return self.ground.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; it works inside the namespace only."""
        return self.folder / "pki" / "admin.kubeconfig"

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """What kubectl prints. Raises GroundFailed with its complaint."""
        return self.must(self.binaries["kubectl"], *arguments, input=input)

    def must(self, *argv: str | Path, **options: Any) -> str:
        """What a command inside the namespace prints. Raises GroundFailed with its complaint."""
        done = self.run(*argv, capture_output=True, text=True, **options)
        if done.returncode:
            line = " ".join([Path(argv[0]).name, *map(str, argv[1:])])
            raise GroundFailed(
                f"`{line}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()}"
            )
        return str(done.stdout)

    def run(self, *argv: str | Path, **options: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` inside the namespace with KUBECONFIG set; `env` adds to the environment."""
        options["env"] = self._environment(options.get("env"))
        return subprocess.run(namespaces.within(self.ground.netns, *argv), **options)

    def popen(self, *argv: str | Path, **options: Any) -> subprocess.Popen[Any]:
        """`subprocess.Popen` inside the namespace with KUBECONFIG set; ends with the ground."""
        options["env"] = self._environment(options.get("env"))
        return subprocess.Popen(namespaces.within(self.ground.netns, *argv), **options)

    def inside(self) -> AbstractContextManager[None]:
        """Put the calling thread into the namespace, for a client in this process."""
        return namespaces.entered(self.ground.netns)

    def fetch(self, url: str, patience: float = 5) -> bytes:
        """What a plain HTTP server inside the namespace answers. Raises OSError when it does not."""
        with self.inside(), urllib.request.urlopen(url, timeout=scaled(patience)) as answer:
            return bytes(answer.read())

    def kubeconfig_for(self, user: str, group: str | None = None) -> Path:
        """A kubeconfig for another user, who has the rights that RBAC gives them and no others."""
        file = f"user-{user.replace(':', '-')}"
        return self.authority.kubeconfig(file, SERVER, user, group)

    def audit(self) -> list[dict[str, Any]]:
        """Every request that the API server answered so far, as audit events without bodies."""
        return audit.read(self.logs / "audit.log")

    def stop_api(self, abruptly: bool = False) -> None:
        """Take API server and controllers away, `abruptly` like a power cut. etcd keeps the objects."""
        for child in (self._controllers, self._api):
            if child is not None:
                child.stop(10 if child is self._api and not abruptly else 0)
                self._children.remove(child)
        self._controllers = self._api = None

    def start_api(self, *flags: str) -> None:
        """Start the API server, with these flags after its own; when it is ready, start the controllers.

        Controllers that had lived through an outage would be deaf for up to a minute more: they wait
        longer from try to try.
        """
        if self._api is not None:
            raise GroundFailed("The API server runs already: stop_api() first.")
        self._api = self.spawn(*self._api_command(), *flags)
        self._api.wait_until(self._api_ready, "readiness")
        self._controllers = self._start_controllers()

    def kwok(self, count: int = 1, devices: Mapping[str, int] | None = None, pool: str = "fake") -> None:
        """Add nodes without machines, `fake-0` and on; pods are scheduled onto them and pretend to run.

        devices  such as {"nvidia.com/gpu": 8}, of each node
        pool     a label of theirs, and how their names begin
        """
        self._start_scheduler()
        if self._kwok is None:
            stages = self.folder / "kwok.yaml"
            stages.write_text(self.kubectl("kustomize", str(source("cluster", fakes.MODULE) / fakes.STAGES)))
            self._kwok = self.spawn(
                self.binaries["kwok"],
                f"--kubeconfig={self.kubeconfig}",
                f"--config={stages}",
                "--manage-all-nodes=false",
                f"--manage-nodes-with-annotation-selector={fakes.MARK}=fake",
                f"--node-ip={self.addresses.node}",
                # Without leases to renew, the controllers take the nodes for dead after 50 s.
                "--node-lease-duration-seconds=40",
            )
        self.kubectl("apply", "-f", "-", input=fakes.nodes(count, devices or {}, pool))
        wait = ("wait", "nodes", "-l", "type=kwok", "--for=condition=Ready", at_most(120))
        self.kubectl(*wait)

    def programs(self) -> tuple[str, ...]:
        return ("etcd", "kube-apiserver", "kubectl", "kube-controller-manager")

    def spawn(self, *argv: str | Path, environment: dict[str, str] | None = None) -> Child:
        """Start a part of the ground, which ends with it. `Child.wait_until` tells when it is ready."""
        child = Child.start(self.ground.netns, self.logs, list(argv), environment)
        self._children.append(child)
        return child

    def until(self, holds: Callable[[], bool], what: str, patience: float = 60) -> None:
        """Poll the cluster until `holds`, while its API server lives. Raises GroundFailed."""
        if self._api is None:
            raise GroundFailed(f"{what} cannot be waited for: the API server is stopped.")
        self._api.wait_until(holds, what, patience)

    def _start(self) -> None:
        self.spawn(
            self.binaries["etcd"],
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            # The objects need not survive the machine.
            "--unsafe-no-fsync",
        )
        self.start_api()
        self.until(self._accounts_exist, "the service account `default`")

    def _certify(self) -> None:
        self.authority = Authority(self.folder / "pki")
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self.authority.issue(
            "apiserver",
            "kube-apiserver",
            hosts=(*names, "127.0.0.1", self.addresses.node, self.addresses.first_service),
        )
        self.authority.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        self.authority.signing_pair("accounts")
        self.authority.kubeconfig("admin", SERVER, "kubernetes-admin", "system:masters")
        self.authority.kubeconfig("controllers", SERVER, "system:kube-controller-manager")
        self.authority.kubeconfig("scheduler", SERVER, "system:kube-scheduler")
        (self.folder / "audit.yaml").write_text(audit.POLICY)

    def _api_command(self) -> list[str | Path]:
        pki = self.folder / "pki"
        return [
            self.binaries["kube-apiserver"],
            f"--etcd-servers={_ETCD}",
            f"--secure-port={API_PORT}",
            f"--advertise-address={self.addresses.node}",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            # `logs` and `exec` would look up the node's name, which no DNS knows.
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki / 'accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={self.addresses.services}",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.logs / 'audit.log'}",
            "--audit-log-maxsize=100000",  # megabytes: a second file would begin at 100, and nobody reads it
            # A drain that clients could notice: the tests of outages want one second, not sixty.
            "--shutdown-delay-duration=0s",
        ]

    def _start_controllers(self) -> Child:
        pki = self.folder / "pki"
        return self.spawn(
            self.binaries["kube-controller-manager"],
            f"--kubeconfig={pki / 'controllers.kubeconfig'}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'accounts.key'}",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={self.addresses.pods}",
            # By default each controller asks 20 times a second: thousands of objects would take an hour.
            "--kube-api-qps=300",
            "--kube-api-burst=600",
        )

    def _start_scheduler(self) -> None:
        if self._scheduler is None:
            self._scheduler = self.spawn(
                self.binaries["kube-scheduler"],
                f"--kubeconfig={self.folder / 'pki' / 'scheduler.kubeconfig'}",
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
            )

    def _api_ready(self) -> bool:
        return self._asks("get", "--raw=/readyz")

    def _accounts_exist(self) -> bool:
        return self._asks("get", "serviceaccount/default", "--namespace=default")

    def _asks(self, *arguments: str) -> bool:
        kubectl = self.binaries["kubectl"]
        done = self.run(kubectl, "--request-timeout=5s", *arguments, capture_output=True)
        return done.returncode == 0

    def _environment(self, added: dict[str, str] | None) -> dict[str, str]:
        # kubectl keeps what a server has by its address, and that is the same in every ground.
        own = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.folder / "kubectl")}
        return {**os.environ, **own, **(added or {})}
