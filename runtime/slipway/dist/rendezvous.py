"""How the ranks of other hosts report to the first, each once: with a connection for what it is told, and
one for heartbeats.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from slipway import __version__
from slipway.dist.beats import BEAT, SILENCE
from slipway.dist.gate import Gate
from slipway.dist.hosts import address_of, ranks_of
from slipway.dist.mesh import Mesh
from slipway.dist.ports import listen
from slipway.dist.trust import Caller, Distrusted, Greeting, Refused
from slipway.engine.config import EngineConfig
from slipway.exits import BAD_ARGUMENTS, RANKS_MISSING, Exit

log = logging.getLogger("slipway.dist")

PATIENCE = 300.0
"""Seconds for all ranks to come."""
RETRY = 0.2
"""Seconds between attempts to reach the first host, which may start later."""
PURPOSES = ("control", "beats")
_MARK_BYTES = 3
_OWN = frozenset(
    [
        "rank",
        "node_rank",
        "first_device",
        "host_ip",
        "cluster_key_file",
        "machine_parts",
        "frontends",
        "hf_token",
        "download_dir",
        "threads",
        "processor_threads",
        "log_config_file",
        "profile_folder",
        "record",
        "prefix_hash_secret",
        "use_tqdm_on_load",
        "timed",
        "max_parallel_loading_workers",
    ]
)
"""What may differ from host to host."""


class Claim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a rank says that it is."""

    version: str
    nnodes: int
    node_rank: int
    rank: int
    marks: bytes
    """Of its arguments."""


class Arrived(NamedTuple):
    """A rank of another host."""

    control: socket.socket
    beats: socket.socket


def marks(config: EngineConfig) -> bytes:
    """A few bytes of every argument that ranks must have in common, so that a difference has a name."""
    return b"".join(
        hashlib.sha256(msgspec.json.encode(getattr(config, name), order="deterministic")).digest()[
            :_MARK_BYTES
        ]
        for name in _shared()
    )


def _shared() -> list[str]:
    return [name for name in EngineConfig.__struct_fields__ if name not in _OWN]


def _different(own: bytes, other: bytes) -> list[str]:
    cuts = range(0, len(own), _MARK_BYTES)
    pairs = zip(_shared(), cuts, strict=True)
    return [name for name, at in pairs if own[at : at + _MARK_BYTES] != other[at : at + _MARK_BYTES]]


