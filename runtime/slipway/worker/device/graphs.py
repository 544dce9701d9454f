"""Decoding steps as CUDA graphs: captured for a few batch sizes, padded to the next of them."""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from slipway.worker.device.batch import StepShape

log = logging.getLogger("slipway.engine")

EARLY = 8
"""Sizes up to this are captured before the server is ready; the others when a batch first needs them."""
RUNS_BEFORE = 2
"""Runs of a step before it is captured: libraries allocate and kernels load in their first ones."""


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Which batches run as graphs.

    sizes       of batches, ascending; none where graphs are off
    max_length  longest context that a graph covers (`--max-seq-len-to-capture`)
    """

    sizes: tuple[int, ...]
    max_length: int

    @classmethod
    def of(cls, asked: Iterable[int], most: int, max_length: int) -> GraphSizes:
        """What is asked for, cut off at `most`, which the largest batches are then padded to.

        most  requests that a step can have: slots and rows are as many, and no more
        """
        return cls(tuple(sorted({min(size, most) for size in asked})), max_length)

    def size_for(self, shape: StepShape) -> int | None:
        """Requests that a step is padded to, or None where it runs without a graph."""
        if not shape.only_decodes or shape.max_length > self.max_length:
            return None
        place = bisect.bisect_left(self.sizes, shape.num_requests)
        return self.sizes[place] if place < len(self.sizes) else None


class Graphs:
    """Captured steps by what distinguishes them. They share one pool of memory: only one runs at a time."""

    full = False
    """The device had no room for another one: what is missing is launched kernel by kernel from then on."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def replay(self, key: Hashable) -> None:
        self._graphs[key].replay()

    def capture(self, key: Hashable, step: Callable[[], object]) -> None:
        """Remember what `step` launches, or become full.

        It reads and writes fixed tensors, and runs a few times: the batch that lies in them is padding.
        """
        begun = time.monotonic()
        try:
            self._graphs[key] = self._captured(step)
        except RuntimeError as error:
            # Where memory ends within a capture, the capture's own end fails too, and says so instead.
            if not any(isinstance(one, torch.OutOfMemoryError) for one in (error, error.__context__)):
                raise
            self.full = True
            torch.cuda.empty_cache()
            log.warning(
                "The device has no room for another CUDA graph after %d: batches without one are slower. "
                "Lower --gpu-memory-utilization, or name fewer --cuda-graph-sizes.",
                len(self._graphs),
            )
        else:
            log.debug("captured the graph of %s in %.2f s", key, time.monotonic() - begun)

    def _captured(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        # One stream for all captures: cuBLAS keeps a workspace, 32 MiB on Hopper, for each that it has seen.
        stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(RUNS_BEFORE):
                    step()
        finally:
            torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            step()
        self._pool = self._pool or graph.pool()
        return graph
