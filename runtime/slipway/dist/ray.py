"""Ranks on a Ray cluster, which decides where each runs and starts it there; all else is between the ranks.

Ray pickles what its actors are given and give. Ours get bytes, give bytes, and know their class by its name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from slipway import __version__
from slipway.dist.executor_choice import ray_cluster
from slipway.dist.mesh import Mesh
from slipway.dist.placing import Share, bundles_of_ranks, split_stages, too_little
from slipway.exits import (
    BAD_ARGUMENTS,
    DEVICE_UNAVAILABLE,
    MISSING_PACKAGE,
    VERSION_MISMATCH,
    Exit,
    how_ended,
)
from slipway.extras import install

log = logging.getLogger("slipway.dist")

PATIENCE = 60.0
"""Seconds for a cluster to have room, and for a rank to be started there."""
CONNECTS = 10.0
"""Seconds for what is at RAY_ADDRESS to take a connection."""
TOKEN = "RAY_AUTH_TOKEN"
NSIGHT = {"t": "cuda,cudnn,cublas,nvtx", "o": "'worker_process_%p'", "cuda-graph-trace": "node"}
_HERE = 0.001
"""Of the resource that a node has one of, by its address: who asks for any is placed there."""


class Order(msgspec.Struct, frozen=True):
    """What an actor is told."""

    module: str
    """Of Slipway, which `python -m` runs; its argument is the number of a descriptor to read `told` from."""
    told: bytes
    environment: dict[str, str] = {}
    """Added to the node's own."""


class Node(msgspec.Struct, frozen=True):
    """Where an actor is."""

    version: str
    devices: str | None
    """CUDA_VISIBLE_DEVICES as Ray has set it."""


class Ended(msgspec.Struct, frozen=True):
    """How a rank's process did; below 0: by a signal."""

    status: int


class Occupant:
    """What Ray runs in a bundle: it holds the place, starts a rank there and watches it.

    The rank is a process of its own, which dies with this one.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def node(self) -> bytes:
        """A Node."""
        return msgspec.msgpack.encode(Node(__version__, os.environ.get("CUDA_VISIBLE_DEVICES")))

    def start(self, order: bytes) -> bytes:
        """Start the rank that the Order describes; the number of its process."""
        told = msgspec.msgpack.decode(order, type=Order)
        environment = {name: value for name, value in os.environ.items() if name != TOKEN}
        source, sink = os.pipe()
        command = [sys.executable, "-m", told.module, str(source)]
        self._process = subprocess.Popen(
            command, pass_fds=[source], stdin=subprocess.DEVNULL, env=environment | told.environment
        )
        os.close(source)
        with os.fdopen(sink, "wb") as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(told.told)
        return msgspec.msgpack.encode(self._process.pid)

    def wait(self) -> bytes:
        """Until the rank has ended: an Ended."""
        assert self._process is not None, "no rank was started"
        return msgspec.msgpack.encode(Ended(self._process.wait()))


@dataclass(frozen=True)
class Wanted:
    """What ranks to place, and how."""

    mesh: Mesh
    share: Share
    bundles: Sequence[int] = ()
    """VLLM_RAY_BUNDLE_INDICES."""
    nsight: bool = False
    """Let Nsight Systems profile each rank but the first."""
    name: str = ""
    """Of the placement group, as Ray's commands list it."""
    patience: float = PATIENCE


