"""Steps as CUDA graphs: captured for a few sizes, and padded to the next of them."""

from __future__ import annotations

import bisect
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from slipway.worker.device.batch import StepShape
from slipway_kernels.sampling import Features

log = logging.getLogger("slipway.engine")

EARLY = 8
"""Sizes up to this are captured before the server is ready; the others when nothing runs."""
MOST_TOKENS = 1024
"""Tokens of a step with prompts that runs as a graph. Kernels of larger ones take longer than launches do."""
TOKENS = (16, 32, 64, *range(128, MOST_TOKENS + 1, 128))
"""Rows of these graphs: 128 are a tile of the products."""
PROMPTS = (1, 2, 4, 8)
"""Prompts in a step that runs as a graph."""
MOST_PROMPT_GRAPHS = 64
MOST_PROMPT_BYTES = 1 << 30
PATIENCE = 256
"""Steps that go without a graph before it is captured in their midst: about what its capture costs them."""

Rehearsing = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What a graph was captured for: a forward pass, or a draw with `features`.

    size        requests, padding included
    prompts     the last so many of these are prompts
    tokens      rows of a step with prompts, padding included
    each        rows of a request, of which all draw
    max_length  longest context; 0 for draws, which know none
    adapters    different ones, at most; none are added to draws
    experts     whether they add to experts
    own_rows    rows of tokens that each may have for itself; draws know wider rows of logits by it
    """

    size: int
    each: int
    max_length: int = 0
    features: Features | None = None
    adapters: int = 0
    experts: bool = False
    own_rows: int = 0
    prompts: int = 0
    tokens: int = 0

    @property
    def decodes(self) -> int:
        return self.size - self.prompts

    @property
    def rows(self) -> int:
        """Of the forward pass."""
        return self.tokens or self.size * self.each

    def draw(self, features: Features) -> GraphKey:
        """The graph that draws behind this forward pass."""
        return GraphKey(self.size, self.each, features=features, own_rows=self.own_rows)


class GraphSizes:
    """Which batches run as graphs: those asked for, none where graphs are off. Without `draws` forward passes
    alone do.

    sizes    of batches, ascending
    each     rows of a request: of its next token, and with as many drafts as there can be
    lengths  longest contexts, ascending: a graph splits the keys of all requests as the longest wants it
    adapters  of a batch, ascending: none, one, and as many as there can be
    mixed    of batches with prompts, ascending: powers of two
    tokens   rows of these, ascending
    """

    def __init__(
        self,
        asked: Iterable[int],
        most: int,
        lengths: Iterable[int],
        most_rows: int,
        most_drafts: int = 0,
        most_adapters: int = 0,
        *,
        draws: bool = True,
    ) -> None:
        """most: requests of a step, and most_rows its rows; the largest batches are padded to `most`."""
        self.draws = draws
        self.sizes = tuple(sorted({min(size, most) for size in asked}))
        self.each = tuple(sorted({1, 1 + most_drafts}))
        self.lengths = tuple(sorted(set(lengths)))
        self.adapters = tuple(sorted({0, min(1, most_adapters), most_adapters}))
        self.most_rows = most_rows
        largest = max(self.sizes, default=0)
        self.mixed = tuple(1 << exponent for exponent in range(largest.bit_length()))
        self.tokens = tuple(sorted({min(rows, most_rows) for rows in TOKENS}))

    @property
    def largest_rows(self) -> int:
        """Of any graph; 0 where there are none."""
        return min(self.most_rows, max(self.sizes, default=0) * max(self.each))

    def key_for(self, shape: StepShape) -> GraphKey | None:
        """The graph of the step's forward pass, or None where it runs without one."""
        length = bisect.bisect_left(self.lengths, shape.max_length)
        size, prompts, tokens = self._size_for(shape)
        if not size or length == len(self.lengths):
            return None
        key = GraphKey(
            size,
            shape.each,
            self.lengths[length],
            adapters=self.adapters[bisect.bisect_left(self.adapters, shape.num_adapters)],
            experts=shape.adapt_experts,
            own_rows=shape.own_rows,
            prompts=prompts,
            tokens=tokens,
        )
        return key if key.size * key.each <= self.most_rows else None

    def _size_for(self, shape: StepShape) -> tuple[int, int, int]:
        """Requests, and where there are prompts how many of these and rows; zeros where it is too large."""
        decodes = shape.num_decodes
        if decodes == shape.num_requests:
            return _at_least(decodes, self.sizes), 0, 0
        prompts = _at_least(shape.num_requests - decodes, PROMPTS)
        size, tokens = _at_least(decodes + prompts, self.mixed), _at_least(shape.num_tokens, self.tokens)
        return (size, prompts, tokens) if prompts and size and tokens else (0, 0, 0)

    def planned(self) -> Iterator[GraphKey]:
        """What is captured without being asked for: forward passes, each with its greedy draw.

        Of steps with prompts those of one prompt alone. The others, and those that add adapters, are captured
        where steps have missed them.
        """
        for size, each in product(self.sizes, self.each):
            if size * each <= self.most_rows:
                yield GraphKey(size, each, self.lengths[0])
                if self.draws:
                    yield GraphKey(size, each, features=Features())
        if 1 in self.mixed:
            for tokens in self.tokens:
                yield GraphKey(1, 1, self.lengths[0], prompts=1, tokens=tokens)


