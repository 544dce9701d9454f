"""All metrics of the server."""

from __future__ import annotations

from functools import partial

from slipway.metrics.metric import Metric

SECONDS_OF_A_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
SECONDS_TO_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
SECONDS_BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
SECONDS_OF_A_STEP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKENS_OF_A_STEP = tuple(float(n) for n in (1, *(2**power for power in range(3, 15))))

CACHE_LABELS = (
    *("block_size", "cache_dtype", "calculate_kv_scales", "cpu_offload_gb", "enable_prefix_caching"),
    *("gpu_memory_utilization", "num_gpu_blocks", "num_gpu_blocks_override", "prefix_caching_hash_algo"),
    "swap_space",
)

_histogram = partial(Metric, type="histogram")
_gauge = partial(Metric, type="gauge")
_counter = partial(Metric, type="counter")

STATE = (
    _gauge(
        name="vllm:num_requests_running",
        summary="Requests that take part in steps.",
        unit="requests",
    ),
    _gauge(
        name="vllm:num_requests_waiting",
        summary="Requests that wait for their first step, or after a preemption for their next.",
        unit="requests",
    ),
    _gauge(
        name="vllm:num_requests_waiting_by_reason",
        summary="Of these, by reason: `deferred` for what is under way, such as a prompt that another "
        "request computes; `capacity` for a slot, tokens of a step or pages.",
        unit="requests",
        labels=("model_name", "engine", "reason"),
    ),
    _gauge(
        name="vllm:gpu_cache_usage_perc",
        summary="Share of the KV cache's pages in use, 0 to 1, on whatever device they lie.",
        unit="ratio",
    ),
    _gauge(
        name="vllm:kv_cache_usage_perc",
        summary="Share of the KV cache's pages in use, 0 to 1.",
        unit="ratio",
        same_as="vllm:gpu_cache_usage_perc",
    ),
    _counter(
        name="vllm:gpu_prefix_cache_queries",
        summary="Prompt tokens looked up in the prefix cache.",
        unit="tokens",
    ),
    _counter(
        name="vllm:prefix_cache_queries",
        summary="Prompt tokens looked up in the prefix cache.",
        unit="tokens",
        same_as="vllm:gpu_prefix_cache_queries",
    ),
    _counter(
        name="vllm:gpu_prefix_cache_hits",
        summary="Prompt tokens found in the prefix cache.",
        unit="tokens",
    ),
    _counter(
        name="vllm:prefix_cache_hits",
        summary="Prompt tokens found in the prefix cache.",
        unit="tokens",
        same_as="vllm:gpu_prefix_cache_hits",
    ),
    _gauge(
        name="vllm:cache_config_info",
        summary="How the KV cache was set up; the value is always 1.",
        unit="servers",
        labels=("model_name", "engine", *CACHE_LABELS),
    ),
    _counter(
        name="vllm:num_preemptions_total",
        summary="Times that a running request gave its pages back.",
        unit="preemptions",
    ),
    _gauge(
        name="vllm:lora_requests_info",
        summary="Names of the LoRA adapters of running and of waiting requests, with commas; the value is "
        "the time of their last change.",
        unit="Unix time",
        labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        since="the start, with --enable-lora",
    ),
)

TOKENS = (
    _counter(
        name="vllm:prompt_tokens_total",
        summary="Prompt tokens computed or found in the prefix cache, once for each request.",
        unit="tokens",
    ),
    _counter(
        name="vllm:generation_tokens_total",
        summary="Tokens generated.",
        unit="tokens",
    ),
    _histogram(
        name="vllm:iteration_tokens_total",
        summary="Histogram of number of tokens per engine_step.",
        unit="tokens",
        buckets=TOKENS_OF_A_STEP,
    ),
)

REQUESTS = (
    _histogram(
        name="vllm:time_to_first_token_seconds",
        summary="Time from a request's arrival to its first token.",
        unit="seconds",
        buckets=SECONDS_TO_FIRST_TOKEN,
    ),
    _histogram(
        name="vllm:time_per_output_token_seconds",
        summary="Time from one token to the next.",
        unit="seconds",
        buckets=SECONDS_BETWEEN_TOKENS,
    ),
    _histogram(
        name="vllm:inter_token_latency_seconds",
        summary="Time from one token to the next.",
        unit="seconds",
        buckets=SECONDS_BETWEEN_TOKENS,
        same_as="vllm:time_per_output_token_seconds",
    ),
    _histogram(
        name="vllm:request_time_per_output_token_seconds",
        summary="Mean time from one token to the next, of an answer that has more than one.",
        unit="seconds",
        buckets=SECONDS_BETWEEN_TOKENS,
    ),
    _histogram(
        name="vllm:e2e_request_latency_seconds",
        summary="Time from a request's arrival to its last token.",
        unit="seconds",
        buckets=SECONDS_OF_A_REQUEST,
    ),
    _histogram(
        name="vllm:request_queue_time_seconds",
        summary="Time from a request's arrival to its first step.",
        unit="seconds",
        buckets=SECONDS_OF_A_REQUEST,
    ),
    _histogram(
        name="vllm:request_inference_time_seconds",
        summary="Time from a request's first step to its last token.",
        unit="seconds",
        buckets=SECONDS_OF_A_REQUEST,
    ),
    _histogram(
        name="vllm:request_prefill_time_seconds",
        summary="Time from a request's first step to its first token.",
        unit="seconds",
        buckets=SECONDS_OF_A_REQUEST,
    ),
    _histogram(
        name="vllm:request_decode_time_seconds",
        summary="Time from a request's first token to its last.",
        unit="seconds",
        buckets=SECONDS_OF_A_REQUEST,
    ),
    _histogram(
        name="vllm:request_prompt_tokens",
        summary="Tokens of a request's prompt.",
        unit="tokens",
        buckets="up to max_model_len",
    ),
    _histogram(
        name="vllm:request_prefill_kv_computed_tokens",
        summary="Tokens of a request's prompt that were not found in the prefix cache.",
        unit="tokens",
        buckets="up to max_model_len",
    ),
    _histogram(
        name="vllm:request_generation_tokens",
        summary="Tokens generated for a request.",
        unit="tokens",
        buckets="up to max_model_len",
    ),
    _histogram(
        name="vllm:request_max_num_generation_tokens",
        summary="Most tokens that each answer could get.",
        unit="tokens",
        buckets="up to max_model_len",
    ),
    _histogram(
        name="vllm:request_params_n",
        summary="The n of a request.",
        unit="answers",
        buckets=(1.0, 2.0, 5.0, 10.0, 20.0),
    ),
    _histogram(
        name="vllm:request_params_max_tokens",
        summary="The max_tokens of a request.",
        unit="tokens",
        buckets="up to max_model_len",
    ),
    _counter(
        name="vllm:request_success_total",
        summary="Requests that ended without an error, by how they ended: stop, length or abort.",
        unit="requests",
        labels=("model_name", "engine", "finished_reason"),
    ),
)

