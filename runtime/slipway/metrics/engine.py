"""The metrics of one engine, filled from its messages and from its requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from slipway.engine.messages import RequestTiming, Speculated, Stats
from slipway.metrics.adapters import AdapterInfo
from slipway.metrics.declared import CACHE_LABELS, METRICS, SPECULATION

FINISHED = ("stop", "length", "abort")
"""Endings that are no error."""
MILLISECONDS = 1000.0
NOTED_AT_MOST = 10_000
"""Observations that wait for a reader before they are entered all the same."""
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
RATES = frozenset(metric.name for metric in SPECULATION if metric.since)
LATER = frozenset(metric.name for metric in METRICS if metric.since)
"""Without a series until there is something to tell: a rate of 0 would say too much."""


class Families:
    """What a registry holds, by name: each metric with those that are the same as it."""

    def __init__(self) -> None:
        self.gauges: dict[str, list[Gauge]] = defaultdict(list)
        self.counters: dict[str, list[Counter]] = defaultdict(list)
        self.histograms: dict[str, list[Histogram]] = defaultdict(list)
        self.labelled: set[str] = set()
        """Those with more labels than the model's name and the engine, which have a series by each value."""


class EngineMetrics:
    """Every method is cheap enough for each step and token.

    What comes is noted and entered when somebody reads it: a histogram of prometheus_client costs
    microseconds, which on a CPU would be taken from the model at every step.
    """

    def __init__(self, families: Families, adapters: AdapterInfo, model_name: str, rank: int) -> None:
        self._families = families
        self._adapters = adapters
        self._rank = rank
        self._labels = (model_name, str(rank))
        self._gauges: dict[str, list[Gauge]] = defaultdict(list)
        self._counters: dict[str, list[Counter]] = defaultdict(list)
        self._histograms: dict[str, list[Histogram]] = defaultdict(list)
        """The engine's own series; those without another label start at 0."""
        for name in families.gauges.keys() - families.labelled - LATER:
            self._gauges[name] = [one.labels(*self._labels) for one in families.gauges[name]]
        for name in families.counters.keys() - families.labelled:
            self._counters[name] = [one.labels(*self._labels) for one in families.counters[name]]
        for name, histograms in families.histograms.items():
            self._histograms[name] = [one.labels(*self._labels) for one in histograms]
        for reason in ("capacity", "deferred"):
            name = f"{WAITING_BY_REASON} {reason}"
            self._gauges[name] = [
                one.labels(*self._labels, reason) for one in families.gauges[WAITING_BY_REASON]
            ]
        (self._ended,) = families.counters["vllm:request_success_total"]
        for reason in FINISHED:
            self._ended.labels(*self._labels, reason)
        self._last: dict[str, float] = {}
        self._added: dict[str, float] = defaultdict(float)
        self._observed: list[tuple[str, float]] = []
        self._queries = 0
        self._hits = 0
        self._speculated = Speculated()

    def record_startup(self, seconds: Mapping[str, float]) -> None:
        """`seconds` of each phase, as the engine's `Ready` tells them."""
        (gauge,) = self._families.gauges["slipway_startup_seconds"]
        for phase, duration in seconds.items():
            gauge.labels(*self._labels, phase).set(duration)

    def record_memory(self, at_rest: int, in_full: int, measured: int | None) -> None:
        """Bytes: two that were estimated, and what the server took once it was ready, where that is known."""
        (estimated,) = self._families.gauges["slipway_memory_estimated_bytes"]
        estimated.labels(*self._labels, "at_rest").set(at_rest)
        estimated.labels(*self._labels, "in_full").set(in_full)
        if measured is not None:
            (gauge,) = self._families.gauges["slipway_memory_measured_bytes"]
            gauge.labels(*self._labels).set(measured)

    def record_cache(self, settings: Mapping[str, object]) -> None:
        """How the KV cache was set up: a value for each of CACHE_LABELS, written as Python does."""
        (gauge,) = self._families.gauges["vllm:cache_config_info"]
        gauge.labels(*self._labels, *(settings[name] for name in CACHE_LABELS)).set(1)

    def record_step(self, stats: Stats) -> None:
        """The engine's state and its steps since the last Stats."""
        self._set("vllm:num_requests_running", stats.num_running)
        self._set("vllm:num_requests_waiting", stats.num_waiting)
        self._set(f"{WAITING_BY_REASON} deferred", stats.num_deferred)
        self._set(f"{WAITING_BY_REASON} capacity", stats.num_waiting - stats.num_deferred)
        self._set("vllm:gpu_cache_usage_perc", stats.cache_usage)
        self._set("vllm:num_requests_swapped", stats.num_swapped)
        self._set("vllm:cpu_cache_usage_perc", stats.swap_usage)
        self._adapters.note(self._rank, stats.running_adapters, stats.waiting_adapters)
        self._count("vllm:prompt_tokens_total", stats.prompt_tokens)
        self._count("vllm:generation_tokens_total", stats.generation_tokens)
        if stats.prefix_queries or stats.preemptions:
            self._count("vllm:gpu_prefix_cache_queries", stats.prefix_queries)
            self._count("vllm:gpu_prefix_cache_hits", stats.prefix_hits)
            self._count("vllm:num_preemptions_total", stats.preemptions)
            self._queries += stats.prefix_queries
            self._hits += stats.prefix_hits
            self._set("vllm:gpu_prefix_cache_hit_rate", self._hits / max(self._queries, 1))
        if stats.speculated:
            self._record_drafts(stats.speculated)
        for tokens in stats.num_step_tokens:
            self._observe("vllm:iteration_tokens_total", tokens)
        for seconds in stats.step_seconds:
            self._observe("slipway_step_seconds", seconds)
            self._observe("vllm:model_forward_time_milliseconds", seconds * MILLISECONDS)
            self._observe("vllm:model_execute_time_milliseconds", seconds * MILLISECONDS)

    def _record_drafts(self, new: Speculated) -> None:
        """Drafts verified since the last Stats."""
        for name in RATES if not self._speculated.drafts else ():
            self._gauges[name] = [gauge.labels(*self._labels) for gauge in self._families.gauges[name]]
        told = self._speculated
        told.add(new.proposed, new.accepted, new.emitted, new.drafts)
        self._count("vllm:spec_decode_num_draft_tokens_total", new.proposed)
        self._count("vllm:spec_decode_num_accepted_tokens_total", new.accepted)
        self._count("vllm:spec_decode_num_emitted_tokens_total", new.emitted)
        self._set("vllm:spec_decode_draft_acceptance_rate", told.accepted / told.proposed)
        self._set("vllm:spec_decode_efficiency", told.emitted / (told.proposed + told.drafts))

    def record_first_token(self, seconds: float) -> None:
        """`seconds` from a request's arrival to its first token."""
        self._observe("vllm:time_to_first_token_seconds", seconds)

    def record_inter_token(self, seconds: float) -> None:
        """`seconds` from one token of a request to the next."""
        self._observe("vllm:time_per_output_token_seconds", seconds)

    def record_request(self, n: int) -> None:
        """A request for `n` answers to each of its prompts."""
        self._observe("vllm:request_params_n", n)

    def record_finished(
        self,
        timing: RequestTiming | None,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        max_tokens: int,
        reason: str,
    ) -> None:
        """The end of one of a request's answers; `timing` is None where it has not one token."""
        if reason in FINISHED:
            self._ended.labels(*self._labels, reason).inc()
        else:
            self._count("slipway_request_failures_total", 1)
        self._observe("vllm:request_prompt_tokens", prompt_tokens)
        self._observe("vllm:request_generation_tokens", output_tokens)
        self._observe("vllm:request_max_num_generation_tokens", max_tokens)
        self._observe("vllm:request_params_max_tokens", max_tokens)
        if timing is not None:
            self._observe("vllm:request_prefill_kv_computed_tokens", prompt_tokens - cached_tokens)
            self._record_timing(timing, output_tokens)

    def _record_timing(self, timing: RequestTiming, output_tokens: int) -> None:
        arrival, scheduled, first, last = (
            timing.arrival,
            timing.scheduled,
            timing.first_token,
            timing.last_token,
        )
        self._span("vllm:request_queue_time_seconds", arrival, scheduled)
        self._span("vllm:time_in_queue_requests", arrival, scheduled)
        self._span("vllm:request_prefill_time_seconds", scheduled, first)
        self._span("vllm:request_decode_time_seconds", first, last)
        self._span("vllm:request_inference_time_seconds", scheduled, last)
        self._span("vllm:e2e_request_latency_seconds", arrival, last)
        if output_tokens > 1:
            self._observe("vllm:request_time_per_output_token_seconds", (last - first) / (output_tokens - 1))

    def _span(self, name: str, start: float, end: float) -> None:
        """Observes a stretch of a request; one that an early abort never reached ends at 0."""
        if end >= start > 0:
            self._observe(name, end - start)

    def _set(self, name: str, value: float) -> None:
        self._last[name] = value

    def _observe(self, name: str, value: float) -> None:
        self._observed.append((name, value))
        if len(self._observed) >= NOTED_AT_MOST:
            self.enter()

    def enter(self) -> None:
        """Bring the registry up to date with what was noted."""
        for name, value in self._last.items():
            for gauge in self._gauges[name]:
                gauge.set(value)
        for name, value in self._added.items():
            for counter in self._counters[name]:
                counter.inc(value)
        self._added.clear()
        observed, self._observed = self._observed, []
        for name, value in observed:
            for histogram in self._histograms[name]:
                histogram.observe(value)

    def _count(self, name: str, amount: float) -> None:
        self._added[name] += amount
