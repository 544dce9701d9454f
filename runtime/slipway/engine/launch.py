"""Starts an engine, in a process of its own or in a thread of this one.

Imports little: the process comes up while its parent imports the rest.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from typing import Protocol

import msgspec

from slipway.dist.beats import ENDED, Heartbeats
from slipway.engine.config import EngineConfig
from slipway.exits import ENGINE_DIED, WORKER_KILLED, ExitCode, how_ended
from slipway.processes import start_module
from slipway.temporary import socket_folder

SOCKET = "engine.sock"


class Parent(Protocol):
    """What knows the engine's process: this one, or the one that started both."""

    def post_mortem(self) -> tuple[str, ExitCode]:
        """What its end says, for one that died without a word. Waits for the end."""

    def stop(self, patience: float) -> None:
        """End it, where it is ours to end."""


class Address(msgspec.Struct, frozen=True):
    """Where an engine is reached, and what it is called."""

    socket_path: str
    rank: int = 0
    """Among engines that share requests."""
    name: str = "the engine"


class Launched(Parent, Protocol):
    """An engine of a server in its parent, wherever it runs."""

    address: Address
    folder: str
    """A private one of this host, while the server lives."""


class Engine(ABC):
    """An engine that this process starts: its socket, in a private folder, and the pipe that ends it."""

    def __init__(self, config: EngineConfig, rank: int) -> None:
        """Raises Exit where its socket has no place."""
        self._folder = socket_folder(SOCKET)
        self.folder = self._folder.name
        self.address = Address(os.path.join(self.folder, SOCKET), rank, config.name)
        self._of = f" of {config.name}" if config.is_one_of_several else ""
        self._named = f"process{self._of}" if self._of else "engine process"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address.socket_path)
        self._listener.listen(socket.SOMAXCONN)  # who comes while it imports waits in the queue
        self._parent, self._alive = os.pipe()  # ends with us, however we end

    @abstractmethod
    def post_mortem(self) -> tuple[str, ExitCode]:
        """What its end says, for one that died without a word. Waits for the end."""

    def stop(self, patience: float = 5) -> None:
        """End it. Closing the pipe asks; a process that has not ended `patience` seconds later is killed."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
            self._wait(patience)
            self._folder.cleanup()

    @abstractmethod
    def _wait(self, patience: float) -> None:
        """Wait for the end that has been asked for."""


class EngineProcess(Engine):
    """`python -m slipway.engine`: its configuration and the socket come as inherited descriptors."""

    def __init__(self, config: EngineConfig, rank: int = 0) -> None:
        super().__init__(config, rank)
        self._silent = ""
        """How it was lost, where it fell silent."""
        inherited = [self._listener.fileno(), self._parent]
        has_ranks = config.tensor_parallel_size * config.pipeline_parallel_size > 1
        own, beats = socket.socketpair() if has_ranks else (None, None)
        if beats is not None:
            inherited.append(beats.fileno())
        self._process = start_module("slipway.engine", config, inherited)
        os.close(self._parent)
        self._listener.close()
        if own is not None and beats is not None:
            beats.close()
            Heartbeats({0: own}, self._lose)

    def _lose(self, _: int, how: str) -> None:
        """The other ranks end where the first one is silent; nobody ends that one but who started it."""
        if how != ENDED:
            self._silent = how
            self._process.kill()

    def post_mortem(self) -> tuple[str, ExitCode]:
        if self._silent:
            self._process.wait()
            return f"Rank 0{self._of} (process {self._process.pid}) {self._silent}.", ENGINE_DIED
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"The {self._named} closed its socket and did not exit.", ENGINE_DIED
        code, how = how_ended(status)
        if code is WORKER_KILLED:
            return f"The {self._named} was killed (SIGKILL).", code
        return f"The {self._named} {how}; its log may say more.", code

    def _wait(self, patience: float) -> None:
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class EngineThread(Engine):
    """The same engine and the same messages, in this process."""

    def __init__(self, config: EngineConfig, rank: int = 0) -> None:
        from slipway.engine.start import run_engine

        super().__init__(config, rank)
        arguments = (config, self._listener, self._parent)
        self._thread = threading.Thread(target=run_engine, args=arguments, name="engine", daemon=True)
        self._thread.start()

    def post_mortem(self) -> tuple[str, ExitCode]:
        return "The engine's thread ended without a word.", ENGINE_DIED

    def _wait(self, patience: float) -> None:
        self._thread.join(timeout=5)  # whatever the patience: a thread cannot be killed
