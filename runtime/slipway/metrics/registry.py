"""The server's metrics, filled from the engine's messages and written as Prometheus reads them.

Imported only by the server: it needs prometheus_client.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from slipway.engine.messages import RequestTiming, Speculated, Stats
from slipway.metrics.adapters import AdapterInfo
from slipway.metrics.declared import CACHE_LABELS, METRICS, SPECULATION
from slipway.metrics.metric import Metric, parse_version

FINISHED = ("stop", "length", "abort")
"""Endings that are no error."""
MILLISECONDS = 1000.0
NOTED_AT_MOST = 10_000
"""Observations that wait for a reader before they are entered all the same."""
ADAPTERS = "vllm:lora_requests_info"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
RATES = frozenset(metric.name for metric in SPECULATION if metric.since)
"""Without a series until there are drafts: a rate of 0 would say too much."""


def share(folder: str, index: int) -> None:
    """Keep the metrics of this process in files of `folder`, for the sums over all that have theirs there.

    They outlive it: a process of the same `index` counts on from where the last one ended, so that counters
    never fall. To be called before there are any metrics.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # the library looks there
    values.ValueClass = values.MultiProcessValue(lambda: index)  # type: ignore[no-untyped-call]


class _Sums(Collector):
    """The registry's metrics as all processes together have them."""

    def __init__(self, registry: CollectorRegistry, folder: str) -> None:
        self._registry = registry
        self._collector = MultiProcessCollector(None, folder)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterable[Family]:
        summed = {family.name: family for family in self._collector.collect()}  # type: ignore[no-untyped-call]
        for family in self._registry.collect():
            found = summed.get(family.name)
            yield found if found is not None and found.samples else family


class ServerMetrics:
    """The metrics of one served model. Every method is cheap enough for each step and token.

    What comes is noted and entered when somebody reads them: a histogram of
    prometheus_client costs microseconds, which on a CPU would be taken from the model at every step.

    `model_name` is the first served name, also for requests to an adapter; `folder` is that of `share`, where
    it was called; `max_loras` are the adapters of a step, 0 where none are served. Raises ValueError where
    `show_hidden_for` is no version.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        show_hidden_for: str | None = None,
        folder: str | None = None,
        *,
        max_loras: int = 0,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # no *_created series
        self._registry = CollectorRegistry()
        self._exposed: Collector = _Sums(self._registry, folder) if folder else self._registry
        self._model_name = model_name
        self._gauges: dict[str, list[Gauge]] = defaultdict(list)
        self._counters: dict[str, list[Counter]] = defaultdict(list)
        self._histograms: dict[str, list[Histogram]] = defaultdict(list)
        """By name, each with those that are the same as it."""
        self._last: dict[str, float] = {}
        self._added: dict[str, float] = defaultdict(float)
        self._observed: list[tuple[str, float]] = []
        self._queries = 0
        self._hits = 0
        self._speculated = Speculated()
        hidden_for = parse_version(show_hidden_for)
        for metric in METRICS:
            if metric.name == ADAPTERS:
                self._adapters = AdapterInfo(metric, max_loras)
                self._registry.register(self._adapters)
            elif metric.shown(hidden_for):
                self._declare(metric, max_model_len)
        for reason in ("capacity", "deferred"):
            name = f"{WAITING_BY_REASON} {reason}"
            self._gauges[name] = [one.labels(model_name, reason) for one in self._gauges[WAITING_BY_REASON]]
        (self._ended,) = self._counters["vllm:request_success_total"]
        for reason in FINISHED:
            self._ended.labels(model_name, reason)

    def _declare(self, metric: Metric, max_model_len: int) -> None:
        """Adds the metric to the registry; one with no label but the model's name starts at 0."""
        name, about = metric.same_as or metric.name, (metric.name, metric.summary, metric.labels)
        ready = metric.labels == ("model_name",) and metric.name not in RATES
        match metric.type:
            case "gauge":
                # All processes are told the engine's state: the latest to be told is right.
                gauge = Gauge(*about, registry=self._registry, multiprocess_mode="mostrecent")
                self._gauges[name].append(gauge.labels(self._model_name) if ready else gauge)
            case "counter":
                counter = Counter(*about, registry=self._registry)
                self._counters[name].append(counter.labels(self._model_name) if ready else counter)
            case "histogram":
                buckets = metric.buckets_for(max_model_len)
                histogram = Histogram(*about, registry=self._registry, buckets=buckets)
                self._histograms[name].append(histogram.labels(self._model_name))

    def record_startup(self, seconds: Mapping[str, float]) -> None:
        """`seconds` of each phase, as the engine's `Ready` tells them."""
        (gauge,) = self._gauges["slipway_startup_seconds"]
        for phase, duration in seconds.items():
            gauge.labels(self._model_name, phase).set(duration)

    def record_cache(self, settings: Mapping[str, object]) -> None:
        """How the KV cache was set up: a value for each of CACHE_LABELS, written as Python does."""
        (gauge,) = self._gauges["vllm:cache_config_info"]
        gauge.labels(self._model_name, *(settings[name] for name in CACHE_LABELS)).set(1)

    def record_step(self, stats: Stats) -> None:
        """The engine's state and its steps since the last Stats."""
        self._set("vllm:num_requests_running", stats.num_running)
        self._set("vllm:num_requests_waiting", stats.num_waiting)
        self._set(f"{WAITING_BY_REASON} deferred", stats.num_deferred)
        self._set(f"{WAITING_BY_REASON} capacity", stats.num_waiting - stats.num_deferred)
        self._set("vllm:gpu_cache_usage_perc", stats.cache_usage)
        self._set("vllm:num_requests_swapped", stats.num_swapped)
        self._set("vllm:cpu_cache_usage_perc", stats.swap_usage)
        self._adapters.note(stats.running_adapters, stats.waiting_adapters)
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
            self._gauges[name] = [gauge.labels(self._model_name) for gauge in self._gauges[name]]
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
            self._ended.labels(self._model_name, reason).inc()
        else:
            self._count("slipway_request_failures_total", 1)
        self._observe("vllm:request_prompt_tokens", prompt_tokens)
        self._observe("vllm:request_generation_tokens", output_tokens)
        self._observe("vllm:request_max_num_generation_tokens", max_tokens)
        self._observe("vllm:request_params_max_tokens", max_tokens)
        if timing is not None:
            self._observe("vllm:request_prefill_kv_computed_tokens", prompt_tokens - cached_tokens)
            self._record_timing(timing, output_tokens)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format, of `content_type`."""
        self.enter()
        return generate_latest(self._exposed)

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
