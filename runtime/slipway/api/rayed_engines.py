"""The engines of a server that Ray places: those of its own node, and who starts those of the others."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future
from functools import partial

import msgspec

from slipway.api.headless import EnginesOrder
from slipway.dist.mesh import Mesh
from slipway.dist.ray import Cluster, Wanted, outcome
from slipway.engine.config import EngineConfig
from slipway.engine.planned import chosen_device
from slipway.engine.rayed import devices_of, key_of, share_of, start_on_node
from slipway.engine.tunnel import Meeting
from slipway.envs import Environment


class RayedEngines:
    """A place for each engine in a Ray cluster, the first of them here."""

    def __init__(self, config: EngineConfig, size: int, environment: Environment) -> None:
        """Takes the places, each with room for an engine's ranks. Raises Exit."""
        self._config, self._size = config, size
        self._meeting: Meeting | None = None
        ranks, device = Mesh.of(config).size, chosen_device(config.device)
        share = share_of(device, environment, ranks)
        bundles = environment.ray_bundle_indices or ()
        self._cluster = Cluster(cpus=size * ranks if device == "cpu" else 0)
        try:
            wanted = Wanted(Mesh(dp=size), share, bundles, name=environment.instance_id or "slipway")
            self._seats = self._cluster.place(wanted)
        except BaseException:
            self.close()
            raise
        here = [seat for seat in self._seats if seat.address == self._cluster.address]
        self.here = range(len(here))
        """The ranks of those that this node has."""
        os.environ.update(devices_of(here))

    def meeting(self, port: int) -> Meeting:
        """Where those of other nodes come, which are started. Raises Exit."""
        config = self._config
        key, address = key_of(config), self._cluster.address
        ranks = range(self.here.stop, self._size)
        meeting = Meeting.at((address, port), key, ranks, self._size, "data_parallel_rpc_port")
        self._meeting = meeting
        of_nodes: dict[str, list[int]] = {}
        for rank in ranks:
            of_nodes.setdefault(self._seats[rank].address, []).append(rank)
        for node, own in of_nodes.items():
            told = EnginesOrder(
                msgspec.structs.replace(config, host_ip=node), own, self._size, (address, port), key
            )
            ended = start_on_node("slipway.api.ray_engines", told, [self._seats[rank] for rank in own])
            ended.add_done_callback(partial(_lose, meeting, own, node))
        return meeting

    def close(self) -> None:
        """Give the places back; what runs there ends."""
        if self._meeting is not None:
            self._meeting.close()
        self._cluster.close()


def _lose(meeting: Meeting, ranks: list[int], node: str, ended: Future[bytes]) -> None:
    with contextlib.suppress(Exception):  # where the cluster has gone, or was left
        meeting.lose(ranks, node, outcome(ended, 0) or "ended")
