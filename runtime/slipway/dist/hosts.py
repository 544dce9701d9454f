"""An engine on several hosts: which ranks are where, and which of them have no memory in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.dist.mesh import Mesh
from slipway.dist.ports import Listener, own_address
from slipway.engine.config import EngineConfig
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.load.extras import require_torch

if TYPE_CHECKING:
    from slipway.dist.gloo import Meeting


def ranks_of(config: EngineConfig, node: int) -> range:
    """The ranks on a host. Raises Exit where they do not spread evenly and nothing says how they do."""
    size, nodes = Mesh.of(config).size, config.nnodes
    if config.ranks_on_nodes:
        first = sum(config.ranks_on_nodes[:node])
        return range(first, first + config.ranks_on_nodes[node])
    if size % nodes:
        raise Exit(
            BAD_ARGUMENTS,
            f"{size} ranks (--tensor-parallel-size × --pipeline-parallel-size) do not spread evenly over "
            f"--nnodes {nodes}.",
            "Every node has as many as the others.",
            "nnodes",
        )
    return range(node * size // nodes, (node + 1) * size // nodes)


def address_of(config: EngineConfig) -> str:
    """Of this host, for the others, and the only one on which it listens. Raises Exit."""
    if config.host_ip is not None:
        return config.host_ip
    return config.master_addr if config.node_rank == 0 else own_address(config.master_addr)


def rank_port(config: EngineConfig) -> int:
    """The first of those that ranks open beside --master-port."""
    return config.rank_port or config.master_port + 1


def rows_port(config: EngineConfig, rank: int) -> int:
    """On which a rank awaits the one of its place in the next pipeline stage."""
    return rank_port(config) + 1 + rank


def senders(config: EngineConfig, node: int) -> list[int]:
    """The ranks of a host whose rows go to another one's, of the next pipeline stage, by a port of ours: on
    devices torch sends them."""
    if config.device == "cuda":
        return []
    mesh, own = Mesh.of(config), ranks_of(config, node)
    return [rank for rank in own if rank + mesh.tp < mesh.size and rank + mesh.tp not in own]


def has_split_stages(config: EngineConfig) -> bool:
    """Whether the ranks of any stage are on several hosts."""
    mesh = Mesh.of(config)
    hosts = [ranks_of(config, node) for node in range(config.nnodes)]
    stages = [mesh.stage_ranks(first) for first in range(0, mesh.size, mesh.tp)]
    return any(stage[0] in host and stage[-1] not in host for stage in stages for host in hosts)


def meets_by_torch(config: EngineConfig) -> bool:
    """Whether ranks of several hosts find each other in torch's store: on devices all do."""
    return has_split_stages(config) or (config.device == "cuda" and config.nnodes > 1)


def meeting(config: EngineConfig) -> Meeting | None:
    """Where a rank on a CPU meets those of its stage; None: they share memory. Raises Exit and LoadError.

    Where one stage is split, all of them meet so: the store by which they do is the first rank's.
    """
    if not has_split_stages(config):
        return None
    require_torch(
        "Ranks of one stage on several hosts meet by torch's gloo",
        "let --tensor-parallel-size be no more than the ranks of one node",
        argument="nnodes",
    )
    from slipway.dist.gloo import Meeting

    mesh = Mesh.of(config)
    place = mesh.shard(config.rank)
    return Meeting(config, f"stage {mesh.stage(config.rank)}", place.rank, place.size)


def listeners(config: EngineConfig) -> list[Listener]:
    """What the ranks of this host open for those of others."""
    found = []
    first, own = config.node_rank == 0, ranks_of(config, config.node_rank)
    met, address = "its ranks are connected", address_of(config)
    trusts = config.cluster_key_file is not None
    if first:
        found.append(Listener("ranks report", address, config.master_port, trusts, "all ranks have come"))
    if meets_by_torch(config):
        if first:
            found.append(Listener("torch's store", address, rank_port(config), False, met))
        found += [Listener(f"gloo of rank {rank}", address, None, False, met) for rank in own]
    if config.device == "cuda":
        found += [Listener(f"NCCL of rank {rank}", address, None, False, "the server ends") for rank in own]
    for rank in senders(config, config.node_rank):
        until = "the next stage is connected"
        found.append(Listener(f"rows of rank {rank}", address, rows_port(config, rank), trusts, until))
    return found
