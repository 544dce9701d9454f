"""Containers of the tests: podman in the foreground, so that a container ends with whoever started it."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from e2e.ground.children import ENDS_WITH_US
from e2e.ground.patience import scaled

# runc and these limits: crun and podman's defaults ask for more than a small virtual machine allows.
PODMAN = ("podman", *(("--runtime", "runc") if shutil.which("runc") else ()))
LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=1000:1000")


class ContainerFailed(Exception):
    """The container ended before it was ready; the message is its log."""


class Container:
    """`podman run` of `command`: a whole line from `podman` on. It is ended at the end of the block.

    A terminal is given to podman where the line asks for one (`-it`). `podman` gets SIGTERM when the test
    run dies, and passes it on: the server drains, ends, and `--rm` removes it.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, *, environ: dict[str, str] | None = None
    ) -> None:
        named = "--name" in command
        self.name = command[command.index("--name") + 1] if named else f"slipway-test-{uuid4().hex[:12]}"
        own = LIMITS if named else (*LIMITS, "--name", self.name)
        words = [*PODMAN, "run", *own, *command[command.index("run") + 1 :]]
        self.log = folder / f"{self.name}.log"
        self._terminal = pty.openpty() if "-it" in command else None
        with self.log.open("wb") as log:
            self._podman = subprocess.Popen(
                [*ENDS_WITH_US, *words],
                cwd=folder,
                env={**os.environ, **(environ or {})},
                stdin=self._terminal[1] if self._terminal else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run([*PODMAN, "rm", "--force", "--time", "0", self.name], capture_output=True, check=False)
        self._podman.wait(scaled(30))
        for descriptor in self._terminal or ():
            os.close(descriptor)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = scaled(60)) -> int:
        """The exit status of what ran inside. Raises subprocess.TimeoutExpired."""
        return self._podman.wait(seconds)

    def signal(self, name: str) -> None:
        """Send it to the first process; nothing happens where that has ended."""
        subprocess.run([*PODMAN, "kill", "--signal", name, self.name], capture_output=True, check=False)

    def inside(self, *words: str) -> str:
        """What a command in the container prints."""
        command = [*PODMAN, "exec", self.name, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def wait_until_running(self, seconds: float = 60) -> None:
        """Until its first process exists. Raises ContainerFailed."""
        asked = [*PODMAN, "inspect", "--format", "{{.State.Status}}", self.name]
        deadline = time.monotonic() + scaled(seconds)
        while time.monotonic() < deadline:
            if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == "running":
                return
            time.sleep(0.05)
        raise ContainerFailed(f"was not running after {seconds:g} s:\n{self.output()}")

    def wait_for(self, url: str, seconds: float = 120) -> None:
        """Until `url` answers with 200. Raises ContainerFailed with the log."""
        deadline = time.monotonic() + scaled(seconds)
        while time.monotonic() < deadline:
            if self._podman.poll() is not None:
                raise ContainerFailed(f"ended with {self._podman.returncode}:\n{self.output()}")
            try:
                with urllib.request.urlopen(url, timeout=scaled(5)) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        raise ContainerFailed(f"{url} did not answer in {seconds:g} s:\n{self.output()}")
