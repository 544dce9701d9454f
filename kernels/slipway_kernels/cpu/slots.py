"""The worker's state by request slot, which the kernels read and advance."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from slipway_kernels.cpu.binding import Ints, SamplingStruct, SlotsStruct, address, ints


class Sampling(Protocol):
    """What `set_sampling` reads of the engine's sampling parameters."""

    @property
    def logit_bias(self) -> tuple[tuple[int, float], ...]: ...
    @property
    def allowed_token_ids(self) -> tuple[int, ...]: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    @property
    def bad_words(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def seed(self) -> int: ...


SCALARS = (
    *("temperature", "top_p", "min_p", "typical_p", "top_k", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("num_logprobs", "num_prompt_logprobs"),
)


class Slots:
    """Fixed request slots, a structure of arrays.

    tokens        [num_slots, max_len]   prompt, then output, then drafts
    num_tokens    [num_slots]            known
    num_drafts    [num_slots]            guesses that follow these, for the next draw to verify
    num_computed  [num_slots]            in the KV cache; never more than num_tokens
    prompt_len    [num_slots]
    block_table   [num_groups, num_slots, max_blocks]   page of each block; -1 where it was given back
    adapter       [num_slots]            index of the request's; -1: none
    pooled        [num_slots]            1: its rows are the answer, and it draws nothing
    type_from     [num_slots]            the first position whose token is of type 1, for encoders of pairs
    num_given     [num_slots]            positions from 0 on whose embeddings came with the request
    """

    tokens: Ints
    num_tokens: Ints
    num_drafts: Ints
    num_computed: Ints
    prompt_len: Ints
    block_table: Ints
    adapter: Ints
    pooled: Ints
    type_from: Ints
    num_given: Ints

    def __init__(
        self, num_slots: int, max_len: int, num_groups: int, max_blocks: int, beside: Slots | None = None
    ) -> None:
        """Empty slots.

        beside  slots of the same size, of another model that computes the same requests: their tokens, prompt
                lengths and pages are these, too
        """
        self.num_slots = num_slots
        self.max_len = max_len
        self.num_groups = num_groups
        self.max_blocks = max_blocks
        self.tokens = beside.tokens if beside else np.zeros((num_slots, max_len), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int32)
        self.num_drafts = np.zeros(num_slots, np.int32)
        self.num_computed = np.zeros(num_slots, np.int32)
        self.prompt_len = beside.prompt_len if beside else np.zeros(num_slots, np.int32)
        table = np.full((num_groups, num_slots, max_blocks), -1, np.int32)
        self.block_table = beside.block_table if beside else table
        self.adapter = np.full(num_slots, -1, np.int32)
        self.pooled = np.zeros(num_slots, np.int32)
        self.type_from = np.full(num_slots, max_len, np.int32)
        self.num_given = np.zeros(num_slots, np.int32)
        self._given = np.zeros(num_slots, np.uintp)  # addresses of what `_rows` holds
        self._rows: list[bytes] = [b""] * num_slots
        self._sampling = (SamplingStruct * num_slots)()
        self._lists: list[tuple[object, ...]] = [()] * num_slots
        self.struct = SlotsStruct(
            num_slots,
            max_len,
            num_groups,
            max_blocks,
            address(self.tokens),
            address(self.num_tokens),
            address(self.num_drafts),
            address(self.num_computed),
            address(self.prompt_len),
            address(self.block_table),
            ctypes.cast(self._sampling, ctypes.POINTER(SamplingStruct)),
            address(self.adapter),
            address(self.pooled),
            address(self.num_given),
            address(self._given),
        )
        for slot in range(num_slots):
            self.clear_sampling(slot)

    def start(
        self,
        slot: int,
        tokens: Sequence[int],
        num_prompt: int | None = None,
        num_computed: int = 0,
        type_from: int | None = None,
    ) -> None:
        """A request takes the slot with these tokens, all prompt and of type 0 where nothing else is said."""
        self.tokens[slot, : len(tokens)] = tokens
        self.num_tokens[slot] = len(tokens)
        self.num_drafts[slot] = 0
        self.num_computed[slot] = num_computed
        self.prompt_len[slot] = len(tokens) if num_prompt is None else num_prompt
        self.type_from[slot] = self.max_len if type_from is None else type_from
        self.num_given[slot] = 0

    def give(self, slot: int, rows: bytes, count: int) -> None:
        """After `start`: what enters the first layer at the slot's first positions, instead of their tokens.

        rows  fp32 [count, hidden], kept until the slot gives way to others
        """
        self._rows[slot] = rows
        self._given[slot] = np.frombuffer(rows, np.uint8).ctypes.data
        self.num_given[slot] = count

    def advance(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """A step has drawn these tokens elsewhere: of each slot all but the last were drafts, and right.

        slots  that it computed as far as they were known; each once
        """
        at, counts = np.array(slots, np.int32), np.array([len(one) for one in tokens], np.int32)
        known = self.num_tokens[at]
        rows = np.repeat(np.arange(len(at)), counts)
        places = known[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        drawn = np.array([token for one in tokens for token in one], np.int32)
        fits = places < self.max_len
        self.tokens[at[rows][fits], places[fits]] = drawn[fits]
        self.num_tokens[at] = np.minimum(known + counts, self.max_len)
        self.num_computed[at] += counts
        self.num_drafts[at] = 0

    def known(self, slot: int) -> Ints:
        """The tokens of a slot, without drafts: a view."""
        return self.tokens[slot, : self.num_tokens[slot]]

    def guess(self, slot: int, drafts: Sequence[int] | Ints) -> None:
        """The slot's next draw verifies these drafts, as far as there is room for them."""
        known = int(self.num_tokens[slot])
        count = max(0, min(len(drafts), self.max_len - 1 - known))
        self.tokens[slot, known : known + count] = drafts[:count]
        self.num_drafts[slot] = count

    def accept_typically(self, threshold: float, alpha: float) -> None:
        """Drafts that the model finds likely are taken for what it draws: see sampling/reference.py."""
        self.struct.posterior_threshold, self.struct.posterior_alpha = threshold, alpha

    def drafts(self, slot: int) -> Ints:
        """What the slot's next draw verifies: a view."""
        return self.tokens[slot, self.num_tokens[slot] :][: self.num_drafts[slot]]

    def set_sampling(self, slot: int, params: Sampling, prompt_logprobs_from: int = 1) -> None:
        """How the tokens of `slot` are drawn from now on.

        prompt_logprobs_from: the first prompt position whose log-probability is still to be reported.
        """
        lists = {
            "bias_ids": ints([token for token, _ in params.logit_bias]),
            "bias_values": np.asarray([value for _, value in params.logit_bias], np.float32),
            "allowed_ids": ints(params.allowed_token_ids),
            "stop_ids": ints(params.stop_token_ids),
            "bad_ids": ints([token for word in params.bad_words for token in word]),
            "bad_offsets": ints(np.cumsum([0, *map(len, params.bad_words)]).tolist()),
        }
        struct: Any = self._sampling[slot]
        for name in SCALARS:
            setattr(struct, name, getattr(params, name))
        for name, values in lists.items():
            setattr(struct, name, address(values))
        struct.num_bias = len(params.logit_bias)
        struct.num_allowed = len(params.allowed_token_ids)
        struct.num_stop = len(params.stop_token_ids)
        struct.num_bad = len(params.bad_words)
        struct.seed = params.seed
        struct.prompt_logprobs_from = prompt_logprobs_from
        self._lists[slot] = tuple(lists.values())  # the struct holds their addresses

    def sample_as(self, slot: int, other: Slots) -> None:
        """Draw the tokens of `slot` as `other` does from now on, and report no log-probabilities."""
        self._sampling[slot] = other._sampling[slot]
        struct: Any = self._sampling[slot]
        struct.num_logprobs = struct.num_prompt_logprobs = -1
        self._lists[slot] = other._lists[slot]

    def clear_sampling(self, slot: int) -> None:
        """The most likely token and no log-probabilities; what the slot's lists held is free."""
        self._sampling[slot] = SamplingStruct(
            top_p=1.0,
            typical_p=1.0,
            repetition_penalty=1.0,
            num_logprobs=-1,
            num_prompt_logprobs=-1,
            prompt_logprobs_from=1,
        )
        self._lists[slot] = ()
