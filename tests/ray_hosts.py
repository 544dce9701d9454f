"""A Ray cluster over hosts of their own, with a token: the first host has its head."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.ground.patience import scaled

from namespaces import Host, hosts

_PORT = 6379
_STORE = 80 << 20
"""Bytes of shared memory on each host: the least that Ray takes."""


@dataclass(frozen=True)
class RayHosts:
    """Hosts of a cluster, and the environment in which a program finds it and is let in."""

    hosts: list[Host]
    environment: dict[str, str]
    folder: Path

    def drive(self, program: str, *arguments: str | os.PathLike[str], **popen: Any) -> subprocess.Popen[str]:
        """Run a Python program on the first host, whose output is read line by line."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", program, *arguments]
        return self.hosts[0].start(*command, **{"env": self.environment, **pipes, **popen})


@contextmanager
def ray_hosts(folder: Path, cpus: int, number: int = 2) -> Iterator[RayHosts]:
    """cpus: of each host

    folder: short, for paths of sockets are; programs in its bin are found before others
    """
    with hosts(number) as made:
        head = f"{made[0].address}:{_PORT}"
        tests = str(Path(__file__).parent)
        environment = os.environ | {
            "RAY_ADDRESS": head,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(folder),
            "PATH": os.pathsep.join(
                map(str, (folder / "bin", Path(sys.executable).parent, os.environ["PATH"]))
            ),
            "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]),
        }
        ours = RayHosts(made, environment, folder)
        for host in made:
            role = ["--head", f"--port={_PORT}", "--include-dashboard=false"]
            command = [
                *("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
                *(role if host is made[0] else [f"--address={head}"]),
                *(f"--node-ip-address={host.address}", f"--num-cpus={cpus}", "--num-gpus=0"),
                *(f"--object-store-memory={_STORE}", f"--temp-dir={folder}"),
            ]
            log = folder / f"{host.name}.log"
            with log.open("wb") as output:
                host.start(sys.executable, *command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            _wait_until(lambda log=log: "Ray runtime started" in log.read_text(), log)
        yield ours


def _wait_until(ready: Any, log: Path, patience: float = 60) -> None:
    end = time.monotonic() + scaled(patience)
    while not ready():
        assert time.monotonic() < end, f"Ray did not start:\n{log.read_text()}"
        time.sleep(0.1)
