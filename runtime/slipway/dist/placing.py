"""Which bundle of a Ray placement group each rank takes, and what a cluster lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipway.dist.mesh import Mesh
from slipway.exits import BAD_ARGUMENTS, DEVICE_UNAVAILABLE, Exit


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank takes of its node."""

    resource: str
    """CPU or GPU, as Ray calls them."""
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:g} {self.resource}"


def bundles_of_ranks(
    mesh: Mesh, nodes: Mapping[int, str], here: str, chosen: Sequence[int] = ()
) -> list[int]:
    """The bundle of each rank: the first has one on this node, then follow this node's others, then those of
    the nodes with the fewest, a node's ranks together.

    nodes: of each bundle that holds what a rank takes, its node's address
    here: this node's
    chosen: as VLLM_RAY_BUNDLE_INDICES says, in the ranks' order; empty: all are free to take

    Raises Exit where there are too few, or none is here.
    """
    if chosen:
        return _as_chosen(mesh, nodes, here, chosen)
    if len(nodes) < mesh.size:
        raise Exit(
            DEVICE_UNAVAILABLE,
            f"A rank fits in {len(nodes)} of the placement group's bundles, and {mesh.size} ranks want one "
            "each.",
            _FEWER_RANKS,
        )
    if here not in nodes.values():
        raise _none_here(nodes, here)
    crowd = Counter(nodes.values())
    order = sorted(
        nodes, key=lambda bundle: (nodes[bundle] != here, crowd[nodes[bundle]], nodes[bundle], bundle)
    )
    return order[: mesh.size]


def split_stages(mesh: Mesh, addresses: Sequence[str]) -> list[str]:
    """Names of the stages whose ranks, at these addresses, are on several nodes and meet over the network."""
    stages: dict[int, set[str]] = {}
    for rank, address in enumerate(addresses):
        stages.setdefault(rank // mesh.tp, set()).add(address)
    return [f"stage {stage} ({', '.join(sorted(on))})" for stage, on in stages.items() if len(on) > 1]


def too_little(mesh: Mesh, share: Share, nodes: Mapping[str, float], free: float, here: str) -> Exit:
    """What the cluster has and what is wanted.

    nodes: of each address, how much of the resource the node has in all
    free: what nobody holds now, of all nodes
    """
    each = ", ".join(f"{address}: {amount:g}" for address, amount in sorted(nodes.items()))
    return Exit(
        DEVICE_UNAVAILABLE,
        f"The Ray cluster has {sum(nodes.values()):g} {share.resource} ({each}), of which {free:g} are free; "
        f"{mesh.size} ranks want {share} each, the first of them on this node, {here}.",
        "Add nodes, end what holds theirs, or lower --tensor-parallel-size or --pipeline-parallel-size.",
        "distributed_executor_backend",
    )


_FEWER_RANKS = (
    "Give the group a bundle for each, or lower --tensor-parallel-size or --pipeline-parallel-size."
)
_INDICES = "VLLM_RAY_BUNDLE_INDICES"


def _as_chosen(mesh: Mesh, nodes: Mapping[int, str], here: str, chosen: Sequence[int]) -> list[int]:
    said = ",".join(map(str, chosen))
    if len(chosen) != mesh.size or len(set(chosen)) != len(chosen):
        raise Exit(
            BAD_ARGUMENTS,
            f"{_INDICES}={said} does not name a bundle of its own for each of {mesh.size} ranks.",
            "Name a bundle for each rank, each once.",
        )
    if absent := [bundle for bundle in chosen if bundle not in nodes]:
        raise Exit(
            BAD_ARGUMENTS,
            f"{_INDICES}={said} names the bundle {absent[0]}, which the placement group does not have or in "
            f"which no rank fits; it has {', '.join(map(str, nodes))}.",
            "Name bundles of the placement group that this program runs in.",
        )
    if nodes[chosen[0]] != here:
        raise _none_here({chosen[0]: nodes[chosen[0]]}, here)
    return list(chosen)


def _none_here(nodes: Mapping[int, str], here: str) -> Exit:
    elsewhere = ", ".join(sorted(set(nodes.values())))
    return Exit(
        DEVICE_UNAVAILABLE,
        f"The first rank runs in this process, on the node {here}; its bundle in the placement group would "
        f"be on {elsewhere}.",
        "Start the server on a node of the group, or give the group a bundle on this one.",
    )
