"""The server's metrics, filled from the engine's messages and written as Prometheus reads them.

Imported only by the server: it needs prometheus_client.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

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

from slipway.metrics.adapters import AdapterInfo
from slipway.metrics.declared import METRICS
from slipway.metrics.engine import EngineMetrics, Families
from slipway.metrics.metric import LABELS, Metric, parse_version

ADAPTERS = "vllm:lora_requests_info"


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
    """The metrics of one served model: `of` has those of each engine.

    `model_name` is the first served name, also for requests to an adapter; `folder` is that of `share`, where
    it was called; `max_loras` are the adapters of a step, 0 where none are served; `ranks` are those of the
    engines. Raises ValueError where `show_hidden_for` is no version.
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
        ranks: Sequence[int] = (0,),
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # no *_created series
        self._registry = CollectorRegistry()
        self._exposed: Collector = _Sums(self._registry, folder) if folder else self._registry
        self._families = Families()
        hidden_for = parse_version(show_hidden_for)
        for metric in METRICS:
            if metric.name == ADAPTERS:
                adapters = AdapterInfo(metric, max_loras)
                self._registry.register(adapters)
            elif metric.shown(hidden_for):
                self._declare(metric, max_model_len)
        self.of = {rank: EngineMetrics(self._families, adapters, model_name, rank) for rank in ranks}
        """By rank."""

    def _declare(self, metric: Metric, max_model_len: int) -> None:
        """Adds the metric to the registry."""
        name, about = metric.same_as or metric.name, (metric.name, metric.summary, metric.labels)
        if metric.labels != LABELS:
            self._families.labelled.add(name)
        match metric.type:
            case "gauge":
                # All processes are told the engine's state: the latest to be told is right.
                gauge = Gauge(*about, registry=self._registry, multiprocess_mode="mostrecent")
                self._families.gauges[name].append(gauge)
            case "counter":
                self._families.counters[name].append(Counter(*about, registry=self._registry))
            case "histogram":
                buckets = metric.buckets_for(max_model_len)
                histogram = Histogram(*about, registry=self._registry, buckets=buckets)
                self._families.histograms[name].append(histogram)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format, of `content_type`."""
        self.enter()
        return generate_latest(self._exposed)

    def enter(self) -> None:
        """Bring the registry up to date with what was noted."""
        for engine in self.of.values():
            engine.enter()
