"""How the tokens of each slot are drawn, on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from itertools import compress
from operator import or_

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slipway.engine.params import SamplingParams
from slipway.worker.device.batch import Batch
from slipway.worker.device.ranks import Alone, Ranks
from slipway.worker.device.state import Arena, SlotState
from slipway_kernels.sampling import Acceptance, Features, RecordLayout, report, sample
from slipway_kernels.sampling.device import Draws, History, Masks, workspace


class Sampler:
    """Keeps a record for each slot, and draws for the rows of a batch."""

    def __init__(
        self,
        state: SlotState,
        layout: RecordLayout,
        max_top: int,
        acceptance: Acceptance | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """acceptance: of drafts; None where what they guess has to be drawn. ranks: None where there are no
        others"""
        self._ranks = ranks or Alone()
        self._state = state
        self._layout = layout
        self._acceptance = acceptance
        self.max_top = max_top
        self.vocab = layout.vocab
        """Tokens that a row of logits may have; of those that adapters add, only some rows have columns."""
        self._kinds = {Features(): 0}
        """What requests have asked for so far, by the number that their slots keep."""
        self._kind_of = np.zeros(state.num_slots, np.int64)
        self._united: dict[bytes, Features] = {}
        self.every_feature = Features(True, True, True, True, max_top)
        self._space = workspace(state.num_slots, layout.vocab, self.every_feature, state.device)
        self._masks: Arena | None = None

    def start(self, slot: int, params: SamplingParams) -> None:
        """The slot's tokens are drawn so from the next upload on."""
        features = Features.of(params, self._layout.vocab)
        self._kind_of[slot] = self._kinds.setdefault(features, len(self._kinds))
        for offset, words in self._layout.encode(params):
            self._state.arena.put("records", words, slot, offset)

    def features(self, slots: NDArray[np.int32]) -> Features:
        """What these slots ask for together, coarse enough that few graphs serve all batches."""
        present = np.bincount(self._kind_of[slots], minlength=len(self._kinds)) > 0
        key = present.tobytes()
        if key not in self._united:
            asked = reduce(or_, compress(self._kinds, present), Features())
            if asked.max_top >= 0:
                asked = replace(asked, max_top=self.max_top)
            self._united[key] = replace(asked, random=asked.random or asked.edits)
        return self._united[key]

    def mask(self, rows: int, masks: Mapping[int, NDArray[np.uint32]]) -> None:
        """In the next draw of so many rows these have masks, and the others have none.

        masks  by their first row: [n, ⌈vocab / 32⌉] of the model's vocabulary; no other token is allowed
        """
        if self._masks is None:
            most = self._state.draw_slots.numel()
            shapes = {"masked": (most,), "words": (most, -(-self._layout.vocab // 32))}
            self._masks = Arena(self._state.device, shapes)
        masked = np.zeros(rows, np.int32)
        for row, words in masks.items():
            masked[row : row + len(words)] = 1
            for number, one in enumerate(np.ascontiguousarray(words).view(np.int32)):
                self._masks.put("words", one, row + number)
        self._masks.put("masked", masked)
        self._masks.send()

    def draw(
        self, logits: Tensor, batch: Batch, features: Features, out: Draws, edited: Tensor | None = None
    ) -> None:
        """logits [requests · each, vocab], which are reported; edited: what is drawn from in their place"""
        out.token.fill_(-1)
        out.failed.zero_()
        if self._ranks.draws:
            self._drawn(logits, batch, features, out, edited)
        self._ranks.agreed(out.token)

    def _drawn(
        self, logits: Tensor, batch: Batch, features: Features, out: Draws, edited: Tensor | None
    ) -> None:
        state, rows = self._state, len(logits)
        masks = None
        if features.masked and self._masks is not None:
            masks = Masks(*(self._masks.arrays[name][:rows] for name in ("words", "masked")))
        history = History(state.tokens, batch.draw_lengths.flatten(), state.prompt_len)
        slots = batch.draw_slots.flatten()
        acceptance = self._acceptance if batch.draw_slots.shape[1] > 1 else None
        drawing = features if edited is None else replace(features, max_top=-1)
        sample(
            logits if edited is None else edited,
            slots,
            state.records,
            self._layout,
            history,
            self._space,
            out,
            drawing,
            masks,
            acceptance,
        )
        if edited is not None and features.max_top >= 0:
            self.report(logits, out.token, out)

    def report(self, logits: Tensor, given: Tensor, out: Draws) -> None:
        """What the model thought of given tokens [rows]."""
        report(logits, given, self._space, out)
