"""Arguments of parallelism and of the device."""

from __future__ import annotations

from slipway.args.declare import Unbuilt, arg, group
from slipway.args.groups.features import DATA_PARALLEL, EXPERT_PARALLEL, MULTIMODAL

ONE_DEVICE = "is not a device of Slipway. Use cpu or cuda."


@group("ParallelConfig")
class Parallel:
    """How a model spreads over devices and nodes."""

    data_parallel_address: str | None = arg(aliases=("-dpa",), unbuilt=DATA_PARALLEL, in_spec=False)
    """Address of the data-parallel group's head node."""

    data_parallel_backend: str = arg("mp", aliases=("-dpb",), choices=("mp", "ray"), unbuilt=DATA_PARALLEL)
    """What starts data-parallel ranks."""

    data_parallel_rpc_port: int | None = arg(
        aliases=("-dpp",), minimum=1, maximum=65535, unbuilt=DATA_PARALLEL, in_spec=False
    )
    """Port on the head node by which data-parallel ranks meet."""

    data_parallel_size: int = arg(1, aliases=("-dp",), minimum=1, unbuilt=DATA_PARALLEL)
    """Copies of the engine that share the requests; MoE layers spread over all of their devices."""

    data_parallel_size_local: int | None = arg(
        aliases=("-dpl",), minimum=0, unbuilt=Unbuilt("data parallelism", asks=lambda count: count != 1)
    )
    """Data-parallel copies on this node."""

    disable_custom_all_reduce: bool = arg(
        False,
        negatable=True,
        twins=("VLLM_DISABLE_CUSTOM_ALL_REDUCE",),
        unbuilt=Unbuilt("a custom all-reduce kernel", tunes=True),
    )
    """Use NCCL's all-reduce instead of the custom kernel."""

    distributed_executor_backend: str | None = arg(
        choices=("auto", "uni", "mp", "ray", "external_launcher"),
        words={"none": None},
        unbuilt=Unbuilt("workers started by Ray or an outside launcher", works=("auto", "uni", "mp")),
    )
    """What starts workers. There is one, a part of the engine, whether this is unset, auto, uni or mp."""

    enable_eplb: bool = arg(False, no_effect_without=("enable_expert_parallel",), unbuilt=EXPERT_PARALLEL)
    """Move experts between devices while serving, to balance their load."""

    enable_expert_parallel: bool = arg(False, negatable=True, unbuilt=EXPERT_PARALLEL)
    """Give each device whole experts of a MoE layer instead of a slice of every expert."""

    enable_multimodal_encoder_data_parallel: bool = arg(False, negatable=True, unbuilt=MULTIMODAL)
    """Run the vision encoder data-parallel."""

    max_parallel_loading_workers: int | None = arg(
        minimum=1, unbuilt=Unbuilt("more than one worker", asks=lambda count: count > 1)
    )
    """Workers that read weights at the same time; fewer need less host memory."""

    pipeline_parallel_size: int = arg(1, aliases=("-pp",), minimum=1, unbuilt=Unbuilt("pipeline parallelism"))
    """Stages into which the layers are cut. Devices per copy = stages × tensor parallel size."""

    ray_workers_use_nsight: bool = arg(False, negatable=True, unbuilt=Unbuilt("Ray workers"))
    """Profile Ray workers with Nsight."""

    tensor_parallel_size: int = arg(1, aliases=("-tp",), minimum=1)
    """Devices that share each layer."""

    worker_cls: str = arg(
        "auto",
        security_sensitive=True,
        refused={"*": "Slipway runs its own worker only. Leave the argument out."},
    )
    """Class of the workers: auto, and no other."""

    worker_extension_cls: str | None = arg(
        security_sensitive=True,
        refused={"*": "Slipway mixes no classes into its worker. Leave the argument out."},
    )
    """Class mixed into the worker: none is accepted."""

    worker_use_ray: bool = arg(
        False, replacement="distributed_executor_backend=ray", unbuilt=Unbuilt("Ray workers")
    )
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
