"""Arguments of parallelism and of the device."""

from __future__ import annotations

from slipway.args.declare import FilePath, Json, Key, Unbuilt, arg, group
from slipway.args.groups.features import MULTIMODAL

CLASS = r"[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)+"
MOVED_EXPERTS = Unbuilt(
    "moving experts between devices", tunes=True, without="every expert stays where it was put"
)
ONE_DEVICE = "is not a device of Slipway. Use cpu or cuda."


@group("ParallelConfig")
class Parallel:
    """How a model spreads over devices and nodes."""

    cluster_key_file: FilePath | None = arg(in_spec=False)
    """File with the secret by which processes of one server on several hosts know each other: the same bytes
    on all of them, at least 32, readable by the server alone."""

    data_parallel_address: str | None = arg(aliases=("-dpa",), in_spec=False, twins=("VLLM_DP_MASTER_IP",))
    """Address of the head node, whose API server has the engines of all. Unset: 127.0.0.1."""

    data_parallel_backend: str = arg("mp", aliases=("-dpb",), choices=("mp", "ray"))
    """What starts the copies: mp, this server, on this node and, --headless, on others; ray, a Ray cluster,
    which places them, the first one here."""

    data_parallel_external_lb: bool = arg(False, aliases=("-dpe",), negatable=True, in_spec=False)
    """Serve one copy here, for a load balancer outside that knows the others. A --data-parallel-rank implies
    it.

    Each copy has an API server of its own then, as in a pod for each.
    """

    data_parallel_hybrid_lb: bool = arg(False, aliases=("-dph",), negatable=True, in_spec=False)
    """Serve this node's copies here, for a load balancer outside that knows the other nodes.

    The API server shares requests among its own --data-parallel-size-local copies alone.
    """

    data_parallel_rank: int | None = arg(aliases=("-dpn",), minimum=0, in_spec=False, twins=("VLLM_DP_RANK",))
    """Which of the copies this server is, where each has an API server of its own, counted from 0.

    Its metrics have that number as their label engine.
    """

    data_parallel_rpc_port: int | None = arg(
        aliases=("-dpp",),
        minimum=1,
        maximum=65535,
        in_spec=False,
        twins=("VLLM_DP_MASTER_PORT",),
    )
    """Port on the head node at which engines of other nodes come. Unset: 29550."""

    data_parallel_size: int = arg(1, aliases=("-dp",), minimum=1, twins=("VLLM_DP_SIZE",))
    """Copies of the engine that share the requests, each in a process of its own with all of the weights.

    On CPU they share the processors and the memory; on CUDA each has devices of its own. A request goes to
    the copy that has its prompt's beginning in the prefix cache, or to the one with the least to do.
    """

    data_parallel_size_local: int | None = arg(
        aliases=("-dpl",),
        minimum=0,
    )
    """Data-parallel copies on this node. Unset: all of them; 0: a server whose engines are all on others."""

    disable_custom_all_reduce: bool = arg(False, negatable=True, twins=("VLLM_DISABLE_CUSTOM_ALL_REDUCE",))
    """Have NCCL add up what tensor-parallel GPUs compute, instead of a kernel that reads their memory.

    That kernel is used where 2, 4, 6 or 8 GPUs of one host reach each other over NVLink, for up to 8 MiB at a
    time.
    """

    distributed_executor_backend: str | None = arg(
        choices=("auto", "uni", "mp", "ray", "external_launcher"),
        words={"none": None},
    )
    """What starts the ranks: mp, this server on each of the --nnodes; ray, a Ray cluster, which places them;
    external_launcher, torchrun or the like, which starts this command once for each rank; uni, nothing: there
    is one. Unset or auto, it is ray where a host has too few GPUs and there is a cluster, else mp.
    """

    enable_eplb: bool = arg(False, no_effect_without=("enable_expert_parallel",), unbuilt=MOVED_EXPERTS)
    """Move experts between devices while serving, to balance their load."""

    enable_expert_parallel: bool = arg(False, aliases=("-ep",), negatable=True)
    """Give each device whole experts of a MoE layer instead of a slice of every expert."""

    enable_multimodal_encoder_data_parallel: bool = arg(False, negatable=True, unbuilt=MULTIMODAL)
    """Run the vision encoder data-parallel."""

    eplb_config: Json | None = arg(
        keys={
            "window_size": Key("int", minimum=1),
            "step_interval": Key("int", minimum=1),
            "num_redundant_experts": Key("int", minimum=0),
            "log_balancedness": Key("bool"),
            "log_balancedness_interval": Key("int", minimum=1),
            "use_async": Key("bool"),
            "policy": Key("str", choices=("default",)),
            "communicator": Key("str", choices=("nixl", "pynccl", "torch_gloo", "torch_nccl"), nullable=True),
        },
        open_keys=False,
        no_effect_without=("enable_eplb",),
        unbuilt=MOVED_EXPERTS,
    )
    """How --enable-eplb moves experts: what it measures, how often it acts, how many experts it doubles."""

    master_addr: str = arg("127.0.0.1", in_spec=False)
    """Address of node 0, at which the ranks, or copies, of the other --nnodes report.

    Node 0 listens there, or at its VLLM_HOST_IP, until all ranks have come, and on no other address.
    """

    master_port: int = arg(29501, minimum=1, maximum=65535, in_spec=False)
    """Port of node 0 for the same. What ranks open beside it begins at VLLM_PORT, or one behind."""

    max_parallel_loading_workers: int | None = arg(minimum=1)
    """Ranks of the engine that read weights at the same time; fewer need less host memory. Unset, all do."""

    nnodes: int = arg(1, aliases=("-n",), minimum=1, in_spec=False)
    """Nodes over which the ranks of the engine, or its whole copies, spread evenly. Start the same command on
    each of them, with its --node-rank."""

    node_rank: int = arg(0, aliases=("-r",), minimum=0, in_spec=False)
    """Which of the --nnodes this is. Node 0 has the API server; the others are --headless by that."""

    pipeline_parallel_size: int = arg(1, aliases=("-pp",), minimum=1)
    """Stages into which the layers are cut. Devices per copy = stages × tensor parallel size.

    Each stage is a process that reads and keeps its layers alone; as many steps are under way as there
    are stages, each with its share of the requests. VLLM_PP_LAYER_PARTITION says how many layers each
    has; without it they are as even as can be.
    """

    ray_workers_use_nsight: bool = arg(False, negatable=True)
    """Profile Ray workers with Nsight."""

    tensor_parallel_size: int = arg(1, aliases=("-tp",), minimum=1)
    """Ranks that share each layer: processes on a CPU, or a GPU each; of one host, or of --nnodes."""

    worker_cls: str = arg(
        "auto",
        security_sensitive=True,
        pattern=rf"(auto|{CLASS})",
        form="auto or a class's full name, such as package.module.Class",
    )
    """Class of the workers by its import path; auto takes the device's own.

    It is called with the plan of the model, the engine's configuration and a function to report progress to,
    and must have all that slipway.engine.executor.Worker says. It runs arbitrary code in the engine.
    """

    worker_extension_cls: str | None = arg(
        security_sensitive=True,
        pattern=rf"({CLASS})?",
        form="a class's full name, such as package.module.Class",
    )
    """Class by its import path whose methods and attributes every worker has beside its own.

    None may have a name that the worker uses, and its __init__ is not called. It runs arbitrary code in the
    engine.
    """

    worker_use_ray: bool = arg(False, replacement="distributed_executor_backend=ray")
    """Old form of --distributed-executor-backend ray."""


@group("DeviceConfig")
class Device:
    """The device that computes."""

    device: str = arg(
        "auto",
        choices=("auto", "cpu", "cuda", "hpu", "neuron", "openvino", "tpu", "xpu"),
        refused=dict.fromkeys(("hpu", "neuron", "openvino", "tpu", "xpu"), ONE_DEVICE),
    )
    """Kind of device. auto takes CUDA where there is one, else the CPU."""
