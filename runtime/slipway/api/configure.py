"""From the resolved arguments and the environment to what the engine and the API are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from slipway.args.derive import expand_graph_sizes
from slipway.args.schema import ARGUMENTS
from slipway.engine.config import EngineConfig
from slipway.envs import Environment


class Arguments(Protocol):
    """The arguments by their underscore names, as `slipway.args.resolved.Resolved` has them."""

    def __getitem__(self, name: str, /) -> Any: ...

    @property
    def given(self) -> frozenset[str]:
        """The arguments that the user set."""

    def redacted(self) -> Mapping[str, Any]: ...


_SAME_NAME = (
    "model",
    "revision",
    "code_revision",
    "hf_config_path",
    "tokenizer",
    "tokenizer_mode",
    "tokenizer_revision",
    "load_format",
    "download_dir",
    "ignore_patterns",
    "pt_load_map_location",
    "use_tqdm_on_load",
    "model_impl",
    "trust_remote_code",
    "dtype",
    "quantization",
    "rope_theta",
    "disable_sliding_window",
    "seed",
    "max_logprobs",
    "block_size",
    "kv_cache_dtype",
    "calculate_kv_scales",
    "quantization_param_path",
    "enable_prefix_caching",
    "disable_hybrid_kv_cache_manager",
    "max_num_seqs",
    "enable_chunked_prefill",
    "scheduling_policy",
    "max_num_partial_prefills",
    "max_long_partial_prefills",
    "long_prefill_token_threshold",
    "scheduler_delay_factor",
    "device",
    "gpu_memory_utilization",
)


def engine_config(arguments: Arguments, environment: Environment) -> EngineConfig:
    """The arguments that concern the engine; what is unset stays for it to decide."""
    cache_bytes = arguments["kv_cache_memory_bytes"]
    on_cpu = arguments["device"] != "cuda"
    if cache_bytes is None and on_cpu and environment.cpu_kvcache_space is not None:
        cache_bytes = int(environment.cpu_kvcache_space * (1 << 30)) or None
    budget = arguments["max_num_batched_tokens"]  # its default is the documented one, of CUDA
    swaps = arguments["preemption_mode"] == "swap"
    attention = arguments["attention_backend"]
    same = {name: arguments[name] for name in _SAME_NAME}
    return EngineConfig(
        **same,
        attention_backend="auto" if attention in ARGUMENTS["attention_backend"].hollow else attention,
        hf_overrides=arguments["hf_overrides"] or {},
        hf_token=arguments["hf_token"],
        rope_scaling=arguments["rope_scaling"] or {},
        max_model_len=_length(arguments["max_model_len"]),
        prefix_hash=arguments["prefix_caching_hash_algo"],
        prefix_hash_secret=environment.slipway_prefix_hash_secret or "",
        num_blocks=arguments["num_gpu_blocks_override"],
        kv_cache_bytes=cache_bytes,
        swap_bytes=int(arguments["swap_space"] * (1 << 30)) if swaps else 0,
        offload_bytes=int(arguments["cpu_offload_gb"] * (1 << 30)),
        graph_sizes=_graph_sizes(arguments),
        graph_max_length=arguments["max_seq_len_to_capture"],
        overlap=False if arguments["disable_async_output_proc"] else None,
        max_num_batched_tokens=budget if "max_num_batched_tokens" in arguments.given else None,
        grammar_cache_bytes=environment.xgrammar_cache_mb << 20,
        skip_warmup=environment.skip_warmup,
        threads=environment.threads,
        timed=bool(arguments["otlp_traces_endpoint"] and arguments["collect_detailed_traces"]),
        log_level=environment.logging_level.lower(),
        profile_folder=environment.torch_profiler_dir,
        record=environment.slipway_record,
    )


def _graph_sizes(arguments: Arguments) -> list[int]:
    """Batches that run as CUDA graphs."""
    compilation = arguments["compilation_config"]
    if arguments["enforce_eager"] or not compilation.get("use_cudagraph", True):
        return []
    sizes: list[int] = compilation.get("cudagraph_capture_sizes") or expand_graph_sizes(
        arguments["cuda_graph_sizes"]
    )
    largest = compilation.get("max_capture_size")
    return [size for size in sizes if 0 < size <= (largest or size)]


def _length(value: object) -> int | None:
    """Unset, `auto` and -1 all leave it to the model."""
    return value if isinstance(value, int) and value > 0 else None


@dataclass(frozen=True, slots=True)
class Settings:
    """What the API itself is told."""

    model: str
    served_names: tuple[str, ...]
    """Names that a request's `model` may have; the first is the one in answers."""
    tokenizer: str | None
    tokenizer_mode: str
    tokenizer_revision: str | None
    revision: str | None
    download_dir: str | None
    hub_token: str | bool | None
    trust_remote_code: bool
    skip_tokenizer_init: bool
    chat_template: str | None
    content_format: Literal["auto", "string", "openai"]
    trust_request_chat_template: bool
    response_role: str
    reasoning_effort: str | None
    generation_config: str
    override_generation_config: Mapping[str, Any]
    max_logprobs: int
    seed: int | None
    """Of the draws of requests without one; None draws each at random."""
    priorities: bool
    """Requests may carry one."""
    guided_backend: str
    guided_without_fallback: bool
    guided_without_whitespace: bool
    guided_without_more_properties: bool
    auto_tool_choice: bool
    tool_call_parser: str | None
    tool_parser_plugin: str | None
    reasoning_parser: str | None
    prompt_tokens_details: bool
    enable_tokenizer_info_endpoint: bool
    tokens_as_ids: bool
    api_keys: tuple[str, ...]
    """Of which callers present one; none: everyone may call."""
    max_concurrency: int | None
    log_requests: bool
    log_stats: bool
    batch_size_interval: float
    """Seconds between lines on the sizes of steps; 0: there are none."""
    max_log_len: int | None
    request_id_headers: bool
    load_tracking: bool
    dev_mode: bool
    profiles: bool
    """Traces of steps may be started and stopped."""
    response_store: bool
    """Responses may be asked for again."""
    rpc_timeout: float
    """Seconds for the engine to answer an administrative question."""
    docs: bool
    root_path: str
    traces_endpoint: str | None
    detailed_traces: frozenset[str]
    """Of which parts each trace tells the times: model, worker or all."""
    show_hidden_metrics: str | None
    drain_grace: float
    """Seconds after SIGTERM in which requests that still arrive are served."""
    drain_timeout: float
    """Seconds after that for open requests to end."""
    load_timeout: float
    """Seconds without progress after which loading has failed."""
    step_timeout: float
    """Seconds that a step may take before the engine counts as stuck."""
    stay_after_death: bool
    shown_arguments: Mapping[str, Any]
    """All arguments, secrets hidden, for /server_info."""

    @property
    def name(self) -> str:
        return self.served_names[0]


