"""A newcomer's walk: what the manual prints, pasted into a shell of the cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ground.build import cache
from e2e.ground.node import Cluster
from e2e.ground.patience import at_most, scaled
from e2e.images.release import Released
from e2e.operators import ROOT, undefine, until

PAGE = ROOT / "docs" / "kubernetes.md"


def blocks(heading: str) -> list[str]:
    """The commands of a section of the page, block by block."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def walk(cluster: Cluster, released: Released, tmp_path: Path) -> Iterator[Walk]:
    cluster.start_dns()
    walk = Walk(cluster, tmp_path)
    yield walk
    walk.end()


class Walk:
    """Shells in the cluster's network, in the folder of the clone, with the programs of `make cluster`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        programs = [str(cluster.binaries[name].parent) for name in ("kubectl", "helm")]
        homes = {f"HELM_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        self.cluster = cluster
        self.environment = {"PATH": ":".join([*programs, os.environ["PATH"]]), **homes}
        self.behind: list[subprocess.Popen[bytes]] = []

    def paste(self, block: str) -> str:
        """What the commands print; each of them has to succeed."""
        return self.cluster.must("bash", "-euo", "pipefail", "-c", block, env=self.environment, cwd=ROOT)

    def leave_running(self, block: str, folder: Path) -> None:
        """Paste it into another terminal, and wait until it has printed something."""
        said = folder / "terminal"
        with said.open("wb") as output:
            shell = self.cluster.popen(
                "bash", "-c", f"exec {block}", env=self.environment, cwd=ROOT, stdout=output, stderr=output
            )
        self.behind.append(shell)
        until(lambda: said.read_text() or shell.poll() is not None, block)
        assert shell.poll() is None, said.read_text()

    def end(self) -> None:
        for shell in self.behind:
            shell.send_signal(signal.SIGTERM)
            shell.wait(scaled(10))
        gone = ("--ignore-not-found", at_most(120))
        self.paste("helm uninstall slipway --namespace slipway-system --ignore-not-found --wait")
        undefine(self.cluster)
        self.cluster.kubectl("delete", "namespace", "slipway-system", *gone)


def test_the_first_model_is_served_by_the_commands_as_they_are_printed(walk, released, tmp_path):
    install, forward, ask, change = blocks("A first model")
    said = walk.paste(install)
    assert "condition met" in said.splitlines()[-1]
    header, row = walk.paste("kubectl get inferenceservices").splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "REASON", "URL", "AGE"]
    cells = row[: header.index("AGE")].split(maxsplit=3)
    assert cells[:3] == ["demo", released.demo_model, "True"]
    assert cells[3].split("  ")[0] == "Serving: 1 of 1 replicas admit requests"
    look = f"import urllib.request; print(urllib.request.urlopen('{cells[3].split()[-1]}/health').status)"
    assert walk.paste(f'kubectl exec deployment/demo -- python -c "{look}"') == "200\n"
    walk.leave_running(forward, tmp_path)
    chunks = [json.loads(line[6:]) for line in walk.paste(ask).splitlines() if line.startswith("data: {")]
    assert "Paris" in "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert len(chunks) > 3
    changed = walk.paste(change)
    assert "maxNumSeqs" in changed
    assert changed.splitlines()[-1] == 'inferenceservice.slipway.dev "demo" deleted from default namespace'


def test_a_cluster_by_hand_is_entered_and_ended(binaries, carries_node, tmp_path):
    """With a cache of its own beside the built programs: someone may have such a cluster up."""
    for built in cache().glob("*-*"):
        (tmp_path / built.name).symlink_to(built)

    def ground(command: str, **options: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLIPWAY_E2E_CACHE": str(tmp_path), "SHELL": "/bin/sh"}
        argv = [sys.executable, "-m", "e2e.ground", command]
        return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, **options)

    started = ground("up")
    try:
        assert started.returncode == 0, started.stderr
        assert "make cluster-shell" in started.stdout
        assert "up already" in ground("up").stdout
        inside = ground("shell", input="kubectl get nodes; helm version --short; exit 7")
        assert inside.returncode == 7
        assert "Ready" in inside.stdout
    finally:
        assert "left nothing behind" in ground("down").stdout
    assert ground("shell").stderr == "No cluster is up. Please type: make cluster\n"
