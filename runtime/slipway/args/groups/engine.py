"""Arguments of observability, of the engine's platform, and Slipway's own."""

from __future__ import annotations

from slipway.args.declare import Disposition, Json, Key, Unbuilt, Url, arg, group

COMPILATION: Json = {
    "level": 0,
    "debug_dump_path": "",
    "cache_dir": "",
    "backend": "",
    "custom_ops": [],
    "splitting_ops": [],
    "use_inductor": True,
    "compile_sizes": None,
    "inductor_compile_config": {"enable_auto_functionalized_v2": False},
    "inductor_passes": {},
    "use_cudagraph": True,
    "cudagraph_num_of_warmups": 0,
    "cudagraph_capture_sizes": None,
    "cudagraph_copy_inputs": False,
    "full_cuda_graph": False,
    "max_capture_size": None,
    "local_cache_dir": None,
}


@group("ObservabilityConfig")
class Observability:
    """Traces and metrics."""

    collect_detailed_traces: list[str] | None = arg(
        choices=("all", "model", "worker"),
        comma_list=True,
        words={"none": None},
        no_effect_without=("otlp_traces_endpoint",),
    )
    """Parts of which each trace tells the time: the model's forward passes, the worker's whole steps."""

    otlp_traces_endpoint: Url | None = arg()
    """Where OpenTelemetry traces are sent, one span for each request; needs the extra `otel`.

    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL says how: grpc, which is the default, or http/protobuf. Variables of
    OpenTelemetry's SDK say the rest.
    """

    show_hidden_metrics_for_version: str | None = arg(
        pattern=r"[0-9]+\.[0-9]+(\.[0-9]+)*", form="a version such as 0.8"
    )
    """Show metrics that were deprecated in this version X.Y, or hidden since it.

    In YAML it needs quotes: 0.10 without them is the number 0.1.
    """


@group("VllmConfig")
class Platform:
    """Compilation, KV transfer and the platform."""

    additional_config: Json = arg({}, disposition=Disposition.WARN, reason="it is meant for other platforms")
    """Settings of other platforms."""

    compilation_config: Json = arg(
        COMPILATION,
        aliases=("-O", "-cc"),
        synonyms=("optimization_level",),
        level_key="level",
        cuda_only=True,
        acting_keys=("use_cudagraph", "cudagraph_capture_sizes", "max_capture_size"),
        reason="nothing is compiled by torch.compile",
        keys={
            "level": Key("int", minimum=0, maximum=3),
            "debug_dump_path": Key("str"),
            "cache_dir": Key("str"),
            "backend": Key("str"),
            "custom_ops": Key("list[str]"),
            "splitting_ops": Key("list[str]"),
            "use_inductor": Key("bool"),
            "compile_sizes": Key("list", nullable=True),
            "inductor_compile_config": Key("object"),
            "inductor_passes": Key("object"),
            "use_cudagraph": Key("bool"),
            "cudagraph_num_of_warmups": Key("int", minimum=0),
            "cudagraph_capture_sizes": Key("list[int]", nullable=True),
            "cudagraph_copy_inputs": Key("bool"),
            "full_cuda_graph": Key("bool"),
            "max_capture_size": Key("int", minimum=1, nullable=True),
            "local_cache_dir": Key("str", nullable=True),
        },
    )
    """What is compiled and captured: a level from 0 to 3, or an object; -O3 is level 3.

    The levels are torch.compile's, which is not used. Of the keys use_cudagraph, cudagraph_capture_sizes and
    max_capture_size act, on CUDA: they say which batches run as CUDA graphs, and win over --cuda-graph-sizes.
    """

    kv_events_config: Json | None = arg(
        keys={
            "enable_kv_cache_events": Key("bool"),
            "publisher": Key("str", choices=("null", "zmq"), nullable=True),
            "endpoint": Key("str"),
            "replay_endpoint": Key("str", nullable=True),
            "buffer_steps": Key("int", minimum=0),
            "hwm": Key("int", minimum=0),
            "max_queue_size": Key("int", minimum=0),
            "topic": Key("str"),
        },
        open_keys=False,
        unbuilt=Unbuilt("KV cache events", asks=lambda events: events.get("enable_kv_cache_events", True)),
    )
    """How changes of the KV cache are published."""

    kv_transfer_config: Json | None = arg(
        keys={
            "kv_connector": Key("str", nullable=True),
            "engine_id": Key("str", nullable=True),
            "kv_role": Key("str", choices=("kv_producer", "kv_consumer", "kv_both"), nullable=True),
            "kv_rank": Key("int", minimum=0, nullable=True),
            "kv_parallel_size": Key("int", minimum=1),
            "kv_buffer_device": Key("str", nullable=True),
            "kv_buffer_size": Key("float", minimum=0),
            "kv_ip": Key("str"),
            "kv_port": Key("int", minimum=1, maximum=65535),
            "kv_connector_extra_config": Key("object"),
            "kv_connector_module_path": Key("str", nullable=True),
        },
        open_keys=False,
        unbuilt=Unbuilt("KV transfer between servers"),
    )
    """How KV blocks travel between servers, as for prefill and decode apart."""


@group("Slipway")
class Slipway:
    """Arguments that only this server has."""

    drain_grace: int = arg(5, minimum=0, maximum=3600, unit="seconds")
    """After SIGTERM, time in which requests that still arrive are served."""

    shutdown_timeout: int | None = arg(
        minimum=0, maximum=86400, unit="seconds", short_for="drain_timeout", in_spec=False
    )
    """The same as --drain-timeout."""

    drain_timeout: int = arg(60, minimum=0, maximum=86400, unit="seconds")
    """After that, time in which running requests may finish."""

    dry_run: bool = arg(False, about_command=True, in_spec=False)
    """Check the arguments, print what they resolve to as JSON, and exit."""

    idle_check_interval: int = arg(30, minimum=0, maximum=86400, unit="seconds")
    """Where no step was computed for this long, a probe of `/ready` has one computed, of one token.

    It takes a server whose device hangs out of service before a request finds out. Where such a step takes
    more than a thousandth of this time, they come as much less often. 0: never.
    """

    load_timeout: int = arg(1800, minimum=1, maximum=604800, unit="seconds")
    """Exit where loading has made no progress for this long."""
