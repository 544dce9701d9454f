"""The ranks of an engine that Ray places: where they are, what starts them there, and what ends them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec

from slipway.dist.mesh import Mesh
from slipway.dist.placing import Share
from slipway.dist.ray import Cluster, Order, Seat, Wanted, outcome
from slipway.dist.trust import read_key
from slipway.engine.config import EngineConfig
from slipway.engine.node import NodeOrder
from slipway.envs import VARIABLES, Environment
from slipway.exits import ENGINE_DIED, Exit
from slipway.processes import written
from slipway.temporary import private_folder

OF_THE_HOST = frozenset(
    [
        "CUDA_VISIBLE_DEVICES",
        "VLLM_API_KEY",
        "VLLM_HOST_IP",
        "VLLM_RPC_BASE_PATH",
        "SLIPWAY_RECORD",
        "SLIPWAY_TERMINATION_LOG",
    ]
)
"""Variables that a node has of its own, or no use for."""


class RayedRanks:
    """A place for each rank in a Ray cluster: this process is the first, and its node the first one.

    config  the engine's, with the nodes that its ranks are on
    """

    def __init__(self, config: EngineConfig, environment: Environment, device: str) -> None:
        """Takes the places. Raises Exit where the cluster has none, or cannot be reached."""
        self._folder = private_folder("slipway-ray-")
        self._ended: dict[str, Future[bytes]] = {}
        """By the name of a node."""
        self._key = key_of(config)
        mesh = Mesh.of(config)
        share = share_of(device, environment)
        bundles = environment.ray_bundle_indices or ()
        self._cluster = Cluster(cpus=mesh.size if device == "cpu" else 0)
        try:
            wanted = Wanted(
                mesh, share, bundles, config.ray_workers_use_nsight, environment.instance_id or "slipway"
            )
            self._seats = self._cluster.place(wanted)
        except BaseException:
            self.close()
            raise
        addresses = [seat.address for seat in self._seats]
        nodes = list(dict.fromkeys(addresses))
        self.config = msgspec.structs.replace(
            config,
            nnodes=len(nodes),
            ranks_on_nodes=[addresses.count(node) for node in nodes],
            master_addr=self._cluster.address,
            host_ip=self._cluster.address,
            cluster_key_file=str(self._written_key()),
        )

    def start(self) -> None:
        """Have each further node start its ranks, which report to this one. Raises Exit."""
        first = 0
        for node, count in enumerate(self.config.ranks_on_nodes):
            seats, first = self._seats[first : first + count], first + count
            if node:
                own = msgspec.structs.replace(self.config, node_rank=node, host_ip=seats[0].address)
                ended = start_on_node("slipway.engine.ray_node", NodeOrder(own, self._key), seats)
                self._ended[f"Node {node} ({seats[0].address})"] = ended
            else:
                os.environ.update(devices_of(seats))

    def check(self) -> None:
        """Raises Exit where a node's ranks have ended."""
        for node, ended in self._ended.items():
            if ended.done():
                raise Exit(
                    ENGINE_DIED,
                    f"{node} of the Ray cluster {outcome(ended, 0)} before its ranks had come.",
                    "What it printed says why: it is above, and in Ray's logs on that node.",
                    "distributed_executor_backend",
                )

    def close(self) -> None:
        """Give the places back; what runs there ends."""
        self._cluster.close()
        self._folder.cleanup()

    def _written_key(self) -> Path:
        path = Path(self._folder.name) / "key"
        path.touch(0o600)
        path.write_bytes(self._key)
        return path


def key_of(config: EngineConfig) -> bytes:
    """The cluster's, drawn where no file has one: Ray carries it to the other nodes. Raises Exit."""
    return read_key(config.cluster_key_file) or secrets.token_hex(32).encode()


def share_of(device: str, environment: Environment, ranks: int = 1) -> Share:
    """What so many ranks take of a node."""
    if device == "cuda":
        return Share("GPU", environment.ray_per_worker_gpus * ranks)
    return Share("CPU", float(ranks))


def start_on_node(module: str, order: object, seats: Sequence[Seat]) -> Future[bytes]:
    """Have the first of a node's seats run `python -m MODULE ORDER` for all of them; as of `Seat.start`."""
    carried = {
        one.name: os.environ[one.name]
        for one in VARIABLES
        if one.name in os.environ and one.name not in OF_THE_HOST and not one.of_launcher
    }
    return seats[0].start(Order(module, written(order), carried | devices_of(seats)))


def devices_of(seats: Sequence[Seat]) -> dict[str, str]:
    """All that Ray has given to these seats of a node, one of which starts the ranks of all."""
    devices = [device for seat in seats if seat.devices for device in seat.devices.split(",")]
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(devices))} if devices else {}