def api_settings(arguments: Arguments, environment: Environment) -> Settings:
    names = arguments["served_model_name"] or [arguments["model"]]
    return Settings(
        model=arguments["model"],
        served_names=tuple(names),
        tokenizer=arguments["tokenizer"],
        tokenizer_mode=arguments["tokenizer_mode"],
        tokenizer_revision=arguments["tokenizer_revision"],
        revision=arguments["revision"],
        download_dir=arguments["download_dir"],
        hub_token=arguments["hf_token"],
        trust_remote_code=arguments["trust_remote_code"],
        skip_tokenizer_init=arguments["skip_tokenizer_init"],
        chat_template=arguments["chat_template"],
        content_format=arguments["chat_template_content_format"],
        trust_request_chat_template=arguments["trust_request_chat_template"],
        response_role=arguments["response_role"],
        reasoning_effort=arguments["reasoning_effort"],
        generation_config=arguments["generation_config"],
        override_generation_config=arguments["override_generation_config"] or {},
        max_logprobs=arguments["max_logprobs"],
        seed=arguments["seed"] if "seed" in arguments.given else None,
        priorities=arguments["scheduling_policy"] == "priority",
        guided_backend=arguments["guided_decoding_backend"],
        guided_without_fallback=arguments["guided_decoding_disable_fallback"],
        guided_without_whitespace=arguments["guided_decoding_disable_any_whitespace"],
        guided_without_more_properties=arguments["guided_decoding_disable_additional_properties"],
        auto_tool_choice=arguments["enable_auto_tool_choice"],
        tool_call_parser=arguments["tool_call_parser"],
        tool_parser_plugin=arguments["tool_parser_plugin"],
        reasoning_parser=arguments["reasoning_parser"],
        prompt_tokens_details=arguments["enable_prompt_tokens_details"],
        enable_tokenizer_info_endpoint=arguments["enable_tokenizer_info_endpoint"],
        tokens_as_ids=arguments["return_tokens_as_token_ids"],
        api_keys=tuple(arguments["api_key"] or ()),
        max_concurrency=arguments["max_concurrency"],
        log_requests=not arguments["disable_log_requests"],
        log_stats=not arguments["disable_log_stats"],
        batch_size_interval=max(environment.log_batchsize_interval, 0.0),
        max_log_len=arguments["max_log_len"],
        request_id_headers=arguments["enable_request_id_headers"],
        load_tracking=arguments["enable_server_load_tracking"],
        dev_mode=environment.server_dev_mode,
        profiles=environment.torch_profiler_dir is not None,
        response_store=environment.enable_responses_api_store,
        rpc_timeout=environment.rpc_timeout / 1000,
        docs=not arguments["disable_fastapi_docs"],
        root_path=(arguments["root_path"] or "").rstrip("/"),
        traces_endpoint=arguments["otlp_traces_endpoint"],
        detailed_traces=frozenset(arguments["collect_detailed_traces"] or ()),
        show_hidden_metrics=arguments["show_hidden_metrics_for_version"],
        drain_grace=arguments["drain_grace"],
        drain_timeout=arguments["drain_timeout"],
        load_timeout=arguments["load_timeout"],
        step_timeout=environment.engine_iteration_timeout_s,
        stay_after_death=environment.keep_alive_on_engine_death,
        shown_arguments=arguments.redacted(),
    )
