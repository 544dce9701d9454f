"""Which device a rank has, and how it meets the others: torch's groups, and memory of devices that reach each
other.
"""

from __future__ import annotations

import os

import torch

from slipway.dist.groups import LOOPBACK, Group
from slipway.dist.hosts import address_of, has_split_stages, ranks_of
from slipway.dist.mesh import Mesh
from slipway.dist.stores import RankStore
from slipway.engine.config import EngineConfig
from slipway.envs import read
from slipway.worker.device.meeting import Met
from slipway.worker.device.peer_memory import mapped, memory_of
from slipway_kernels.cuda.launch import device_in_use


def device_of(config: EngineConfig) -> torch.device:
    """The rank's of those that all ranks of this host see: peers are reached by their numbers."""
    device = device_in_use()
    if device.type == "cuda" and Mesh.of(config).size > 1:
        # `planned` has seen that there are as many.
        place = ranks_of(config, config.node_rank).index(config.rank)
        device = torch.device("cuda", config.first_device + place)
        torch.cuda.set_device(device)
    return device


def met(config: EngineConfig, device: torch.device, store: RankStore) -> Met:
    """All that a rank computes with, once they are here. In any thread."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    mesh, rank = Mesh.of(config), config.rank
    address = address_of(config) if config.nnodes > 1 else LOOPBACK

    def group(name: str, place: int, size: int) -> Group:
        return Group(store.of(name, size), name, place, size, device, address)

    def rows(first: int) -> Group:
        return group(f"rows-{first}", int(rank > first), 2)

    stage, shard = mesh.stage(rank), mesh.shard(rank)
    own = group(f"stage-{stage}", shard.rank, shard.size) if mesh.tp > 1 else None
    peers = memory = None
    if own is not None and not config.disable_custom_all_reduce and not has_split_stages(config):
        memory = memory_of(device, own)
        if memory is not None:
            peers = mapped(own, memory, device, check=not read(os.environ).skip_p2p_check)
    before = rows(rank - mesh.tp) if stage else None
    behind = rows(rank) if stage < mesh.pp - 1 else None
    store.leave()
    return Met(own, peers, memory, before, behind)
