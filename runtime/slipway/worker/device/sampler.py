"""How the tokens of each slot are drawn, on the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from operator import or_

from torch import Tensor

from slipway.engine.params import SamplingParams
from slipway.worker.device.state import SlotState
from slipway_kernels.sampling.device import Draws, History, report, sample, workspace
from slipway_kernels.sampling.record import Features, RecordLayout


class Sampler:
    """Keeps a record for each slot, and draws for the rows of a batch."""

    def __init__(self, state: SlotState, layout: RecordLayout, max_top: int) -> None:
        self._state = state
        self._layout = layout
        self._max_top = max_top
        self._features = [Features()] * state.num_slots
        self._history = History(state.tokens, state.num_tokens, state.prompt_len)
        self.every_feature = Features(True, True, True, True, max_top)
        self._space = workspace(state.num_slots, layout.vocab, self.every_feature, state.device)

    def start(self, slot: int, params: SamplingParams) -> None:
        """The slot's tokens are drawn so from the next upload on."""
        self._features[slot] = Features.of(params, self._layout.vocab)
        for offset, words in self._layout.encode(params):
            self._state.put("records", words, slot, offset)

    def features(self, slots: Iterable[int]) -> Features:
        """What these slots ask for together, coarse enough that few graphs serve all batches."""
        asked = reduce(or_, (self._features[slot] for slot in slots), Features())
        if asked.max_top >= 0:
            asked = replace(asked, max_top=self._max_top)
        return replace(asked, random=asked.random or asked.edits)

    def draw(self, logits: Tensor, slots: Tensor, features: Features, out: Draws) -> None:
        """logits [rows, vocab], slots [rows] int32, -1 for rows that draw nothing."""
        out.token.fill_(-1)
        out.failed.zero_()
        sample(logits, slots, self._state.records, self._layout, self._history, self._space, out, features)

    def report(self, logits: Tensor, given: Tensor, out: Draws) -> None:
        """What the model thought of given tokens [rows]."""
        report(logits, given, self._space, out)
