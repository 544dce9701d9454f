"""Rules of the copies of the engine that share the requests."""

from __future__ import annotations

from slipway.args.data_parallel import copies_here, copies_of_node
from slipway.args.rules.rule import Given, Rule, Values, at_most, flag

MODES = ("data_parallel_external_lb", "data_parallel_hybrid_lb")


def _one_balancer(values: Values, given: Given) -> str | None:
    if not all(values[mode] for mode in MODES):
        return None
    why = " (which --data-parallel-rank implies)" if values["data_parallel_rank"] is not None else ""
    return (
        f"--data-parallel-external-lb{why} and --data-parallel-hybrid-lb exclude each other: with the first "
        "each server has one copy, with the second a node's copies. Drop one of them."
    )


def _nodes_have_whole_copies(values: Values, given: Given) -> str | None:
    nodes, copies = values["nnodes"], values["data_parallel_size"]
    if nodes == 1 or copies == 1:
        return None
    if copies % nodes:
        return (
            f"--data-parallel-size {copies} does not spread evenly over --nnodes {nodes}: a node has whole "
            "copies. Make the first a multiple of the second."
        )
    if values["data_parallel_external_lb"] and copies > nodes:
        return (
            f"--data-parallel-external-lb has one copy in a server, and of --data-parallel-size {copies} "
            f"each of --nnodes {nodes} has {copies // nodes}. Use --data-parallel-hybrid-lb, or as many "
            "nodes as copies."
        )
    for name, value in copies_of_node(values).items():
        if values[name] != value:
            return (
                f"{flag(name)} {values[name]} contradicts --nnodes {nodes}, by which it is {value} on "
                f"--node-rank {values['node_rank']} with --master-addr {values['master_addr']}. Drop it."
            )
    return None


def _an_outside_balancer_knows_ranks(values: Values, given: Given) -> str | None:
    if not values["data_parallel_external_lb"] or values["data_parallel_size"] == 1:
        return None
    if values["data_parallel_rank"] is not None:
        return None
    return (
        "--data-parallel-external-lb needs --data-parallel-rank: it says which of the "
        f"{values['data_parallel_size']} copies this server is."
    )


def _a_copy_is_one_of_them(values: Values, given: Given) -> str | None:
    rank, count = values["data_parallel_rank"], values["data_parallel_size"]
    if rank is None or rank < count:
        return None
    return (
        f"--data-parallel-rank {rank} is none of --data-parallel-size {count}: they count from 0 to "
        f"{count - 1}. Lower the first or raise the second."
    )


def _ray_places_copies(values: Values, given: Given) -> str | None:
    if values["data_parallel_backend"] != "ray":
        return None
    placing = ("data_parallel_size_local", "data_parallel_start_rank", "data_parallel_rank", *MODES)
    told = [flag(name) for name in (*placing, "data_parallel_address", "headless") if name in given]
    if not told:
        return None
    return (
        f"--data-parallel-backend ray has Ray say where each copy is, and {told[0]} says it, too. Drop one "
        "of them."
    )


def _a_rank_is_one_copy(values: Values, given: Given) -> str | None:
    rank, local = values["data_parallel_rank"], values["data_parallel_size_local"]
    if rank is None:
        return None
    if local not in (None, 1):
        return (
            f"--data-parallel-rank {rank} is one copy, and --data-parallel-size-local {local} asks for "
            f"{local} on this node. Drop the second, or name the first of them with "
            "--data-parallel-start-rank."
        )
    start = values["data_parallel_start_rank"]
    if "data_parallel_start_rank" in given and start != rank:
        return (
            f"--data-parallel-rank {rank} contradicts --data-parallel-start-rank {start}: both say which "
            "copy this server begins with. Drop the second."
        )
    return None


def _local_copies_are_among_all(values: Values, given: Given) -> str | None:
    start, count = values["data_parallel_start_rank"], values["data_parallel_size"]
    local = values["data_parallel_size_local"]
    if start == 0 or values["data_parallel_rank"] is not None:
        return None
    if start >= count:
        return (
            f"--data-parallel-start-rank {start} is none of --data-parallel-size {count}: they count from 0 "
            f"to {count - 1}. Lower the first or raise the second."
        )
    if local is None:
        return (
            f"--data-parallel-start-rank {start} needs --data-parallel-size-local, how many of the {count} "
            f"copies this node has: {count - start} are left from {start} on."
        )
    if start + local > count:
        return (
            f"--data-parallel-start-rank {start} and --data-parallel-size-local {local} reach to copy "
            f"{start + local - 1}, and the last of --data-parallel-size {count} is {count - 1}. Lower one of "
            "the first two."
        )
    return None