class Seat:
    """A rank's place in the cluster, and its process there once that is started."""

    devices: str | None = None
    """Numbers of the GPUs that it has there, as Ray counts them."""

    def __init__(self, name: str, address: str, actor: Any) -> None:
        self.name = name
        self.address = address
        """Of its node."""
        self.pid: int | None = None
        """As the node counts processes."""
        self._actor = actor

    def node(self, patience: float) -> Node:
        """Wait until the place is taken. Raises Exit where that fails."""
        return msgspec.msgpack.decode(self._asked(self._actor.node.remote(), patience), type=Node)

    def start(self, order: Order, patience: float = PATIENCE) -> Future[bytes]:
        """Start its process: what becomes the encoded `Ended`, or an exception of Ray's where the actor or
        its node is lost. Raises Exit.
        """
        started = self._asked(self._actor.start.remote(msgspec.msgpack.encode(order)), patience)
        self.pid = msgspec.msgpack.decode(started, type=int)
        ended: Future[bytes] = self._actor.wait.remote().future()
        return ended

    def leave(self) -> None:
        """End what runs there, at once."""
        import ray

        ray.kill(self._actor, no_restart=True)

    def _asked(self, answer: Any, patience: float) -> bytes:
        import ray

        try:
            told: bytes = ray.get(answer, timeout=patience)
        except ray.exceptions.GetTimeoutError:
            why = f"it has not come up in {patience:g} s"
        except ray.exceptions.RayError as error:
            why = _last_line(error)
        else:
            return told
        raise Exit(
            DEVICE_UNAVAILABLE,
            f"{self.name} could not be started on the node {self.address} of the Ray cluster: {why}",
            "Every node needs the same Slipway and its extras; Ray's logs on that node say more.",
            "distributed_executor_backend",
        )


def outcome(ended: Future[bytes], patience: float) -> str | None:
    """In words, of what `Seat.start` gave; None: it has not, so many seconds later."""
    import ray

    try:
        status = msgspec.msgpack.decode(ended.result(patience), type=Ended).status
    except TimeoutError:
        return None
    except ray.exceptions.RayError as error:
        return f"was lost with its actor: {_last_line(error)}"
    return how_ended(status)[1]


class Cluster:
    """This process as a driver of a Ray cluster; what it has placed ends with it."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ, cpus: int = 0) -> None:
        """Connects to the cluster that Ray's own commands would use, or starts one on this host. Raises Exit.

        cpus  that one started here has at least: ranks on a CPU share the processors, however few there are
        """
        address = ray_cluster(environ)
        if address is None and environ.get("RAY_ADDRESS") == "auto":
            raise _no_cluster("auto", "no cluster was started on this host.")
        self._group: Any = None
        self._seats: list[Seat] = []
        if address is None:
            _guard(environ)
        try:
            import ray
        except ModuleNotFoundError as error:
            raise missing(error) from error
        self._ray = ray
        # Who runs in a task or an actor of Ray's is connected already.
        self._connected = not ray.is_initialized()
        if self._connected:
            _join(address) if address else _start(cpus)
        here = ray.get_runtime_context().get_node_id()
        self.address: str = self._addresses()[here]
        """Of this node."""

    def place(self, wanted: Wanted) -> list[Seat]:
        """A seat for each rank; the first's is here and has no process, this one being its. Raises Exit."""
        group = self._ray.util.get_current_placement_group()
        if group is None:
            group = self._group = self._reserved(wanted)
        table = self._ray.util.placement_group_table(group)
        addresses = self._addresses()
        nodes = {
            bundle: addresses[node]
            for bundle, node in table["bundles_to_node_id"].items()
            if table["bundles"][bundle].get(wanted.share.resource, 0.0) >= wanted.share.amount
        }
        bundles = bundles_of_ranks(wanted.mesh, nodes, self.address, wanted.bundles)
        if split := split_stages(wanted.mesh, [nodes[bundle] for bundle in bundles]):
            log.warning(
                "ranks of one stage are on several nodes, which slows every layer: %s", "; ".join(split)
            )
        for rank, bundle in enumerate(bundles):
            actor = self._actor(group, bundle, wanted, nsight=wanted.nsight and rank > 0)
            self._seats.append(Seat(wanted.mesh.name(rank).capitalize(), nodes[bundle], actor))
        end = time.monotonic() + wanted.patience
        for seat in self._seats:
            node = seat.node(max(0.0, end - time.monotonic()))
            seat.devices = node.devices
            if (version := node.version) != __version__:
                raise Exit(
                    VERSION_MISMATCH,
                    f"The node {seat.address} of the Ray cluster has Slipway {version}, this one "
                    f"{__version__}.",
                    "Install the same version on every node.",
                )
        return list(self._seats)

    def close(self) -> None:
        """End all that was placed, and leave the cluster; one started by us ends."""
        for seat in self._seats:
            with contextlib.suppress(Exception):  # of a cluster that has gone
                seat.leave()
        with contextlib.suppress(Exception):
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        if self._connected:
            self._ray.shutdown()

    def _addresses(self) -> dict[str, str]:
        return {node["NodeID"]: node["NodeManagerAddress"] for node in self._alive()}

    def _reserved(self, wanted: Wanted) -> Any:
        """A bundle for each rank, on as few nodes as can be, the first of them here."""
        share, size = wanted.share, wanted.mesh.size
        bundles = [{share.resource: share.amount} for _ in range(size)]
        bundles[0][f"node:{self.address}"] = _HERE
        group = self._ray.util.placement_group(bundles, strategy="PACK", name=wanted.name)
        if sum(self._resources(share.resource).values()) < size * share.amount:
            log.warning("waiting %g s: %s", wanted.patience, self._lacking(wanted))
        if group.wait(wanted.patience):
            return group
        lacking = self._lacking(wanted)
        self._ray.util.remove_placement_group(group)
        raise lacking

    def _lacking(self, wanted: Wanted) -> Exit:
        resource = wanted.share.resource
        free = self._ray.available_resources().get(resource, 0.0)
        return too_little(wanted.mesh, wanted.share, self._resources(resource), free, self.address)

    def _resources(self, resource: str) -> dict[str, float]:
        """How much of it each node has, by its address."""
        return {node["NodeManagerAddress"]: node["Resources"].get(resource, 0.0) for node in self._alive()}

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _actor(self, group: Any, bundle: int, wanted: Wanted, *, nsight: bool) -> Any:
        amount = {f"num_{wanted.share.resource.lower()}s": wanted.share.amount}
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=bundle
        )
        return (
            self._ray.remote(Occupant)
            .options(
                **{"num_cpus": 0, **amount},
                scheduling_strategy=strategy,
                runtime_env={"nsight": dict(NSIGHT)} if nsight else None,
            )
            .remote()
        )