SPECULATION = (
    _gauge(
        name="vllm:spec_decode_draft_acceptance_rate",
        summary="Share of draft tokens that were accepted.",
        unit="ratio",
        since="the first draft",
    ),
    _gauge(
        name="vllm:spec_decode_efficiency",
        summary="Tokens that came out of speculation over the most that could have.",
        unit="ratio",
        since="the first draft",
    ),
    _counter(
        name="vllm:spec_decode_num_accepted_tokens_total",
        summary="Draft tokens that were accepted.",
        unit="tokens",
    ),
    _counter(
        name="vllm:spec_decode_num_draft_tokens_total",
        summary="Draft tokens that were proposed and verified, without those that a grammar forces.",
        unit="tokens",
    ),
    _counter(
        name="vllm:spec_decode_num_emitted_tokens_total",
        summary="Tokens that came out of speculation: accepted drafts, and the token drawn behind them.",
        unit="tokens",
    ),
)

DEPRECATED = (
    _gauge(
        name="vllm:num_requests_swapped",
        summary="Requests whose KV cache lies in host memory.",
        unit="requests",
        deprecated_in=(0, 8),
    ),
    _gauge(
        name="vllm:cpu_cache_usage_perc",
        summary="Share of the swap space's pages in use, 0 to 1.",
        unit="ratio",
        deprecated_in=(0, 8),
    ),
    _gauge(
        name="vllm:cpu_prefix_cache_hit_rate",
        summary="Share of look-ups that the prefix cache in swap space answered.",
        unit="ratio",
        deprecated_in=(0, 8),
        status="not built yet",
        reason="prefixes are looked up on the device alone; stays at 0",
    ),
    _gauge(
        name="vllm:gpu_prefix_cache_hit_rate",
        summary="Share of prompt tokens found in the prefix cache since start.",
        unit="ratio",
        deprecated_in=(0, 8),
        replacement=("vllm:gpu_prefix_cache_queries", "vllm:gpu_prefix_cache_hits"),
    ),
    _histogram(
        name="vllm:time_in_queue_requests",
        summary="Time from a request's arrival to its first step, in seconds.",
        unit="seconds",
        buckets=SECONDS_OF_A_REQUEST,
        deprecated_in=(0, 8),
        replacement=("vllm:request_queue_time_seconds",),
    ),
    _histogram(
        name="vllm:model_forward_time_milliseconds",
        summary="Time of a step of the engine, sampling included.",
        unit="milliseconds",
        buckets=SECONDS_OF_A_REQUEST,
        deprecated_in=(0, 8),
        replacement=(
            "vllm:request_prefill_time_seconds",
            "vllm:request_decode_time_seconds",
            "vllm:request_inference_time_seconds",
        ),
    ),
    _histogram(
        name="vllm:model_execute_time_milliseconds",
        summary="Time of a step of the engine, sampling included.",
        unit="milliseconds",
        buckets=SECONDS_OF_A_REQUEST,
        deprecated_in=(0, 8),
        replacement=(
            "vllm:request_prefill_time_seconds",
            "vllm:request_decode_time_seconds",
            "vllm:request_inference_time_seconds",
        ),
    ),
)

OWN = (
    _gauge(
        name="slipway_startup_seconds",
        summary="Time that each phase of the last start took.",
        unit="seconds",
        labels=("model_name", "engine", "phase"),
    ),
    _gauge(
        name="slipway_memory_estimated_bytes",
        summary="Memory that the model takes by the estimate: of the first device, or of the host; `when` is "
        "`at_rest` or `in_full`, which a device's memory is from the start.",
        unit="bytes",
        labels=("model_name", "engine", "when"),
    ),
    _gauge(
        name="slipway_memory_measured_bytes",
        summary="What was in use of the first device, or was the server's own of the host, when the server "
        "had become ready.",
        unit="bytes",
        since="the start, where an estimate is known",
    ),
    _histogram(
        name="slipway_step_seconds",
        summary="Time of a step of the engine, sampling included.",
        unit="seconds",
        buckets=SECONDS_OF_A_STEP,
    ),
    _counter(
        name="slipway_request_failures_total",
        summary="Requests that ended with an error of the server.",
        unit="requests",
    ),
)

METRICS: tuple[Metric, ...] = (*STATE, *TOKENS, *REQUESTS, *SPECULATION, *DEPRECATED, *OWN)