class Rendezvous:
    """The first host's end: listens until all ranks of the others have come."""

    def __init__(self, config: EngineConfig, key: bytes) -> None:
        """Raises Exit where it cannot listen."""
        self._config = config
        self._mesh = Mesh.of(config)
        self._marks = marks(config)
        self._missing = {rank: node for node in range(1, config.nnodes) for rank in ranks_of(config, node)}
        """By rank, its node."""
        self._came: dict[int, dict[str, socket.socket]] = {rank: {} for rank in self._missing}
        self._changed = threading.Condition()
        self._gate = Gate(listen(address_of(config), config.master_port, "master_addr"), key, self)

    def wait(
        self, check: Callable[[], None] = lambda: None, patience: float | None = None
    ) -> dict[int, Arrived]:
        """Until all have come: their connections, by rank. Closes the port, whatever happens.

        check     called about every second, may raise
        patience  seconds; None: PATIENCE
        Raises Exit with those that are missing.
        """
        patience = PATIENCE if patience is None else patience
        end = time.monotonic() + patience
        try:
            with self._changed:
                while missing := self._absent():
                    if (left := end - time.monotonic()) <= 0:
                        raise self._not_come(missing, patience)
                    self._changed.wait(min(left, 1.0))
                    check()
                arrived = {rank: Arrived(**came) for rank, came in self._came.items()}
                self._came.clear()
                return arrived
        finally:
            self.close()

    def close(self) -> None:
        """Whoever has come and was not waited for is hung up on."""
        self._gate.close()
        for came in self._came.values():
            for connection in came.values():
                connection.close()

    def refusal(self, greeting: Greeting) -> str:
        """For the gate."""
        try:
            claim = msgspec.msgpack.decode(greeting.claim, type=Claim)
        except msgspec.DecodeError:
            return f"it is not of Slipway {__version__}, which node 0 has"
        if claim.version != __version__:
            return f"it has Slipway {claim.version}, and node 0 has {__version__}"
        if greeting.purpose not in PURPOSES:
            return f"it comes for {greeting.purpose!r}, which is not what ranks come for"
        return self._wrong(claim) or self._twice(claim, greeting.purpose)

    def _wrong(self, claim: Claim) -> str:
        who = f"rank {claim.rank} of node {claim.node_rank}"
        if claim.nnodes != self._config.nnodes:
            return f"{who} was started with --nnodes {claim.nnodes}, and node 0 with {self._config.nnodes}"
        if self._missing.get(claim.rank) != claim.node_rank:
            return f"there is no {who} in this server"
        if len(claim.marks) != len(self._marks):
            return f"{who} has other arguments than node 0"
        if different := _different(self._marks, claim.marks):
            return f"{who} was started with another {', '.join(different)} than node 0"
        return ""

    def _twice(self, claim: Claim, purpose: str) -> str:
        """One that has ended since it came makes room for another."""
        with self._changed:
            before = self._came[claim.rank].get(purpose) if self._came else None
            if not self._came or (before is not None and not _ended(before)):
                return f"rank {claim.rank} of node {claim.node_rank} has come already"
        return ""

    def take(self, greeting: Greeting, connection: socket.socket) -> None:
        """For the gate."""
        claim = msgspec.msgpack.decode(greeting.claim, type=Claim)
        keep(connection)
        with self._changed:
            if not self._came:
                return connection.close()
            before = self._came[claim.rank].pop(greeting.purpose, None)
            if before is not None:
                before.close()
            self._came[claim.rank][greeting.purpose] = connection
            self._changed.notify_all()

    def _absent(self) -> list[int]:
        return [
            rank
            for rank, came in self._came.items()
            if len(came) < len(PURPOSES) or any(map(_ended, came.values()))
        ]

    def _not_come(self, missing: list[int], patience: float) -> Exit:
        nodes: dict[int, list[str]] = {}
        for rank in missing:
            nodes.setdefault(self._missing[rank], []).append(self._mesh.name(rank))
        who = ", ".join(f"{' and '.join(ranks)} of node {node}" for node, ranks in nodes.items())
        return Exit(
            RANKS_MISSING,
            f"{who} {'has' if len(missing) == 1 else 'have'} not come to {self._config.master_addr}:"
            f"{self._config.master_port} within {patience:g} s.",
            RANKS_MISSING.hint,
            "nnodes",
        )


def join(config: EngineConfig, key: bytes, patience: float = PATIENCE) -> Arrived:
    """Report a rank to the first host, waiting for it to listen. Raises Exit."""
    end = time.monotonic() + patience
    claim = Claim(__version__, config.nnodes, config.node_rank, config.rank, marks(config))
    made: list[socket.socket] = []
    try:
        for purpose in PURPOSES:
            made.append(_connected(config, end, patience))
            Caller(key, purpose, msgspec.msgpack.encode(claim)).challenge(made[-1])
    except Refused as error:
        raise Exit(
            BAD_ARGUMENTS,
            f"Node 0 at {config.master_addr}:{config.master_port} refuses this rank: {error}.",
            "Start the same command of the same version on every node, each with its own --node-rank.",
            "node_rank",
        ) from error
    except (Distrusted, OSError) as error:
        raise Exit(
            RANKS_MISSING,
            f"What is at {config.master_addr}:{config.master_port} is not node 0 of this server: {error}.",
            "Give every node the same --master-addr, --master-port and --cluster-key-file.",
            "master_addr",
        ) from error
    finally:
        if len(made) < len(PURPOSES):
            for connection in made:
                connection.close()
    return Arrived(*made)


def _connected(config: EngineConfig, end: float, patience: float) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection(
                (config.master_addr, config.master_port),
                max(0.1, end - time.monotonic()),
                (address_of(config), 0),
            )
        except OSError as error:
            if time.monotonic() + RETRY > end:
                raise Exit(
                    RANKS_MISSING,
                    f"Node 0 could not be reached at {config.master_addr}:{config.master_port} within "
                    f"{patience:g} s: {error.strerror or error}.",
                    RANKS_MISSING.hint,
                    "master_addr",
                ) from error
            time.sleep(RETRY)
        else:
            keep(connection)
            return connection


def keep(connection: socket.socket) -> None:
    """Send at once, and fail where the other end's host has answered nothing for as long as a silent rank may
    live, whether anything was sent or not."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE * 1000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SILENCE / 2))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(BEAT))


def _ended(connection: socket.socket) -> bool:
    """Without a byte taken from it."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
