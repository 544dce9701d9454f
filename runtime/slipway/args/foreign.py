"""Flags of vLLM that this server has no argument for: what becomes of a line that has them.

Facts about vLLM 0.33. A flag that changes no answer is taken, with its reason why it has no effect; one that
asks for another result, or for a feature that is not here, ends the start, unless its value asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from slipway.args.errors import ArgumentError


class Takes(Enum):
    """What follows the flag."""

    NOTHING = "nothing"
    """It has a --no- form."""
    ONE = "one value"
    """Or a JSON object, which also comes key by key."""
    SEVERAL = "values up to the next flag"


@dataclass(frozen=True, slots=True)
class Foreign:
    """One flag. `nothing` are the values that ask for nothing, beside vLLM's words for none."""

    name: str
    takes: Takes
    reason: str
    refused: bool = False
    nothing: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def asks(self, value: str) -> bool:
        return value.lower() not in (*self.nothing, "none", "null", "", "{}", "[]", "false")


def _rows(
    reason: str,
    flags: str = "",
    ones: str = "",
    several: str = "",
    nothing: str = "",
    *,
    refused: bool = False,
) -> Iterator[Foreign]:
    """Flags of one reason by what they take; `nothing`: values of theirs that ask for nothing."""
    for names, takes in ((flags, Takes.NOTHING), (ones, Takes.ONE), (several, Takes.SEVERAL)):
        for name in names.split():
            yield Foreign(name, takes, reason, refused, tuple(nothing.split()))


def _aside(reason: str, flags: str = "", ones: str = "", several: str = "") -> Iterator[Foreign]:
    return _rows(reason, flags, ones, several)


def _refused(
    reason: str, flags: str = "", ones: str = "", several: str = "", nothing: str = ""
) -> Iterator[Foreign]:
    return _rows(reason, flags, ones, several, nothing, refused=True)


_NO_MEDIA = "images, audio and video are not read"
_NO_STATE = "models with a recurrent state run in transformers' own code, which keeps it as it is"
_KERNELS = "kernels are chosen by the device and the shapes"

