"""Services that fail on a real node, and what their status says of it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.ground import images
from e2e.ground.node import Cluster
from e2e.ground.patience import at_most
from e2e.operators import Namespace, Object, Operator, define, service, undefine, until

KIND = "inferenceservices.slipway.dev"
PATIENCE = 120.0
BUSYBOX = "/bin/busybox"
SERVE = f"{BUSYBOX} httpd -f -p 8000 -h /www"
IDLE = f"while true; do {BUSYBOX} sleep 0.2; done"
# A shell takes the runtime's arguments, which follow, for its own.
PROGRAMS: Mapping[str, Sequence[str]] = {
    "serves": (BUSYBOX, "sh", "-c", f"trap 'exit 0' TERM; {SERVE} & wait"),
    "grows": (BUSYBOX, "sh", "-c", "a=x; while true; do a=$a$a$a; done"),
    "ends": (BUSYBOX, "sh", "-c", "echo Out of luck; exit 77"),
    "fills": (
        *(BUSYBOX, "sh", "-c"),
        f"trap 'exit 143' TERM; {BUSYBOX} dd if=/dev/zero of=/cache/model bs=1M count=8; {IDLE}",
    ),
    "falls-silent": (
        *(BUSYBOX, "sh", "-c"),
        f"trap 'exit 0' TERM; {SERVE} & {BUSYBOX} sleep 6; kill $!; {IDLE}",
    ),
    "nothing": ("/bin/nothing",),
}
"""Small images by name: what stands in for the runtime where it is the cluster that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One failure. `summary` is the whole REASON column, as a pattern."""

    summary: str
    advice: str = ""
    """A part of the whole message."""
    stalled: bool = False
    """Whether a person has to act: kstatus then reads `Failed`."""
    program: str = "serves"
    """Of PROGRAMS."""
    spec: Object = field(default_factory=dict)

    def unmet(self, status: Object) -> list[str]:
        """What of this case a status does not say."""
        summary = str(status.get("summary") or "")
        conditions = {one["type"]: one for one in status.get("conditions") or ()}
        ready = conditions.get("Ready") or {"status": "", "reason": "", "message": ""}
        expected = {
            "summary": re.fullmatch(self.summary, summary) is not None and len(summary) <= 120,
            "reason": summary.startswith(f"{ready['reason']}: "),
            "advice": self.advice in ready["message"],
            "Ready=False": ready["status"] == "False",
            "Stalled": ("Stalled" in conditions) == self.stalled,
            "Reconciling": ("Reconciling" in conditions) != self.stalled,
        }
        return [what for what, holds in expected.items() if not holds]


@dataclass(frozen=True, slots=True)
class Failures:
    """A namespace of services that fail, and the operator that explains them."""

    cluster: Cluster
    operator: Operator
    namespace: Namespace
    images: Mapping[str, str] = field(default_factory=dict)
    """References by program."""

    def service(self, name: str, program: str = "serves", **spec: Any) -> Object:
        """An InferenceService that runs one of PROGRAMS, where `runtime` names no other image."""
        if "devices" in spec:  # by default they want more CPU and memory than this node may have
            spec = {"resources": {"cpu": "100m", "memory": "64Mi", "sharedMemory": "64Mi"}, **spec}
        return service(
            name, **{**spec, "runtime": {"image": self.images[program], **spec.get("runtime", {})}}
        )

    def apply(self, cases: Mapping[str, Case]) -> None:
        self.namespace.apply(*(self.service(name, case.program, **case.spec) for name, case in cases.items()))

    def status(self, name: str) -> Object:
        return dict(self.namespace.the(KIND, name).get("status") or {})

    def summary(self, name: str) -> str:
        """The REASON column."""
        return str(self.status(name).get("summary") or "")

    def until_summary(self, name: str, pattern: str, patience: float = PATIENCE) -> None:
        until(
            lambda: re.fullmatch(pattern, self.summary(name)),
            lambda: f"{name}: {self.summary(name)!r} is {pattern!r}",
            patience,
        )

    def until_status(self, name: str, case: Case) -> None:
        """Wait until the REASON column and the conditions say what the case wants, all in one look.

        Some fail and serve in turns: a second look may find them serving.
        """

        def lacking() -> str:
            status = self.status(name)
            unmet = case.unmet(status)
            return f"{name} does not say {unmet}: {status}" if unmet else ""

        until(lambda: not lacking(), lacking, PATIENCE)


def small_images(cluster: Cluster, folder: Path) -> dict[str, str]:
    """References of the images of PROGRAMS, which are in the cluster's registry then."""
    files: dict[str, Path | bytes] = {BUSYBOX: Path(BUSYBOX), "/www/live": b"", "/www/ready": b""}
    found = {}
    for name, entrypoint in PROGRAMS.items():
        path = images.archive(folder / f"{name}.tar", f"{name}:1", files, entrypoint=entrypoint)
        found[name] = cluster.push(path, f"{name}:1")
        path.unlink()
    return found


@contextmanager
def explaining(cluster: Cluster, folder: Path, **more: Any) -> Iterator[Failures]:
    """The CRD, an operator for the whole cluster, and a namespace; all of it goes again.

    more  what `Operator` takes by name
    """
    found = small_images(cluster, folder)
    define(cluster)
    unique = uuid.uuid4().hex[:8]
    namespace = Namespace(cluster, f"failures-{unique}")
    operator = Operator(cluster, folder, f"explains-{unique}", **more)
    try:
        operator.wait_active()
        yield Failures(cluster, operator, namespace, found)
        assert operator.forbidden() == set()
        assert "Traceback" not in operator.log.read_text(), operator.log.read_text()
    finally:
        operator.stop()
        # No new pod can be made in a namespace that ends, and none of these has anything to finish.
        cluster.kubectl("delete", "namespace", namespace.name, "--wait=false")
        namespace.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        cluster.kubectl("wait", "--for=delete", f"namespace/{namespace.name}", at_most(120))
        undefine(cluster)
