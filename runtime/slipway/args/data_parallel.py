"""Which copies of the engine this node has."""

from __future__ import annotations

from typing import Any, Protocol


class Values(Protocol):
    """The arguments by their underscore names."""

    def __getitem__(self, name: str, /) -> Any: ...


def copies_here(values: Values) -> int:
    """Those of this node, of which there is one where each has a server of its own."""
    if values["data_parallel_external_lb"] or values["data_parallel_rank"] is not None:
        return 1
    local = values["data_parallel_size_local"]
    return int(values["data_parallel_size"] if local is None else local)


def copies_of_node(values: Values) -> dict[str, Any]:
    """What the arguments of copies are by --nnodes; nothing where copies do not spread evenly over nodes.

    A node has whole copies, whose ranks meet on it.
    """
    nodes, node, copies = values["nnodes"], values["node_rank"], values["data_parallel_size"]
    if nodes == 1 or copies == 1 or node >= nodes or copies % nodes:
        return {}
    each = copies // nodes
    which = "data_parallel_rank" if values["data_parallel_external_lb"] else "data_parallel_start_rank"
    return {
        "data_parallel_size_local": each,
        which: node * each,
        "data_parallel_address": values["master_addr"],
        "data_parallel_rpc_port": values["master_port"],
    }
