"""What a server of a test finds where its process is a fork: all that it would find in a new one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.ground.patience import scaled

import fork_server
from fork_server import FAR, ForkedProcess, Spares
from process_tree import children

PROBE = """
import atexit, gc, json, os, resource, signal, sys, threading
from pathlib import Path
from slipway.processes import start_module

FAR = {FAR}
print(json.dumps({
    "arguments": sys.argv,
    "command line": Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0"),
    "files": [file for file in os.listdir("/proc/self/fd") if int(file) < FAR],  # and the listing
    "folder": os.getcwd(),
    "group": os.getpgid(0) == os.getsid(0),
    "main": [__name__, sys.modules["__main__"].__file__, sys.path[0]],
    "environment": sorted(os.environ.items()),
    "garbage": [gc.isenabled(), gc.get_threshold()],
    "signals": [sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
                [str(signal.getsignal(number)) for number in range(1, 32)]],
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "threads": threading.active_count(),
}), flush=True)
if "start" in sys.argv:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
    os.environ["VLLM_SAID"] = "to the child"
    read, write = os.pipe()
    child = start_module("probe", None, [write])
    os.close(write)
    assert Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text() == f"{child.pid} "
    print(json.dumps(child.wait()))
    print("its pipe is at its end", os.read(read, 1) == b"")
if "wait" in sys.argv:
    signal.pause()
atexit.register(print, "at the exit")
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe.py").write_text(PROBE.replace("{FAR}", str(FAR)))
    monkeypatch.chdir(tmp_path)


def ended(*arguments: str, spares: Spares | None) -> tuple[int, str]:
    with ForkedProcess(("probe", *arguments), stdout=subprocess.PIPE, spares=spares) as process:
        assert process.stdout is not None
        return process.wait(scaled(60)), process.stdout.read()


@pytest.mark.parametrize("arguments", [("a", "ö", ""), ("start",)], ids=["itself", "what it starts"])
def test_a_fork_is_as_a_new_process(arguments: tuple[str, ...]) -> None:
    status, said = ended(*arguments, spares=None)
    assert status == 7
    assert said.endswith("at the exit\n")
    assert ended(*arguments, spares=[[]] * arguments.count("start")) == (status, said)


def test_beyond_the_spares_processes_are_new() -> None:
    assert ended("start", spares=[]) == ended("start", spares=[[]])


def begun(spares: Spares | None) -> ForkedProcess:
    process = ForkedProcess(("probe", "wait"), stdout=subprocess.PIPE, spares=spares)
    assert process.stdout is not None
    json.loads(process.stdout.readline())
    return process


@pytest.mark.parametrize("spares", [None, [], [[[]]]], ids=["new", "forked", "with spares"])
def test_its_end_is_told_as_a_child_s(spares: Any) -> None:
    with begun(spares) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(60)) == process.returncode == process.poll() == -signal.SIGTERM


ASKING = """
import signal, subprocess
from fork_server import ForkedProcess

asked = [
    ForkedProcess(("probe", "wait"), stdout=subprocess.PIPE, spares=spares) for spares in (None, [[[]]])
]
for process in asked:
    process.stdout.readline()
print(*(process.pid for process in asked), flush=True)
signal.pause()
"""


def test_all_end_with_a_killed_process_that_asked_for_them() -> None:
    path = os.pathsep.join([str(Path(fork_server.__file__).parent), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", ASKING],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as asking:
        assert asking.stdout is not None
        new, forked = map(int, asking.stdout.readline().split())
        (server,) = children(asking.pid)
        assert children(server) == [new, forked]
        assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1  # no thread is lost in a fork
        (spare,) = children(forked)
        left = {os.pidfd_open(pid): pid for pid in (server, new, forked, spare)}
        asking.kill()
    ends = select.poll()
    for file in left:
        ends.register(file, select.POLLIN)
    while left:
        ended = ends.poll(60_000)
        assert ended, f"still there: {left}"
        for file, _ in ended:
            ends.unregister(file)
            os.close(file)
            del left[file]


def test_what_an_import_may_have_read_cannot_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.curdir)
    with pytest.raises(AssertionError, match="PYTHONPATH"):
        ForkedProcess(("probe",), spares=[])
    assert ended(spares=None)[0] != 0  # there, slipway is not found
