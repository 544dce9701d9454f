"""What a model needs of memory, as numbers: all that the arithmetic knows of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from slipway.model.kv import KVLayout
from slipway.worker.cache_size import token_budget
from slipway.worker.device.budget import GRAPH_BYTES, default_token_budget


@dataclass(frozen=True, slots=True)
class Step:
    """What a step takes beside all that is held, in bytes.

    token_bytes     of each of its tokens, in the layer that takes most
    logits_bytes    of each row of logits, when tokens are drawn
    position_bytes  of each position of the longest context
    fixed           whatever its size
    """

    token_bytes: int
    logits_bytes: int = 0
    position_bytes: float = 0.0
    fixed: int = 0

    def peak(self, tokens: int, rows: int, length: int) -> int:
        """Layers and draws take turns."""
        turns = max(tokens * self.token_bytes, rows * self.logits_bytes)
        return self.fixed + int(length * self.position_bytes) + turns


@dataclass(frozen=True, slots=True)
class RankNeeds:
    """What a rank needs, in bytes.

    weights         of its part of the model, as they are held
    state           held beside them, whatever the context and the requests
    request_bytes   held for each request slot
    sampled_bytes   held for each of the rows that a sampler works on at once
    sampled_rows    of which there are so many at most
    position_bytes  held for each position of the longest context: rotations have a row for each
    slot_bytes      held for each position of the longest context in each request slot
    logits_bytes    of a row of logits
    step            of the largest step
    runtime         of the device's context, of an interpreter and its libraries
    kv              its pages
    """

    weights: int
    state: int
    request_bytes: int
    sampled_bytes: int
    sampled_rows: int
    position_bytes: float
    slot_bytes: float
    logits_bytes: int
    step: Step
    runtime: int
    kv: KVLayout


@dataclass(frozen=True, slots=True)
class Needs:
    """What an engine needs, and what its arguments ask for; those have the names of `EngineConfig`.

    kind            cpu or cuda
    ranks           of one engine: each on a device of its own; on a CPU all share the host's memory
    engines         on the host, each with devices of its own
    frontend        bytes of the processes that answer HTTP, in the host's memory
    trained_len     the longest context that the model was made for
    asked_len       `--max-model-len`; None leaves it to model and memory
    default_budget  tokens of a step where nothing is asked for
    touched_ahead   bytes of a CPU's pool that an idle server has touched
    notes           what is counted roughly, or not at all, in sentences
    """

    architecture: str
    kind: Literal["cpu", "cuda"]
    ranks: tuple[RankNeeds, ...]
    engines: int
    frontend: int
    trained_len: int
    asked_len: int | None
    default_budget: int
    touched_ahead: int
    num_drafts: int
    graph_sizes: tuple[int, ...]
    max_num_seqs: int
    max_num_batched_tokens: int | None
    enable_chunked_prefill: bool
    block_size: int
    num_blocks: int | None
    kv_cache_bytes: int | None
    gpu_memory_utilization: float
    tensor_parallel_size: int
    notes: tuple[str, ...] = ()

    def on(self, memory: int) -> Needs:
        """The same, with the default token budget of a device that has `memory` bytes."""
        return replace(self, default_budget=default_token_budget(memory)) if self.kind == "cuda" else self

    @property
    def max_model_len(self) -> int:
        """The longest context that is wanted."""
        return self.asked_len or self.trained_len

    @property
    def longest(self) -> int:
        """That arguments other than `--max-model-len` permit."""
        most = max(self.trained_len, self.max_model_len)
        if self.enable_chunked_prefill or self.max_num_batched_tokens is None:
            return most
        return min(most, self.max_num_batched_tokens)

    @property
    def processes(self) -> int:
        """Ranks of all engines on the host: devices, where it has some."""
        return len(self.ranks) * self.engines

    @property
    def rows_each(self) -> int:
        """Of a request's next token, and of as many drafts as there can be."""
        return 1 + self.num_drafts

    @property
    def graphed(self) -> set[int]:
        """Batches that run as CUDA graphs."""
        return {min(size, self.max_num_seqs) for size in self.graph_sizes}

    @property
    def graphs(self) -> int:
        """Bytes of captured graphs, on each device."""
        return GRAPH_BYTES * len(self.graphed) * len({1, self.rows_each})

    def held(self, rank: RankNeeds, length: int) -> int:
        """By a rank beside weights and pages, but for what has room for each position in each slot."""
        left_by_graphs = max(self.graphed, default=0) * self.rows_each * rank.logits_bytes
        of_requests = self.max_num_seqs * rank.request_bytes
        sampled = min(self.max_num_seqs, rank.sampled_rows) * rank.sampled_bytes
        return rank.state + of_requests + sampled + left_by_graphs + int(length * rank.position_bytes)

    def slots(self, rank: RankNeeds, length: int) -> int:
        """What the positions of all request slots take."""
        return int(length * self.max_num_seqs * rank.slot_bytes)

    def tokens(self, length: int) -> int:
        """Of the largest step. Raises Exit where it does not take the longest prompt."""
        return token_budget(self, length, self.default_budget)

    def activations(self, rank: RankNeeds, length: int) -> int:
        tokens = self.tokens(length)
        return rank.step.peak(tokens, min(self.max_num_seqs * self.rows_each, tokens), length)
