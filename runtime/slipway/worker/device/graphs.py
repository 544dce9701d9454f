"""Decoding steps as CUDA graphs: captured for a few batch sizes, padded to the next of them."""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from slipway.worker.device.batch import StepShape

log = logging.getLogger("slipway.engine")

EARLY = (1, 2, 4, 8)
"""Sizes captured before the server is ready; the others when a batch first needs them."""


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Which batches run as graphs.

    sizes       of batches, ascending; none where graphs are off
    max_length  longest context that a graph covers (`--max-seq-len-to-capture`)
    """

    sizes: tuple[int, ...]
    max_length: int

    @classmethod
    def of(cls, asked: Sequence[int], max_requests: int, max_length: int) -> GraphSizes:
        """Sizes that the server can meet: none above the least that holds `max_requests`."""
        ascending = sorted(set(asked))
        enough = bisect.bisect_left(ascending, max_requests)
        return cls(tuple(ascending[: enough + 1]), max_length)

    def size_for(self, shape: StepShape) -> int | None:
        """Requests that a step is padded to, or None where it runs without a graph."""
        if not shape.only_decodes or shape.max_length > self.max_length:
            return None
        place = bisect.bisect_left(self.sizes, shape.num_requests)
        return self.sizes[place] if place < len(self.sizes) else None


@dataclass
class Graphs:
    """Captured steps by what distinguishes them. They share one pool of memory: only one runs at a time."""

    warm_up: int = 2
    """Runs before a capture: libraries allocate and kernels load in their first ones."""
    seconds: float = 0.0
    """Spent on captures."""
    _graphs: dict[Hashable, torch.cuda.CUDAGraph] = field(default_factory=dict)
    _pool: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def replay(self, key: Hashable) -> None:
        self._graphs[key].replay()

    def capture(self, key: Hashable, step: Callable[[], object]) -> None:
        """Remember what `step` launches.

        It reads and writes fixed tensors, and runs a few times: the batch that lies in them is padding.
        """
        begun = time.monotonic()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warm_up):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        self._pool = self._pool or graph.pool()
        self._graphs[key] = graph
        self.seconds += time.monotonic() - begun
        log.debug("captured the graph of %s in %.2f s", key, time.monotonic() - begun)
