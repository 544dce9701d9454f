"""Processes that start without their imports: forks of one process that has imported all that a server does.

A server and its engine spend nearly all of their start on imports, each on its own. A test's process has one
fork server, which is started when it is first needed. Each process that a test asks for is a child of that
one, with everything else as a new interpreter has it. It starts processes of its own in the same way: as many
*spares* as it will need are forked with it, and wait until it tells them what to run.

A process that ends or is killed takes along what it started; so does the test's process.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import F_DUPFD_CLOEXEC, fcntl
from functools import cache
from pathlib import Path
from socket import AF_UNIX, SHUT_RDWR, SOCK_SEQPACKET, recv_fds, send_fds, socket, socketpair
from types import SimpleNamespace
from typing import IO, Any

IMPORTED = (
    "encodings.idna",
    "encodings.unicode_escape",
    "slipway.api.headless",
    "slipway.api.lifecycle",
    "slipway.api.process",
    "slipway.api.server",
    "slipway.api.supervisor",
    "slipway.batch.run",
    "slipway.bench.latency",
    "slipway.bench.throughput",
    "slipway.cli.bench",
    "slipway.cli.main",
    "slipway.cli.run_batch",
    "slipway.cli.serve",
    "slipway.engine.grammar",
    "slipway.engine.start",
    "slipway.engine.team",
    "slipway.engine.tunnel",
    "slipway.fit.at_start",
    "slipway.model.families",
    "slipway.schemes.notices",
    "slipway.worker.cpu",
    "slipway.worker.drafts.plan",
    "slipway.worker.planning",
    "uvicorn.lifespan.off",
)
"""Modules that import all that the processes of a server do. None of them is run as a program, as
`slipway.engine.rank` is."""

WHOLE = ("slipway.model.families", "slipway.text.parse.formats")
"""Packages. The model and the arguments decide which modules a server imports; here, all are imported."""

SEEN_LATE = (
    *("NO_PROXY", "OPENAI_API_KEY", "OTEL_", "PYTEST_", "SLIPWAY_", "TORCHINDUCTOR_", "VLLM_"),
    "OMP_NUM_THREADS",  # numpy's own library alone reads it when it is imported
)
"""Prefixes of the environment variables that may differ: the imports do not depend on them."""

AT_START = dict(os.environ)
"""The environment before a test changed it."""

Spares = list["Spares"]
"""A tree: an entry for each process that a process will start, with the entries of that one's own."""

FAR = 900
"""The lowest descriptor of a line to a spare: what the process opens itself has the usual numbers."""

_MAX_REQUEST = 1 << 18
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
_PADDING = "-" * 4096
"""In the fork server's command line, which is as long as those of its forks can become."""


class ForkedProcess:
    """A process that the fork server started, as `subprocess.Popen` shows one."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        spares: Spares | None = None,
    ) -> None:
        """`python -m ARGS` in a session of its own.

        stdin, stdout, stderr  PIPE, DEVNULL, a descriptor, None for the caller's or, of `stderr`, STDOUT
        spares                 a list: the processes that it will start as forks; any more are executed.
                               None: the process itself is executed, without the imports.
        """
        self.args = [sys.executable, "-m", *args]
        self.returncode: int | None = None
        given = [_File.of(stdin, 0), _File.of(stdout, 1)]
        given.append(_File(given[1].theirs) if stderr == subprocess.STDOUT else _File.of(stderr, 2))
        self.stdin, self.stdout, self.stderr = (file.ours for file in given)
        environment = dict(os.environ if env is None else env)
        if spares is not None:
            assert_imports_suit(environment)
        start = Start(self.args[2:], environment, os.getcwd(), spares)
        self._line, ended = socketpair(AF_UNIX, SOCK_SEQPACKET)
        with ended:
            send_fds(_fork_server(), [start.written()], [*(file.theirs for file in given), ended.fileno()])
        for file in given:
            if file.opened:
                os.close(file.theirs)
        self.pid = int(self._line.recv(_MAX_REQUEST))

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.close()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._line, select.POLLIN)
            if not waiting.poll(None if timeout is None else max(0.0, timeout * 1000)):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            if told := self._line.recv(_MAX_REQUEST):  # nothing, to the second of two threads
                self.returncode = int(told)
        assert self.returncode is not None, "the fork server has ended"
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that comes from its pipes, and its end."""
        with ThreadPoolExecutor() as pool:
            read = [pool.submit(file.read) if file else None for file in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(self.pid, signal.SIGKILL)  # who has the other ends of the pipes
                raise
        out, err = (found.result() if found else "" for found in read)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the word of it is on its way
                os.kill(self.pid, number)

    def close(self) -> None:
        """Let go of the pipes and of the word of its end, which has been waited for."""
        self._line.close()
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class _File:
    """A standard stream of a process: its descriptor, and the other end of a pipe."""

    theirs: int
    ours: IO[str] | None = None
    opened: bool = False

    @classmethod
    def of(cls, given: int | None, number: int) -> _File:
        if given == subprocess.DEVNULL:
            return cls(os.open(os.devnull, os.O_RDWR), opened=True)
        if given != subprocess.PIPE:
            return cls(number if given is None else given)
        read, write = os.pipe()
        if number == 0:
            return cls(read, open(write, "w"), opened=True)
        return cls(write, open(read), opened=True)


def assert_imports_suit(environment: Mapping[str, str]) -> None:
    """A new process would have imported the same as the fork server."""
    differ = {name for name, _ in AT_START.items() ^ environment.items() if not name.startswith(SEEN_LATE)}
    assert not differ, f"an import may read {', '.join(differ)}: this process cannot be a fork"


@cache
def _fork_server() -> socket:
    """On which it takes requests. It ends when no process has this end any more."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), _PADDING],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=AT_START,
        )

    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # and not a fork of it
            ours.shutdown(SHUT_RDWR)
            process.wait()  # so that the time that its forks took is counted as this process's

    atexit.register(end)
    return ours


# From here on: in the fork server and its forks.


@dataclass
class Start:
    """What a process is to run. Its descriptors are sent with it."""

    words: list[str]
    """Of `python -m`."""
    environment: dict[str, str]
    folder: str
    spares: Spares | None
    inherited: list[int] = field(default_factory=list)
    """The numbers that its descriptors are to have."""
    blocked: list[int] = field(default_factory=list)
    """The signals that it is to begin with blocked."""

    def written(self) -> bytes:
        return json.dumps(vars(self)).encode()


def received(line: socket) -> tuple[Start, list[int]]:
    """The next request, and its descriptors. Ends the process where nobody is left to make one."""
    said, files, *_ = recv_fds(line, _MAX_REQUEST, 16)
    if not said:
        os._exit(0)
    return Start(**json.loads(said)), list(files)


def asked(line: socket) -> Start:
    """In each of this process's children, what it is to run."""
    running: dict[int, tuple[int, socket]] = {}
    """By a descriptor that becomes readable at its end: a child, and where its exit status is awaited."""
    events = select.poll()
    events.register(line, select.POLLIN)
    while True:
        for file, _ in events.poll():
            if file in running:
                events.unregister(file)
                bury(file, *running.pop(file))
                continue
            start, (*streams, ended) = received(line)
            if start.spares is not None:
                import_all()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                die_with(parent)
                os.setsid()
                for other in (line, *(told for _, told in running.values())):
                    other.close()
                for number in (ended, *running):
                    os.close(number)
                place(streams, range(3))
                return start
            for number in streams:
                os.close(number)
            telling = socket(fileno=ended)
            telling.send(str(pid).encode())
            watched = os.pidfd_open(pid)
            running[watched] = (pid, telling)
            events.register(watched, select.POLLIN)


def bury(watched: int, pid: int, telling: socket) -> None:
    os.close(watched)
    with telling:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):  # who asked for it may have gone
            telling.send(str(status).encode())