def missing(error: ModuleNotFoundError) -> Exit:
    return Exit(
        MISSING_PACKAGE,
        f"The Python package {error.name}, which --distributed-executor-backend ray needs, is not installed.",
        f"Install it on every node: {install('ray')}.",
        "distributed_executor_backend",
    )


def _guard(environ: MutableMapping[str, str]) -> None:
    """Ray reads these as it is imported: who wants to talk to our cluster has a token that is drawn now."""
    environ["RAY_AUTH_MODE"] = "token"
    environ.setdefault(TOKEN, secrets.token_hex(32))
    environ["RAY_USAGE_STATS_ENABLED"] = "0"


def _join(address: str) -> None:
    import ray

    if address.startswith("ray://"):
        raise Exit(
            BAD_ARGUMENTS,
            f"RAY_ADDRESS={address} reaches a Ray cluster from outside, and the first rank runs in this "
            "process.",
            "Start the server on a node of the cluster, with RAY_ADDRESS=auto.",
        )
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise _no_cluster(address, "an address is HOST:PORT.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECTS).close()  # Ray tries for minutes
        ray.init(address=address, logging_level=logging.WARNING)
    except (OSError, ray.exceptions.RayError, RuntimeError) as error:
        raise _no_cluster(address, _last_line(error)) from error


def _no_cluster(address: str, why: str) -> Exit:
    return Exit(
        DEVICE_UNAVAILABLE,
        f"The Ray cluster at {address} does not take this process in: {why}",
        "Check RAY_ADDRESS, the cluster's token, and that Ray runs on this host, too (`ray status`); "
        "RAY_ADDRESS=local starts a cluster of this host alone.",
    )


def _start(cpus: int) -> None:
    """A cluster of this host alone. Ray listens on every address, and takes those that have the token."""
    import ray

    log.warning(
        "no Ray cluster was found, and one of this host alone is started, whose ports take who has its "
        "token; RAY_ADDRESS names another"
    )
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=max(cpus, os.cpu_count() or 1),
        object_store_memory=80 << 20,
        logging_level=logging.WARNING,
    )


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
