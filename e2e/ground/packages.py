"""What Debian packages and rights the ground needs of the machine, said in sentences when they lack."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
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
    done = subprocess.run(["tools/packages.sh", *packages], cwd=_ROOT, capture_output=True, text=True)
    return f"The ground needs {', '.join(packages)}.\n{done.stderr[-2000:]}" if done.returncode else None


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
