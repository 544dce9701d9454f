"""Clear a ground away knowing nothing but its name: the one path that an orderly end and a kill share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from e2e.ground.names import PREFIX, Ground, parent
from e2e.ground.patience import scaled

_CGROUPS = Path("/sys/fs/cgroup")
# No setting moves these: containerd's shims listen in the one, CNI notes what it did in the other.
_SHIMS = "/run/containerd/s/"
_RESULTS = Path("/var/lib/cni/results")


def clear(ground: Ground) -> None:
    """End every process of the ground, then remove its mounts, control groups, namespace and files.

    Safe to repeat, and to run while another does the same.
    """
    sockets = _shim_sockets(ground)
    _end(ground)
    for point in _mounts(ground.folder):
        subprocess.run(["umount", "-l", point], capture_output=True)
    for group in _groups(ground):
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    # The namespace goes with its interfaces, routes and packet filter rules.
    subprocess.run(["ip", "netns", "del", ground.name], capture_output=True)
    for path in (*sockets, *_notes(ground)):
        path.unlink(missing_ok=True)
    shutil.rmtree(ground.folder, ignore_errors=True)


def sweep() -> None:
    """Clear away the grounds whose owner is gone, such as after a power cut or a kill of the guardian too."""
    for folder in parent().glob(f"{PREFIX}*"):
        ground = Ground(folder.name)
        with contextlib.suppress(FileNotFoundError):
            pid, birth = ground.owner.read_text().split()
            if born(int(pid)) != birth:
                clear(ground)


def claim(ground: Ground) -> None:
    """Write down that this process owns the ground."""
    unfinished = ground.owner.with_suffix(".new")
    unfinished.write_text(f"{os.getpid()} {born(os.getpid())}")
    unfinished.rename(ground.owner)


def born(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; None where there is none. Pids are reused."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


def _end(ground: Ground) -> None:
    end = time.monotonic() + scaled(15)
    while (pids := processes(ground)) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes(ground: Ground) -> set[int]:
    """The processes in the ground's network namespace and in its containers, this one left out."""
    pids = {int(line) for group in _groups(ground) for line in _members(group)}
    with contextlib.suppress(OSError):
        namespace = os.stat(ground.netns)
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(entry / "ns/net"), namespace):
                    pids.add(int(entry.name))
    return {pid for pid in pids if pid != os.getpid() and not _zombie(pid)}


def _zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def _shim_sockets(ground: Ground) -> list[Path]:
    """The sockets that the ground's own shims listen on: each network namespace lists those made in it."""
    for pid in processes(ground):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), os.stat(ground.netns)):
                lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()
                return [Path(line.split()[-1]) for line in lines if f" {_SHIMS}" in line]
    return []


def _notes(ground: Ground) -> list[Path]:
    """CNI's notes on the ground's pods: each holds the path of the pod's network namespace."""
    found: list[Path] = []
    for note in _RESULTS.glob("*"):
        with contextlib.suppress(OSError):
            if f"{ground.folder}/" in note.read_text(errors="replace"):
                found.append(note)
    return found


def _groups(ground: Ground) -> list[Path]:
    """The control groups of the ground's containers, whose names runc noted in its folder.

    Each is in every hierarchy: version 1 has several.
    """
    places = [_CGROUPS, *(entry for entry in _CGROUPS.iterdir() if entry.is_dir())]
    names = [f"{note.parent.name}/{note.name}" for note in ground.folder.glob("runc/*/*")]
    return [place / name for place in places for name in names if (place / name).is_dir()]


def _members(group: Path) -> list[str]:
    lines: list[str] = []
    for folder, _, files in os.walk(group):
        if "cgroup.procs" in files:
            with contextlib.suppress(OSError):
                lines += Path(folder, "cgroup.procs").read_text().split()
    return lines


def _mounts(folder: Path) -> list[str]:
    """Mount points under the folder, the innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [point for point in points if point.startswith(f"{folder}/")]
    return sorted(inside, key=len, reverse=True)