def _at_least(count: int, sizes: Sequence[int]) -> int:
    """The smallest of these ascending sizes that holds `count`; 0 if none does."""
    place = bisect.bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else 0


class Graphs:
    """Captured steps by what distinguishes them. They share one pool of memory: only one runs at a time.

    Those of steps with prompts are many kinds. Of these there are so many as workloads come to need, within
    MOST_PROMPT_GRAPHS and half of the memory.
    """

    full = False
    """The device had no room for another one: what is missing is launched kernel by kernel from then on."""

    def __init__(self, reserved: int = 0) -> None:
        """reserved: bytes of the device that are meant for them"""
        self._prompt_bytes = min(reserved // 2, MOST_PROMPT_BYTES)
        self._num_prompt_graphs = 0
        self._graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self._missed: Counter[GraphKey] = Counter()
        """Graphs that steps would have used, and how many of them."""
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __contains__(self, key: GraphKey) -> bool:
        return key in self._graphs

    def has(self, key: GraphKey) -> bool:
        """Whether there is this graph; where not, it is noted as missed."""
        if key not in self and self.takes(key):
            self._missed[key] += 1
        return key in self

    def takes(self, key: GraphKey) -> bool:
        """Whether there is room for this graph."""
        if self.full or not key.prompts:
            return not self.full
        return self._num_prompt_graphs < MOST_PROMPT_GRAPHS and self._prompt_bytes > 0

    def most_missed(self, least: int) -> GraphKey | None:
        """The graph that most steps have missed, where so many have; it is noted no more."""
        for key, missed in self._missed.most_common(1):
            if missed >= least:
                del self._missed[key]
                return key
        return None

    def replay(self, key: GraphKey) -> None:
        self._graphs[key].replay()

    def capture(
        self, key: GraphKey, step: Callable[[], object], rehearsing: Rehearsing = nullcontext
    ) -> None:
        """Remember what `step` launches, or become full.

        It reads and writes fixed tensors, and runs a few times, `rehearsing`: the batch that lies in them is
        padding.
        """
        begun = time.monotonic()
        try:
            graph, taken = self._captured(step, rehearsing)
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
            self._graphs[key] = graph
            self._note(key, taken)
            log.debug("captured the graph of %s in %.2f s", key, time.monotonic() - begun)

    def _note(self, key: GraphKey, taken: int) -> None:
        """A graph of this key is there, and has taken so many bytes."""
        if key.prompts:
            self._num_prompt_graphs += 1
            self._prompt_bytes -= taken

    def _captured(
        self, step: Callable[[], object], rehearsing: Rehearsing
    ) -> tuple[torch.cuda.CUDAGraph, int]:
        """The graph, and the bytes of the device that it takes."""
        # One stream for all captures: cuBLAS keeps a workspace, 32 MiB on Hopper, for each that it has seen.
        stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream), rehearsing():
                step()  # libraries allocate and kernels load in their first run
        finally:
            torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # A capture gives back what the allocator holds for no one: what it had held is not the graph's.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        # thread_local: the thread that reads adapters pins and takes memory meanwhile, which would break
        # off a capture that looks at all threads.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            step()
        self._pool = self._pool or graph.pool()
        return graph, max(free - torch.cuda.mem_get_info()[0], 0)