def _hybrid_has_a_share(values: Values, given: Given) -> str | None:
    local = values["data_parallel_size_local"]
    if not values["data_parallel_hybrid_lb"] or values["data_parallel_size"] == 1:
        return None
    if local is None:
        return (
            "--data-parallel-hybrid-lb needs --data-parallel-size-local: how many of the "
            f"{values['data_parallel_size']} copies this node has."
        )
    if local == 0:
        return (
            "--data-parallel-hybrid-lb shares requests among this node's copies, and "
            "--data-parallel-size-local 0 leaves it none. Raise the second or drop the first."
        )
    return None


def _a_node_without_api_is_part_of_something(values: Values, given: Given) -> str | None:
    if not values["headless"] or "headless" not in given:  # implied, of a command that other nodes run too
        return None
    if values["nnodes"] == 1 and values["data_parallel_size"] == 1:
        return (
            "--headless starts no API server, so that nobody could reach the engine: it is for further nodes "
            "of --data-parallel-size or --nnodes. Give one of these, or drop it."
        )
    served = [flag(mode) for mode in MODES if values[mode]]
    if served:
        return f"--headless starts no API server, and {served[0]} wants one on every node. Drop one of them."
    if values["nnodes"] > 1 and values["node_rank"] == 0:
        return (
            "--headless starts no API server, and that of these nodes is on --node-rank 0, which this is. "
            "Drop the first, or correct the second."
        )
    if values["api_server_count"] > 1:
        return (
            f"--headless starts no API server, and --api-server-count asks for {values['api_server_count']}. "
            "Drop one of them."
        )
    if values["data_parallel_size_local"] == 0:
        return (
            "--headless starts engines only, and --data-parallel-size-local 0 leaves this node none. Raise "
            "the second."
        )
    if values["nnodes"] == 1 and values["data_parallel_address"] is None:
        return (
            "--headless needs --data-parallel-address, an address of the node whose API server these engines "
            "belong to."
        )
    return None


def _copies_are_processes(values: Values, given: Given) -> str | None:
    count = copies_here(values)
    if not values["disable_frontend_multiprocessing"] or count < 2:
        return None
    return (
        f"--data-parallel-size {count} needs engines in processes of their own, and "
        "--disable-frontend-multiprocessing puts one into the API's. Drop one of them."
    )


def _meeting_of_nobody(values: Values, given: Given) -> str | None:
    names = ("data_parallel_address", "data_parallel_rpc_port", "data_parallel_rank", *MODES)
    idle = [
        flag(name)
        for name in names
        if name in given and values[name] is not None and values[name] is not False
    ]
    if not idle or values["data_parallel_size"] > 1:
        return None
    have = "has" if len(idle) == 1 else "have"
    return f"{' and '.join(idle)} {have} no effect with --data-parallel-size 1."


def _hybrid_of_one_node(values: Values, given: Given) -> str | None:
    count = values["data_parallel_size"]
    if not values["data_parallel_hybrid_lb"] or values["data_parallel_size_local"] != count or count == 1:
        return None
    return f"--data-parallel-hybrid-lb has no effect: all {count} copies are on this node."


DATA_PARALLEL: tuple[Rule, ...] = (
    Rule("nnodes", _nodes_have_whole_copies),
    at_most("data_parallel_size_local", "data_parallel_size", "the local copies are part of all."),
    Rule("data_parallel_backend", _ray_places_copies),
    Rule("data_parallel_rank", _a_copy_is_one_of_them),
    Rule("data_parallel_rank", _a_rank_is_one_copy),
    Rule("data_parallel_external_lb", _one_balancer),
    Rule("data_parallel_external_lb", _an_outside_balancer_knows_ranks),
    Rule("data_parallel_start_rank", _local_copies_are_among_all),
    Rule("data_parallel_hybrid_lb", _hybrid_has_a_share),
    Rule(
        "data_parallel_size",
        _copies_are_processes,
        cel="!has(self.dataParallelSize) || self.dataParallelSize == 1"
        " || !has(self.disableFrontendMultiprocessing) || !self.disableFrontendMultiprocessing",
        message="dataParallelSize above 1 needs engines in processes of their own:"
        " drop disableFrontendMultiprocessing",
    ),
    Rule("headless", _a_node_without_api_is_part_of_something),
    Rule("data_parallel_address", _meeting_of_nobody, warns=True),
    Rule("data_parallel_hybrid_lb", _hybrid_of_one_node, warns=True),
)
