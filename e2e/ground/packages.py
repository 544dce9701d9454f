"""What Debian packages and rights the ground needs of the machine, said in sentences when they lack."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# A command that the ground runs, and the package that brings it.
CONTROL_PLANE = {"ip": "iproute2", "nsenter": "util-linux", "umount": "mount"}
NODE = {
    **CONTROL_PLANE,
    "runc": "runc",
    "nft": "nftables",
    "busybox": "busybox-static",
    "buildah": "buildah",
}
IMAGES = {
    "runc": "runc",
    "buildah": "buildah",
    "podman": "podman",
    "debootstrap": "debootstrap",
    "setpriv": "util-linux",
}
BY_HAND = {**NODE, **IMAGES, "etcdctl": "etcd-client"}


def lacking(commands: dict[str, str]) -> list[str]:
    """The packages of the commands that this machine does not have."""
    return sorted(
        {package for command, package in commands.items() if not shutil.which(command, path=_SEARCH)}
    )


def install(commands: dict[str, str]) -> str | None:
    """Install what lacks where that is possible; otherwise the sentence that says what to type."""
    packages = lacking(commands)
    if not packages:
        return None
    line = f"apt-get install -y --no-install-recommends {' '.join(packages)}"
    if os.geteuid() or not shutil.which("apt-get"):
        return f"This machine lacks {', '.join(packages)}. Please type: sudo {line}"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with open(Path(tempfile.gettempdir()) / "slipway-packages.lock", "w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)  # apt gives up where another worker's apt is at work
        for command in ("apt-get update", line):
            done = subprocess.run(command.split(), env=quiet, capture_output=True, text=True)
            if done.returncode:
                return (
                    f"`{command}` failed, and the ground needs {', '.join(packages)}:\n{done.stderr[-2000:]}"
                )
    return None


def objection(commands: dict[str, str]) -> str | None:
    """Why this machine cannot carry the ground, or None: looked at before a test waits for it."""
    if os.geteuid():
        return (
            "The ground makes network namespaces and containers, which takes root: run the tests as root, "
            "in a container or virtual machine of their own if you like."
        )
    if missing := install(commands):
        return missing
    trial = f"slipway-trial-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True)
    if done.returncode:
        return f"This machine allows no network namespaces (`ip netns add`: {done.stderr.strip()})."
    subprocess.run(["ip", "netns", "del", trial], capture_output=True)
    return None