FOREIGN: Mapping[str, Foreign] = {
    row.name: row
    for row in (
        # Steps.
        *_aside("steps are planned ahead wherever the worker runs ahead", "async_scheduling"),
        *_aside(
            "a step is not split into overlapping halves",
            "enable_dbo",
            "dbo_decode_token_threshold dbo_prefill_token_threshold ubatch_size",
        ),
        *_aside("the threshold of long prompts is fixed", "long_prefill_token_threshold_adaptive"),
        *_aside("prompts begin in any step that has room", ones="prefill_schedule_interval"),
        *_aside("prompts start when all their pages are free in any case", "scheduler_reserve_full_isl"),
        *_aside("pages that started prompts need are kept for them, and no others", ones="watermark"),
        *_aside("--max-num-batched-tokens bounds a step", ones="max_num_scheduled_tokens"),
        *_aside("--max-num-seqs bounds the running requests", ones="max_num_active_seqs"),
        *_refused(
            "what waits is bounded by --max-num-queued-reqs and --max-concurrency, in requests",
            ones="max_num_queued_tokens",
        ),
        # Prefix cache and pages.
        *_aside(
            "the prefix cache forgets what was unused for longest", ones="prefix_cache_retention_interval"
        ),
        *_aside("prefixes match in blocks of tokens", ones="prefix_match_unit"),
        *_aside("pages that have left a window are given back at once", "swa_bounded_replay"),
        *_refused(
            "pages move to host memory by --preemption-mode swap and --swap-space alone",
            ones="kv_offloading_backend kv_offloading_size",
            nothing="native 0",
        ),
        *_refused("all layers keep --kv-cache-dtype", several="kv_cache_dtype_skip_layers"),
        # Models with a state.
        *_aside(
            _NO_STATE,
            "enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint use_replayssm",
            "mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds "
            "mamba_ssm_cache_dtype mamba_ssu_algorithm replayssm_buffer_len gdn_prefill_backend "
            "kda_decode_backend kda_prefill_backend",
        ),
        # Kernels and compilation.
        *_aside(
            _KERNELS,
            "enable_flashinfer_autotune monokernel",
            "attention_config ir_op_priority kernel_config linear_backend moe_backend "
            "sparse_indexer_topk_backend performance_mode all2all_backend dcp_comm_backend",
        ),
        *_aside("how numbers are drawn is fixed", "use_fp64_gumbel"),
        *_aside(
            "the server does not watch for kernels that are compiled while it serves",
            "jit_monitor_verbose",
            "jit_monitor_mode",
        ),
        # Devices, ranks and nodes.
        *_refused(
            "a long prompt is not shared out over devices",
            "dcp_q_replicate",
            "decode_context_parallel_size prefill_context_parallel_size",
            nothing="1",
        ),
        *_aside(
            "a long prompt is not shared out over devices",
            ones="cp_kv_cache_interleave_size dcp_kv_cache_interleave_size",
        ),
        *_refused(
            "the number of copies is fixed once they run",
            "enable_elastic_ep",
            "elastic_ep_max_dp_size",
            nothing="0",
        ),
        *_refused(
            "use one Service for all copies, or --data-parallel-external-lb",
            "data_parallel_multi_port_external_lb",
        ),
        *_aside(
            "there is no supervisor of several ports",
            ones="data_parallel_supervisor_port dp_supervisor_probe_failure_threshold "
            "dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s",
        ),
        *_aside(
            "copies do not wait for one another", "disable_nccl_for_dp_synchronization", "dp_sync_interval"
        ),
        *_aside("a rank reads what it computes, and nothing else", "enable_ep_weight_filter"),
        *_aside("each device has a run of experts, as with linear", ones="expert_placement_strategy"),
        *_aside(
            "a rank that is lost is seen by its heartbeat, and the server ends with the cause",
            "enable_fault_tolerance",
            "cpu_distributed_timeout_seconds distributed_timeout_seconds fault_tolerance_config "
            "watchdog_config",
        ),
        *_aside(
            "ranks meet as their devices and hosts allow",
            "enable_shm_tensor_arena enable_hc_sp enable_batch_sharded_sampling",
        ),
        *_aside(
            "VLLM_CPU_OMP_THREADS_BIND chooses the cores of an engine",
            "numa_bind",
            several="numa_bind_cpus numa_bind_nodes",
        ),
        *_refused(
            "devices are chosen by CUDA_VISIBLE_DEVICES, and in Kubernetes by the device plugin",
            ones="device_ids",
        ),
        # Weights and their place.
        *_aside(
            "layers are copied ahead of their turn, one at a time",
            ones="offload_group_size offload_num_in_group offload_prefetch_step",
        ),
        *_aside("--cpu-offload-gb says how much lies in host memory", ones="offload_backend"),
        *_refused("--cpu-offload-gb moves whole layers", several="cpu_offload_params offload_params"),
        *_aside(
            "weights are read as fast as the disk gives them",
            ones="safetensors_load_strategy safetensors_prefetch_block_size safetensors_prefetch_num_threads",
        ),
        *_aside("no form of weights is called deprecated here", "allow_deprecated_quantization"),
        *_refused("a checkpoint says its own scheme, and --quantization another", ones="quantization_config"),
        *_refused("architectures are served by their own code", ones="model_class_overrides"),
        *_refused("weights are not exchanged while a server runs", ones="weight_transfer_config"),
        *_aside(
            "sleep frees pages and weights, and graphs are captured again",
            "enable_cumem_allocator enable_nccl_comm_suspend sleep_mode_offload_cudagraph",
            "sleep_mode_backend",
        ),
        *_refused("sleep at level 2 drops all weights", several="sleep_preserve_parameter_names"),
        # Adapters.
        *_aside(
            "a step has the adapters of its requests and no others",
            "specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras",
        ),
        *_refused("an adapter applies to all modules that it has", several="lora_target_modules"),
        *_refused(_NO_MEDIA, "enable_tower_connector_lora", "default_mm_loras"),
        *_aside("labels are those of the model", ones="max_lora_cls_labels"),
        # Images, audio and video.
        *_aside("a model's text part alone is served in any case", "language_model_only skip_mm_profiling"),
        *_aside(
            _NO_MEDIA,
            "interleave_mm_strings mm_device_do_normalize trust_request_mm_kwargs",
            "media_io_kwargs mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path "
            "mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_tp_mode "
            "mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type "
            "mm_processor_device mm_shm_cache_max_object_size_mb mm_tensor_ipc video_pruning_method "
            "video_pruning_rate ec_manager_config",
            "allowed_media_domains",
        ),
        *_refused(_NO_MEDIA, "enable_mm_embeds mm_encoder_only", "ec_transfer_config"),
        *_refused("diffusion models are not served", "omni", ones="diffusion_config"),
        # What answers hold.
        *_refused(
            "answers tell log-probabilities of the model's own distribution",
            ones="logprobs_mode",
            nothing="raw_logprobs",
        ),
        *_refused(
            "answers hold no routes, masks and states of layers",
            "enable_return_routed_experts return_sampling_mask enable_trace_replay",
            "aux_output_config engram_config",
        ),
        *_refused("the server puts no watermark into texts", ones="watermark_config"),
        *_refused(
            "requests bring processors by name (--logits-processor-pattern)", several="logits_processors"
        ),
        *_refused("inputs and outputs of pooling have the forms of the API", ones="io_processor_plugin"),
        *_refused(
            "the parser of --reasoning-parser says what begins and ends reasoning", ones="reasoning_config"
        ),
        *_aside("requests are prepared in threads as they come", ones="renderer_num_workers"),
        # The HTTP server.
        *_refused("the server speaks HTTP alone", flags="grpc", ones="grpc_port"),
        *_refused("TLS has the ciphers of its library", ones="ssl_ciphers"),
        *_aside(
            "headers are bounded by the server's own parser",
            ones="h11_max_header_count h11_max_incomplete_event_size",
        ),
        *_refused("tools are called by clients", ones="tool_server"),
        *_refused("there are no endpoints of tokens alone", "tokens_only enable_scale_out"),
        *_aside("/docs and /redoc never load anything from another server", "enable_offline_docs"),
        *_refused(
            "answers have no fingerprint of another form",
            ones="fingerprint_mode fingerprint_value",
            nothing="full",
        ),
        *_aside("late interaction is not served", "enable_flash_late_interaction"),
        *_refused("Cohere's own API is not served", "cohere_is_reasoning_model", "cohere_format"),
        *_refused(
            "the template sees the tools of a request whatever its tool_choice",
            "exclude_tools_when_tool_choice_none",
        ),
        *_refused("a tool says whether its calls are held to its schema (strict)", ones="tool_strict_level"),
        *_refused(
            "efforts reach the template as they come",
            ones="reasoning_effort_map anthropic_disabled_thinking_effort",
            nothing="auto",
        ),
        # Logs, metrics and traces.
        *_aside(
            "each engine's line tells its own numbers",
            "aggregate_engine_logging cudagraph_metrics enable_layerwise_nvtx_tracing "
            "enable_logging_iteration_details enable_mfu_metrics kv_cache_metrics",
            "kv_cache_metrics_sample per_request_spec_decode_metrics",
        ),
        *_refused("histograms have the buckets that dashboards know", ones="custom_histogram_buckets"),
        *_aside(
            "VLLM_LOGGING_LEVEL and --log-config-file say what is logged",
            "log_error_stack",
            "logging_config log_level",
        ),
        *_aside("--enable-log-outputs logs an answer's text once it has ended", "enable_log_deltas"),
        *_refused("VLLM_TORCH_PROFILER_DIR has /start_profile trace steps", ones="profiler_config"),
        *_aside("unknown variables of this server are said at the start", "fail_on_environ_validation"),
    )
}
"""By name, with underscores."""

SHORT = {
    "-ac": "attention_config",
    "-dc": "diffusion_config",
    "-dcp": "decode_context_parallel_size",
    "-dpm": "data_parallel_multi_port_external_lb",
    "-pcp": "prefill_context_parallel_size",
}


def find(name: str) -> Foreign | None:
    """The row of a long name; dashes and underscores are the same."""
    return FOREIGN.get(name.replace("-", "_"))


def judge(given: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """What becomes of those that a line or a file has, by their values. Raises ArgumentError."""
    for name, value in given.items():
        row = FOREIGN[name]
        if row.refused and row.asks(value):
            raise ArgumentError(f"{row.flag}, which vLLM has, is refused: {row.reason}.", name)
        if not row.refused:
            warn(f"{row.flag} has no effect: {row.reason}.")