@cache
def import_all() -> None:
    for name in (*IMPORTED, *WHOLE):
        importlib.import_module(name)
    for name in WHOLE:
        for module in pkgutil.iter_modules(sys.modules[name].__path__, f"{name}."):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # no collection in a fork walks over it, which would copy it


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def place(files: Sequence[int], numbers: Iterable[int]) -> None:
    """Have these files under these numbers."""
    numbers = list(numbers)
    moved = [fcntl(file, F_DUPFD_CLOEXEC, max([3, *numbers]) + 1) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


@dataclass
class Spare:
    """A child of this process that waits to be told what it is."""

    pid: int
    line: socket

    def run(self, start: Start, files: Sequence[int]) -> subprocess.Popen[bytes]:
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
        with self.line:
            send_fds(self.line, [start.written()], files)
        pid = self.pid

        class Forked(subprocess.Popen[bytes]):
            def _execute_child(self, *_: Any) -> None:
                """Python starts a process here, and has all else that it knows of it from these."""
                self.pid = pid
                self._child_created = True

        return Forked(start.words)


def with_spares(start: Start) -> tuple[Start, list[Spare]]:
    """What this process is to run, and its children that wait to hear it: each returns from here, too."""
    spares: list[Spare] = []
    missing = list(start.spares or ())
    # What ends the group is not for those that are not part of it yet.
    blocked: set[int] = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    while missing:
        own = missing.pop(0)
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid:
            theirs.close()
            with ours:
                far = fcntl(ours, F_DUPFD_CLOEXEC, FAR)
            spares.append(Spare(pid, socket(fileno=far)))
            continue
        die_with(parent)
        for line in (ours, *(spare.line for spare in spares)):
            line.close()
        with theirs:
            start, files = received(theirs)
        place([os.open(os.devnull, os.O_RDONLY), *files], [0, *start.inherited])
        spares, missing, blocked = [], list(own), set(start.blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return start, spares


def show_as(words: Sequence[str]) -> None:
    """Have the system's lists of processes show this command line, as far as there is room."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(stat[45]), int(stat[46])
    line = b"\0".join(map(os.fsencode, words))[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, line, len(line))


def become(start: Start) -> None:
    """All that the module would find in a new process, but for what is imported."""
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.folder)
    command = [sys.executable, "-m", *start.words]
    if start.spares is None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and so would a child
            signal.signal(number, signal.SIG_DFL)
        os.execve(sys.executable, command, os.environ)
    show_as(command)
    sys.path[0] = os.getcwd()
    sys.argv[:] = ["-m", *start.words[1:]]  # its file's name takes the first place


def main() -> None:
    start, spares = with_spares(asked(socket(fileno=int(sys.argv[1]))))
    become(start)

    def popen(command: list[str], *, pass_fds: Sequence[int], stdin: int) -> subprocess.Popen[bytes]:
        """How a process of the server is started by `slipway.processes`."""
        if not spares:
            return subprocess.Popen(command, pass_fds=pass_fds, stdin=stdin)
        blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
        environment = dict(os.environ)
        told = Start(command[2:], environment, os.getcwd(), [], list(pass_fds), blocked)
        return spares.pop(0).run(told, pass_fds)

    processes: Any = importlib.import_module("slipway.processes")
    processes.subprocess = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
    runpy.run_module(start.words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
