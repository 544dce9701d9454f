"""`vllm:lora_requests_info`: which adapters requests run with and wait for."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway.metrics.metric import Metric


class AdapterInfo(Collector):
    """One series, of the adapters of all engines as they are now; none where none are served.

    A gauge of prometheus_client would keep a series for each set of names that there ever was. Each of
    several API processes is told the engine's whole state, so that there is nothing to add up.
    """

    def __init__(self, metric: Metric, max_loras: int) -> None:
        self._metric = metric
        self._max_loras = max_loras
        self._of: dict[int, tuple[list[str], list[str]]] = {}
        """By rank, names of those that requests run with, and wait for."""
        self._changed = time.time()

    def note(self, rank: int, running: list[str], waiting: list[str]) -> None:
        """Names as an engine's Stats has them."""
        if (running, waiting) != self._of.get(rank, ([], [])):
            self._of[rank] = (running, waiting)
            self._changed = time.time()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._metric.name, self._metric.summary, labels=self._metric.labels)
        if self._max_loras:
            running, waiting = (
                ",".join(sorted({name for both in self._of.values() for name in both[which]}))
                for which in (0, 1)
            )
            values = [str(self._max_loras), running, waiting]
            family.add_metric(values, self._changed)
        yield family
