"""From the resolved arguments and the environment to what the engine and the API are told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from slipway.args.data_parallel import copies_here
from slipway.args.derive import expand_graph_sizes
from slipway.args.model_names import name_and_path
from slipway.args.schema import ARGUMENTS
from slipway.args.speculation import lookup_window, method_of, posterior
from slipway.engine.config import DraftConfig, EngineConfig, TypicalAcceptance
from slipway.envs import UNBOUND, Environment, Launched, bound_cpus
from slipway.exits import BAD_ARGUMENTS, Exit


class Arguments(Protocol):
    """The arguments by their underscore names, as `slipway.args.resolved.Resolved` has them."""

    def __getitem__(self, name: str, /) -> Any: ...

    @property
    def given(self) -> frozenset[str]:
        """The arguments that the user set."""

    def redacted(self) -> Mapping[str, Any]: ...


def engine_config(
    arguments: Arguments,
    environment: Environment,
    log_config_file: str | None = None,
    frontends: int = 1,
) -> EngineConfig:
    """The arguments that concern the engine; what is unset stays for it to decide.

    log_config_file, frontends  arguments of servers, which other commands that start an engine do not have
    """
    cache_bytes = arguments["kv_cache_memory_bytes"]
    on_cpu = arguments["device"] != "cuda"
    if cache_bytes is None and on_cpu and environment.cpu_kvcache_space is not None:
        cache_bytes = int(environment.cpu_kvcache_space * (1 << 30)) or None
    budget = arguments["max_num_batched_tokens"]  # its default is the documented one, of CUDA
    swaps = arguments["preemption_mode"] == "swap"
    attention = arguments["attention_backend"]
    derived: dict[str, Any] = {
        "attention_backend": "auto" if attention in ARGUMENTS["attention_backend"].hollow else attention,
        "hf_overrides": arguments["hf_overrides"] or {},
        "override_pooler_config": arguments["override_pooler_config"] or {},
        "rope_scaling": arguments["rope_scaling"] or {},
        "max_model_len": _length(arguments["max_model_len"]),
        "max_loras": arguments["max_loras"] if arguments["enable_lora"] else 0,
        "long_lora_scaling_factors": arguments["long_lora_scaling_factors"] or [],
        "max_prompt_adapters": arguments["max_prompt_adapters"] if arguments["enable_prompt_adapter"] else 0,
        "prefix_hash": arguments["prefix_caching_hash_algo"],
        "prefix_hash_secret": environment.slipway_prefix_hash_secret or "",
        "num_blocks": arguments["num_gpu_blocks_override"],
        "kv_cache_bytes": cache_bytes,
        "swap_bytes": int(arguments["swap_space"] * (1 << 30)) if swaps else 0,
        "offload_bytes": int(arguments["cpu_offload_gb"] * (1 << 30)),
        "graph_sizes": _graph_sizes(arguments),
        "graph_max_length": arguments["max_seq_len_to_capture"],
        "overlap": False if arguments["disable_async_output_proc"] else None,
        "max_num_batched_tokens": budget if "max_num_batched_tokens" in arguments.given else None,
        "grammar_cache_bytes": environment.xgrammar_cache_mb << 20,
        "layer_partition": _partition(arguments, environment),
        "skip_warmup": environment.skip_warmup,
        "threads": environment.omp_num_threads,
        "bound_cpus": bound_cpus(environment.cpu_omp_threads_bind),
        "pin_threads": environment.cpu_omp_threads_bind not in UNBOUND,
        "timed": bool(arguments["otlp_traces_endpoint"] and arguments["collect_detailed_traces"]),
        "log_config_file": log_config_file,
        "frontends": frontends,
        "profile_folder": environment.torch_profiler_dir,
        "record": environment.slipway_record,
        "host_ip": None if environment.host_ip == "localhost" else environment.host_ip,
        "rank_port": environment.port,
        **_nodes(arguments),
        "processors": arguments["logits_processor_pattern"] is not None,
        "processor_threads": environment.logits_processor_threads,
    }
    derived |= _speculation(arguments["speculative_config"])
    return EngineConfig(**_of_same_name(EngineConfig, arguments, derived))


def local_ranks(arguments: Arguments) -> range:
    """Those of the engines that this server has, among all that share requests."""
    rank = arguments["data_parallel_rank"]
    first = arguments["data_parallel_start_rank"] if rank is None else rank
    return range(first, first + copies_here(arguments))


def balanced_outside(arguments: Arguments) -> bool:
    """Engines of other nodes have servers of their own."""
    return bool(arguments["data_parallel_external_lb"] or arguments["data_parallel_hybrid_lb"])


def _nodes(arguments: Arguments) -> dict[str, Any]:
    """Those of one engine, where --nnodes does not say it: a copy is on one, and each process that an outside
    launcher starts is a node of one rank.
    """
    if arguments["data_parallel_size"] > 1:
        return {"nnodes": 1, "node_rank": 0}
    if arguments["distributed_executor_backend"] != "external_launcher":
        return {}
    launched = Launched.of(os.environ)
    return {
        "nnodes": launched.world_size,
        "node_rank": launched.rank,
        "first_device": launched.local_rank,
        "master_addr": launched.master_addr,
        "master_port": launched.master_port + 1,  # the launcher may listen on its own
    }


def _partition(arguments: Arguments, environment: Environment) -> list[int]:
    """Layers of each pipeline stage; empty where there is one, or nothing is said."""
    return list(environment.pp_layer_partition or ()) if arguments["pipeline_parallel_size"] > 1 else []


def _speculation(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """How tokens are drafted; nothing where no method is named."""
    if config is None or (method := method_of(config)) is None:
        return {}
    how: dict[str, Any] = {
        "num_drafts": config.get("num_speculative_tokens") or 0,
        "max_guessing": config.get("disable_by_batch_size"),
        "acceptance": _acceptance(config),
    }
    if method == "ngram":
        shortest, longest = lookup_window(config)
        return how | {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    names = ("model", "revision", "code_revision", "quantization", "max_model_len")
    told: dict[str, Any] = {name: config.get(name) for name in names}
    told["tensor_parallel_size"] = config.get("draft_tensor_parallel_size")
    return how | {"draft": DraftConfig(method=method, **told)}


def _acceptance(config: Mapping[str, Any]) -> TypicalAcceptance | None:
    """The rule that changes tokens, where it is asked for."""
    if (constants := posterior(config)) is None:
        return None
    return TypicalAcceptance(threshold=constants[0], alpha=constants[1])


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
class AdapterModule:
    """One of --lora-modules or --prompt-adapters."""

    name: str
    path: str
    base_model_name: str | None = None
    is_prompt: bool = False

    @property
    def argument(self) -> str:
        return "prompt_adapters" if self.is_prompt else "lora_modules"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the API itself is told.

    A field with the name of an argument is that argument, unless `api_settings` derives it.
    """

    model: str
    served_names: tuple[str, ...]
    """Names that a request's `model` may have; the first is the one in answers."""
    tokenizer: str | None
    tokenizer_mode: str
    tokenizer_revision: str | None
    revision: str | None
    download_dir: str | None
    hf_token: str | bool | None
    skip_tokenizer_init: bool
    chat_template: str | None
    chat_template_content_format: Literal["auto", "string", "openai"]
    trust_request_chat_template: bool
    response_role: str
    template_defaults: dict[str, Any]
    """Variables of the chat template where a request does not say them."""
    enable_force_include_usage: bool
    enable_per_request_metrics: bool
    stream_interval: int
    """Tokens that an event of a stream holds, at least."""
    sse_keep_alive_interval: int
    """Seconds; 0: streams that are silent stay so."""
    disable_access_log_for_endpoints: list[str]
    generation_config: str
    override_generation_config: Mapping[str, Any]
    max_logprobs: int
    adapters: tuple[AdapterModule, ...]
    """To load at start."""
    max_loras: int
    """Different ones in a step; 0: none are served."""
    updates_loras: bool
    """Callers may load and unload them."""
    seed: int | None
    """Of the draws of requests without one; None draws each at random."""
    priorities: bool
    """Requests may carry one."""
    guided_decoding_backend: str
    guided_decoding_disable_fallback: bool
    guided_decoding_disable_any_whitespace: bool
    guided_decoding_disable_additional_properties: bool
    enable_auto_tool_choice: bool | None
    """None: where it is known how the model writes calls."""
    tool_call_parser: str | None
    chooses_tool_call_parser: bool
    """The argument is not given, so the model says which it is."""
    tool_parser_plugin: str | None
    reasoning_parser: str | None
    reasoning_parser_plugin: str | None
    chooses_reasoning_parser: bool
    enable_prompt_tokens_details: bool
    enable_tokenizer_info_endpoint: bool
    return_tokens_as_token_ids: bool
    api_keys: tuple[str, ...]
    """Of which callers present one; none: everyone may call."""
    max_concurrency: int | None
    max_num_queued_reqs: int | None
    api_server_count: int
    strict_requests: bool
    """Fields that a route does not have are refused."""
    enable_log_requests: bool
    enable_log_outputs: bool
    disable_log_requests: bool
    disable_log_stats: bool
    batch_size_interval: float
    """Seconds between lines on the sizes of steps; 0: there are none."""
    max_log_len: int | None
    enable_request_id_headers: bool
    enable_server_load_tracking: bool
    dev_mode: bool
    enable_sleep_mode: bool
    logits_processors: re.Pattern[str] | None
    """Names of the processors that requests may bring; None: none."""
    profiles: bool
    """Traces of steps may be started and stopped."""
    response_store: bool
    """Responses may be asked for again."""
    rpc_timeout: float
    """Seconds for the engine to answer an administrative question."""
    disable_fastapi_docs: bool
    root_path: str
    otlp_traces_endpoint: str | None
    detailed_traces: frozenset[str]
    """Of which parts each trace tells the times: model, worker or all."""
    show_hidden_metrics_for_version: str | None
    drain_grace: float
    """Seconds after SIGTERM in which requests that still arrive are served."""
    drain_timeout: float
    """Seconds after that for open requests to end."""
    idle_check_interval: float
    """Seconds without a step after which a probe has one computed; 0: never."""
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
    adapters = arguments["enable_lora"]
    given = arguments.given
    auto_tools = arguments["enable_auto_tool_choice"] if "enable_auto_tool_choice" in given else None
    effort = {"reasoning_effort": arguments["reasoning_effort"]} if arguments["reasoning_effort"] else {}
    derived: dict[str, Any] = {
        "template_defaults": effort | arguments["default_chat_template_kwargs"],
        "served_names": tuple(arguments["served_model_name"] or [arguments["model"]]),
        "override_generation_config": arguments["override_generation_config"] or {},
        "adapters": _adapters(arguments),
        "max_loras": arguments["max_loras"] if adapters else 0,
        "updates_loras": adapters and environment.allow_runtime_lora_updating,
        "seed": arguments["seed"] if "seed" in given else None,
        "enable_auto_tool_choice": auto_tools,
        "chooses_tool_call_parser": "tool_call_parser" not in given,
        "chooses_reasoning_parser": "reasoning_parser" not in given,
        "priorities": arguments["scheduling_policy"] == "priority",
        "api_keys": tuple(arguments["api_key"] or ()),
        "batch_size_interval": max(environment.log_batchsize_interval, 0.0),
        "dev_mode": environment.server_dev_mode,
        "profiles": environment.torch_profiler_dir is not None,
        "response_store": environment.enable_responses_api_store,
        "rpc_timeout": environment.rpc_timeout / 1000,
        "root_path": (arguments["root_path"] or "").rstrip("/"),
        "detailed_traces": frozenset(arguments["collect_detailed_traces"] or ()),
        "step_timeout": environment.engine_iteration_timeout_s,
        "stay_after_death": environment.keep_alive_on_engine_death,
        "logits_processors": _pattern(arguments["logits_processor_pattern"]),
        "shown_arguments": arguments.redacted(),
    }
    return Settings(**_of_same_name(Settings, arguments, derived))


def _adapters(arguments: Arguments) -> tuple[AdapterModule, ...]:
    """Those of both kinds that are served."""
    low_rank = arguments["lora_modules"] if arguments["enable_lora"] else None
    prompts = arguments["prompt_adapters"] if arguments["enable_prompt_adapter"] else None
    pairs = map(name_and_path, prompts or ())
    return (
        *(AdapterModule(**one) for one in low_rank or ()),
        *(AdapterModule(name, path, is_prompt=True) for name, path in pairs),
    )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    """Raises Exit for what is no regular expression."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        message = f"--logits-processor-pattern {text} is no regular expression: {error}."
        raise Exit(
            BAD_ARGUMENTS, message, "Escape what is meant as it stands.", "logits_processor_pattern"
        ) from None


def _of_same_name(told: type, arguments: Arguments, derived: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of what is told: those that are `derived`, and for others the argument of that name."""
    same = {name: arguments[name] for name in told.__annotations__.keys() - derived if name in ARGUMENTS}
    return {**same, **derived}
