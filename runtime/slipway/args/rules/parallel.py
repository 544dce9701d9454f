"""Rules of the ranks of one engine: how many, on which nodes, started by what."""

from __future__ import annotations

from slipway.args.rules.rule import Given, Rule, Values, flag
from slipway.args.schema import ARGUMENTS


def ranks(values: Values) -> int:
    """Processes, or devices, of one copy of the engine."""
    return int(values["tensor_parallel_size"] * values["pipeline_parallel_size"])


def product(values: Values) -> str:
    """How `ranks` comes about, for messages."""
    stages, devices = values["pipeline_parallel_size"], values["tensor_parallel_size"]
    return f"--tensor-parallel-size {devices} × --pipeline-parallel-size {stages}"


def on_one_host(values: Values) -> bool:
    """Whether every process of the server is here, so that nothing listens for others."""
    local = values["data_parallel_size_local"]
    several = values["nnodes"] > 1 or values["distributed_executor_backend"] in ("ray", "external_launcher")
    elsewhere = local is not None and local < values["data_parallel_size"]
    return not (several or elsewhere or values["headless"] or values["data_parallel_backend"] == "ray")


def _node_is_one_of_them(values: Values, given: Given) -> str | None:
    rank, count = values["node_rank"], values["nnodes"]
    if rank < count:
        return None
    if count == 1:
        return f"--node-rank {rank} is no node of --nnodes 1: say how many there are with --nnodes."
    return f"--node-rank {rank} is no node of --nnodes {count}: they count from 0 to {count - 1}."


def _later_nodes_find_the_first(values: Values, given: Given) -> str | None:
    launched = values["distributed_executor_backend"] == "external_launcher"  # which says where to report
    if values["node_rank"] == 0 or "master_addr" in given or launched:
        return None
    return (
        f"--node-rank {values['node_rank']} needs --master-addr, an address of node 0: without it this node "
        f"would look for its ranks on itself, at {values['master_addr']}."
    )


def _nodes_share_the_ranks(values: Values, given: Given) -> str | None:
    count = values["nnodes"]
    if ranks(values) % count == 0 or values["data_parallel_size"] > 1:
        return None
    return (
        f"{product(values)} = {ranks(values)} ranks do not spread evenly over --nnodes {count}. Make their "
        "product a multiple of the number of nodes."
    )


def _nodes_have_one_launcher(values: Values, given: Given) -> str | None:
    count, backend = values["nnodes"], values["distributed_executor_backend"]
    if count == 1:
        return None
    if backend == "ray":
        return (
            f"--nnodes {count} says that you start a command on each node, and "
            "--distributed-executor-backend ray that Ray starts the ranks. Drop one of them."
        )
    if values["data_parallel_backend"] == "ray":
        return (
            f"--nnodes {count} says that you start a command on each node, and --data-parallel-backend ray "
            "that Ray starts the copies. Drop one of them."
        )
    return None


def _one_process_has_one_rank(values: Values, given: Given) -> str | None:
    if values["distributed_executor_backend"] != "uni" or ranks(values) == 1:
        return None
    return (
        f"--distributed-executor-backend uni computes in the engine's own process, which is one rank, and "
        f"{product(values)} asks for {ranks(values)}. Use mp, or leave it out."
    )


def _nodes_that_are_none(values: Values, given: Given) -> str | None:
    idle = [
        flag(name)
        for name in ("master_addr", "master_port")
        if values[name] != ARGUMENTS[name].default and values["nnodes"] == 1
    ]
    if not idle:
        return None
    have = "has" if len(idle) == 1 else "have"
    return f"{' and '.join(idle)} {have} no effect with --nnodes 1."


def _one_rank_shares_no_adapter(values: Values, given: Given) -> str | None:
    if not values["fully_sharded_loras"] or not values["enable_lora"] or values["tensor_parallel_size"] > 1:
        return None
    return (
        "--fully-sharded-loras has no effect with --tensor-parallel-size 1: one rank has all of an adapter."
    )


def _a_launcher_counts_nodes(values: Values, given: Given) -> str | None:
    if values["distributed_executor_backend"] != "external_launcher" or values["nnodes"] == 1:
        return None
    return (
        f"--nnodes {values['nnodes']} has no effect with --distributed-executor-backend external_launcher: "
        "the launcher's variables RANK and WORLD_SIZE say which rank this is of how many."
    )


def _nobody_to_know(values: Values, given: Given) -> str | None:
    if values["cluster_key_file"] is None or not on_one_host(values):
        return None
    return "--cluster-key-file has no effect: everything runs on this host, where nothing listens for others."


def _experts_of_one_device(values: Values, given: Given) -> str | None:
    if not values["enable_expert_parallel"] or values["tensor_parallel_size"] > 1:
        return None
    return (
        "--enable-expert-parallel has no effect with --tensor-parallel-size 1: one device holds every expert "
        "whole."
    )


def _reads_by_itself(values: Values, given: Given) -> str | None:
    if "max_parallel_loading_workers" not in given or ranks(values) > 1:
        return None
    return "--max-parallel-loading-workers has no effect: one rank reads all weights."


def _one_rank_is_here(values: Values, given: Given) -> str | None:
    if values["distributed_executor_backend"] != "ray" or ranks(values) > 1:
        return None
    return "--distributed-executor-backend ray has no effect with one rank: the engine's process has it."


def _profiles_of_rays_workers(values: Values, given: Given) -> str | None:
    if not values["ray_workers_use_nsight"] or values["distributed_executor_backend"] == "ray":
        return None
    return "--ray-workers-use-nsight has no effect without --distributed-executor-backend ray."


PARALLEL: tuple[Rule, ...] = (
    Rule("node_rank", _node_is_one_of_them),
    Rule("master_addr", _later_nodes_find_the_first),
    Rule("nnodes", _nodes_have_one_launcher),
    Rule("nnodes", _nodes_share_the_ranks),
    Rule(
        "distributed_executor_backend",
        _one_process_has_one_rank,
        cel="!has(self.distributedExecutorBackend) || self.distributedExecutorBackend != 'uni'"
        " || (!has(self.tensorParallelSize) || self.tensorParallelSize == 1)"
        " && (!has(self.pipelineParallelSize) || self.pipelineParallelSize == 1)",
        message="distributedExecutorBackend uni is one rank: use mp, or leave it out",
    ),
    Rule("master_addr", _nodes_that_are_none, warns=True),
    Rule("nnodes", _a_launcher_counts_nodes, warns=True),
    Rule("fully_sharded_loras", _one_rank_shares_no_adapter, warns=True),
    Rule("cluster_key_file", _nobody_to_know, warns=True),
    Rule("enable_expert_parallel", _experts_of_one_device, warns=True),
    Rule("max_parallel_loading_workers", _reads_by_itself, warns=True),
    Rule("distributed_executor_backend", _one_rank_is_here, warns=True),
    Rule("ray_workers_use_nsight", _profiles_of_rays_workers, warns=True),
)
