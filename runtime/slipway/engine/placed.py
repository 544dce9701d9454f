"""Ranks of other hosts: who starts them, and how they come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from slipway.dist.executor_choice import Surroundings, executor, ray_cluster, ray_installed
from slipway.dist.hosts import listeners
from slipway.dist.mesh import Mesh
from slipway.dist.ports import tell
from slipway.dist.rendezvous import Arrived, Rendezvous
from slipway.dist.trust import read_key
from slipway.engine.config import EngineConfig
from slipway.engine.planned import StartProgress, chosen_device
from slipway.envs import read

Placed = tuple[EngineConfig, Mapping[int, Arrived], Callable[[], None]]
"""The configuration, with the hosts that ranks are on; those of other hosts; what gives their places back."""


def placed(config: EngineConfig, progress: StartProgress) -> Placed:
    """Have the ranks of other hosts come. Raises Exit."""
    config = msgspec.structs.replace(config, device=chosen_device(config.device))
    ranks = Mesh.of(config).size
    if executor(config.distributed_executor_backend, ranks, _surroundings(config)) != "ray":
        return config, _others(config, lambda: progress("load", 0, 0)), lambda: None
    from slipway.engine.rayed import RayedRanks

    rayed = RayedRanks(config, read(os.environ), config.device)

    def check() -> None:
        progress("load", 0, 0)
        rayed.check()

    try:
        return rayed.config, _others(rayed.config, check, rayed.start), rayed.close
    except BaseException:
        rayed.close()
        raise


def _surroundings(config: EngineConfig) -> Surroundings:
    places = None
    if config.device == "cuda":
        from torch.cuda import device_count

        places = device_count() or None  # there is none where kernels are interpreted
    return Surroundings(places, ray_installed(), ray_cluster(os.environ), config.nnodes)


def _others(
    config: EngineConfig, check: Callable[[], None], begin: Callable[[], None] = lambda: None
) -> Mapping[int, Arrived]:
    """The ranks of other hosts, once all have come; `begin` is called when they can. Raises Exit."""
    if config.nnodes == 1:
        begin()
        return {}
    key = read_key(config.cluster_key_file)
    rendezvous = Rendezvous(config, key)
    try:
        tell(listeners(config), key)
        begin()
    except BaseException:
        rendezvous.close()
        raise
    return rendezvous.wait(check)
