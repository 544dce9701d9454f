"""A cluster by hand: `python -m e2e.ground build [NAME …] | up [--released] | shell | down`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from e2e.ground import packages
from e2e.ground.build import Binaries, BuildFailed, build, cache
from e2e.ground.children import GroundFailed
from e2e.ground.names import REGISTRY, Ground
from e2e.ground.namespaces import within
from e2e.ground.node import Cluster
from e2e.ground.patience import scaled
from e2e.ground.programs import PROGRAMS
from e2e.ground.remains import born, sweep
from e2e.images.build import ImagesUnavailable, missing
from e2e.images.release import release

_ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.ground", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="compile programs into the cache; all of them by default")
    building.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    starting = commands.add_parser("up", help="start a one-node cluster that stays until `down`")
    commands.add_parser("shell", help="a shell in the running cluster's network, with KUBECONFIG set")
    commands.add_parser("down", help="end the cluster that `up` started")
    holding = commands.add_parser("hold", help="what `up` runs in the background")
    for parts in (starting, holding):
        parts.add_argument("--released", action="store_true", help="with the images of this tree")
    chosen = parser.parse_args()
    try:
        if chosen.command == "build":
            return _build(chosen.names)
        if chosen.command in ("up", "hold"):
            return (_up if chosen.command == "up" else _hold)(chosen.released)
        return _shell() if chosen.command == "shell" else _down()
    except (BuildFailed, GroundFailed, ImagesUnavailable) as failure:
        print(failure, file=sys.stderr)
        return 1


def _build(names: list[str]) -> int:
    if unknown := [name for name in names if name not in PROGRAMS]:
        print(
            f"No program is called {', '.join(unknown)}. There are: {', '.join(PROGRAMS)}.", file=sys.stderr
        )
        return 2
    if missing := packages.install(packages.BY_HAND if not names else {}):
        print(missing, file=sys.stderr)
        return 1
    for name in names or PROGRAMS:
        print(build(name, _say), flush=True)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _up(released: bool) -> int:
    if _running():
        print("A cluster is up already.\n" + _advice())
        return 0
    if objection := packages.objection(packages.NODE) or (missing() if released else None):
        print(objection, file=sys.stderr)
        return 1
    sweep()
    print("The first time, programs are compiled and images built: minutes of work for each.", flush=True)
    cache().mkdir(parents=True, exist_ok=True)
    log = cache() / "up.log"
    with open(log, "wb") as output:
        holder = subprocess.Popen(
            [sys.executable, "-m", "e2e.ground", "hold", *(["--released"] if released else [])],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    assert holder.stdout is not None
    try:
        for line in holder.stdout:
            print(line, end="", flush=True)
    except KeyboardInterrupt:
        # In a session of its own, it does not hear Ctrl-C; its guardian clears away what is there so far.
        holder.terminate()
        return 130
    if not _running():
        print(f"The cluster did not start:\n{log.read_text()[-4000:]}", file=sys.stderr)
        return 1
    print(_advice())
    return 0


def _hold(released: bool) -> int:
    """Keep a cluster until a signal asks for its end; the state file names it once it can be used.

    Standard output says what is going on, and is closed when that is over.
    """
    ended = threading.Event()
    for name in (*Cluster(Binaries()).programs(), "coredns", "helm"):
        build(name, _say)
    with Cluster(Binaries()) as cluster:
        _say("The cluster runs")
        cluster.start_dns()
        if released:
            release(cluster, _say)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        folders = [str(cluster.binaries[name].parent) for name in ("kubectl", "helm", "ctr")]
        state = {
            "pid": os.getpid(),
            "born": born(os.getpid()),
            "name": cluster.name,
            "kubeconfig": str(cluster.kubeconfig),
            "path": ":".join(dict.fromkeys([*folders, str(_ROOT / "bin")])),
        }
        unfinished = _state().with_suffix(".new")
        unfinished.write_text(json.dumps(state))
        unfinished.rename(_state())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        ended.wait()
        _state().unlink(missing_ok=True)
    return 0


def _shell() -> int:
    state = _running()
    if state is None:
        print("No cluster is up. Please type: make cluster", file=sys.stderr)
        return 1
    environment = {
        **os.environ,
        "KUBECONFIG": state["kubeconfig"],
        "PATH": f"{state['path']}:{os.environ.get('PATH', '')}",
    }
    shell = os.environ.get("SHELL", "/bin/sh")
    return subprocess.run(within(Ground(state["name"]).netns, shell), env=environment).returncode


def _down() -> int:
    state = _running()
    if state is None:
        print("No cluster is up.")
        return 0
    handle = os.pidfd_open(int(state["pid"]))
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    end = time.monotonic() + scaled(60)
    while _running() or Ground(state["name"]).folder.exists():
        if time.monotonic() > end:
            print(
                f"The cluster {state['name']} has not ended after 60 s; see {cache() / 'up.log'}.",
                file=sys.stderr,
            )
            return 1
        time.sleep(0.1)
    print("The cluster has ended, and left nothing behind.")
    return 0


def _state() -> Path:
    return cache() / "up.json"


def _running() -> dict[str, str] | None:
    """The state of the cluster that `up` started, while the process that holds it lives."""
    try:
        state = json.loads(_state().read_text())
    except FileNotFoundError:
        return None
    return dict(state) if born(int(state["pid"])) == state["born"] else None


def _advice() -> str:
    state = _running() or {}
    enter = f"nsenter --net=/run/netns/{state.get('name')}"
    return f"""\
The cluster is up, in a network of its own that only commands inside it reach:
  make cluster-shell              a shell there: kubectl, helm, ctr, slipway, KUBECONFIG; in each terminal one
  make cluster-down               its end
From any other shell:
  export KUBECONFIG={state.get("kubeconfig")} PATH={state.get("path")}:$PATH
  {enter} kubectl get nodes
  {enter} buildah push --tls-verify=false IMAGE docker://{REGISTRY}/IMAGE"""


if __name__ == "__main__":
    sys.exit(main())
