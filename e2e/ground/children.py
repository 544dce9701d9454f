"""Programs that run as long as the ground does, each with a log file, ended by process id."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.ground.namespaces import within
from e2e.ground.patience import scaled

ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM")
"""In front of a command: it gets SIGTERM when the process that started it ends in any way."""


class GroundFailed(Exception):
    """A part of the ground did not start or died; the message holds the end of its log."""


@dataclass(slots=True)
class Child:
    """One running program of the ground."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls, netns: Path, logs: Path, argv: list[str | Path], environment: Mapping[str, str] | None = None
    ) -> Child:
        """Run `argv` in the namespace; its output is appended to `logs/NAME.log`."""
        name = Path(argv[0]).name
        log = logs / f"{name}.log"
        with open(log, "ab") as output:
            process = subprocess.Popen(
                within(netns, *argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                # Ctrl-C is for the test run, which ends the children in order.
                start_new_session=True,
            )
        return cls(name, log, process)

    def stop(self, patience: float = 10) -> None:
        """Ask it to end and wait for that; after `patience` seconds end it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(scaled(patience))
            return
        self.process.kill()
        self.process.wait()

    def wait_until(self, ready: Callable[[], bool], what: str, patience: float = 60) -> None:
        """Poll until `ready`. Raises GroundFailed with the log's end when it died or `patience` is over."""
        end = time.monotonic() + scaled(patience)
        while not ready():
            if self.process.poll() is not None:
                raise GroundFailed(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > end:
                raise GroundFailed(f"{self.name}: {what} did not come in {patience:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
