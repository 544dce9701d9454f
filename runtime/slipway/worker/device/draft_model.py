"""A draft model on the device, over slots and pages that it shares with the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from torch import Tensor

from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import Ints
from slipway.model.kv import KVLayout
from slipway.worker.device.any_decoder import AnyDecoder
from slipway.worker.device.batch import PADDING, Batch, StepShape
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.products import Move
from slipway.worker.device.proposer import DeviceProposer
from slipway.worker.device.results import Timer
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import Arena, SlotState
from slipway_kernels.catch_up import append, catch_up, last_rows
from slipway_kernels.sampling import Features
from slipway_kernels.sampling.device import Draws
from slipway_kernels.slots import prepare

BEHIND_DRAFTS = 2
"""Tokens that a model has to read which guessed behind the step before: the last draft, where all were
accepted, and what was drawn behind it."""


class Behind:
    """By how many tokens the model may come behind the target, slot by slot, as far as the host knows.

    The kernels know it exactly. What the host says too much leaves rows unused; were it too little, nothing
    would be guessed in that step.
    """

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._block_size = block_size
        self._behind = np.zeros(num_slots, np.int32)
        """At most, of what the target has computed."""
        self._unsure = np.zeros(num_slots, np.int32)
        """Drafts of the last step, whose end the positions of the next plan do not know."""
        self._guessed = np.zeros(num_slots, bool)
        """Behind the last step."""

    def start(self, slot: int) -> None:
        self._behind[slot] = self._unsure[slot] = 0
        self._guessed[slot] = False

    def rows(self, shape: StepShape, ahead: Ints) -> Ints:
        """[requests]  tokens that it may have to read behind this step; 0 where no block ends in vain."""
        slots, block = shape.slots, self._block_size
        ends = shape.first + shape.num_new
        unsure = shape.num_drafts + self._unsure[slots]
        behind = np.where(self._guessed[slots], BEHIND_DRAFTS - 1, self._behind[slots] + shape.num_new)
        ending = ends // block * block > ends - unsure - behind
        rows = np.where(ahead > 0, behind + 1, behind * ending)
        self._behind[slots] = np.where(ending, np.minimum(behind, block - 1), behind)
        self._unsure[slots] = shape.num_drafts
        self._guessed[slots] = ahead > 0
        found: Ints = np.minimum(rows, ends + 1).astype(np.int32)
        return found


class InSharedPages:
    """A decoder whose layers have a part of their own in the pages of another's."""

    def __init__(self, decoder: AnyDecoder, layout: KVLayout) -> None:
        """layout: which part of the pages its layers have"""
        self.graphs = decoder.graphs
        self.low_rank = decoder.low_rank
        self.hidden, self.logits, self.move = decoder.hidden, decoder.logits, decoder.move
        self._decoder = decoder
        self._layout = layout

    def use(self, pages: DevicePages) -> None:
        self._decoder.use(pages.sharing(self._layout))


class Drafted:
    """A model and the one that guesses for it: their weights and their pages come and go together."""

    def __init__(self, target: AnyDecoder, draft: AnyDecoder) -> None:
        self.graphs, self.low_rank = target.graphs, target.low_rank
        self.hidden, self.logits = target.hidden, target.logits
        self._both = target, draft

    def use(self, pages: DevicePages) -> None:
        for decoder in self._both:
            decoder.use(pages)

    def move(self, to: Move) -> None:
        for decoder in self._both:
            decoder.move(to)


class DraftModelOnDevice(DeviceProposer):
    """Draws what it would say in the target's place, token by token, all slots together.

    What `DraftModel` is on CPU: its slots have the target's tokens, tables and records, and it follows at
    least by whole blocks. Every pass is launched behind the target's draw, and none waits for the host: how
    far it has come, and who wants another draft, lies in slots of its own. Its passes are launched kernel by
    kernel, and not captured.
    """

    def __init__(
        self,
        state: SlotState,
        sampler: Sampler,
        *,
        vocab: int,
        length: int,
        block_size: int,
        token_budget: int,
    ) -> None:
        """vocab: tokens that the target draws; length: tokens of a request that the model can read"""
        slots, rows = state.num_slots, token_budget + block_size
        self._state = state
        self._sampler = sampler
        self._vocab = vocab
        self._length = length
        self._block_size = block_size
        self._most_rows = rows
        """Of one pass: of a prompt, those of the largest step and what it may come behind."""
        self._behind = Behind(slots, block_size)
        self._reads = np.zeros(slots, np.int32)
        """[slot]  1: its request has tokens"""
        self._rows = self._ahead = self._slots = self._ends = np.zeros(0, np.int32)
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("own_computed", "own_rows", "wanted"), (slots,)),
            **dict.fromkeys(("slots", "ahead", "draws", "lengths"), (slots,)),
            **dict.fromkeys(("row_start", "query_start"), (slots + 1,)),
            **dict.fromkeys(("token_ids", "positions", "row_slots"), (rows,)),
            **dict.fromkeys(("two_rows", "two_slots", "two_lengths"), (slots, BEHIND_DRAFTS)),
            **dict.fromkeys(("draw_rows", "draw_slots", "draw_lengths"), (slots,)),
        }
        self._arena = Arena(state.device, shapes)
        self._own = self._arena.arrays
        self._drawn = Draws.empty(slots, 1, state.device)

    def start(self, start: SlotStart) -> None:
        self._arena.put("own_computed", [start.num_computed], start.slot)
        self._behind.start(start.slot)
        self._reads[start.slot] = not start.given

    def launch(self, plan: StepPlan, shape: StepShape) -> None:
        self._arena.send()  # of starts alone: a slot may be taken again before anything is guessed
        ahead = np.array(plan.ahead or [0] * shape.num_requests, np.int32)[shape.order]
        ahead = ahead * shape.draws * self._reads[shape.slots]
        rows = self._behind.rows(shape, ahead) * self._reads[shape.slots]
        # Those of few rows come first, as the attention kernels want them.
        order = np.argsort(rows > BEHIND_DRAFTS, kind="stable")
        order = order[rows[order] > 0]
        self._slots, self._rows, self._ahead = shape.slots[order], rows[order], ahead[order]
        self._ends = (shape.first + shape.num_new)[order]

    def guess(self, features: Features) -> Timer | None:
        if not len(self._slots):
            return None
        features = replace(features, max_top=-1, masked=False)
        timer = Timer(self._state.device)
        with timer:
            for part in self._parts():
                self._follow(part, features)
            going: Ints = np.flatnonzero(self._ahead > 1).astype(np.int32)
            if len(going):
                batch = self._sent(self._slots[going], np.ones(len(going), np.int32), going)
                for _ in range(int(self._ahead.max()) - 1):
                    self._pass(batch, features)
        return timer

    def largest_step(self) -> None:
        slots = self._state.num_slots
        self._slots = np.full(slots, PADDING, np.int32)
        self._ahead = self._ends = np.ones(slots, np.int32)
        self._rows = np.ones(slots, np.int32)
        self._rows[-1] = max(self._most_rows - slots + 1, 1)
        self.guess(self._sampler.every_feature)

    def forget(self) -> None:
        del self.decoder

    def _parts(self) -> Iterator[Ints]:
        """Requests whose rows make one pass."""
        first, rows = 0, 0
        for place, more in enumerate(self._rows.tolist()):
            if rows + more > self._most_rows:
                yield np.arange(first, place, dtype=np.int32)
                first, rows = place, 0
            rows += more
        yield np.arange(first, len(self._rows), dtype=np.int32)

    def _follow(self, part: Ints, features: Features) -> None:
        """The first pass: what the model has not read of these requests, and a first draft of each."""
        state, own = self._state, self._own
        self._arena.put("ahead", self._ahead[part])
        batch = self._sent(self._slots[part], self._rows[part], part)
        catch_up(
            slots=batch.slots,
            row_start=own["row_start"][: len(part) + 1],
            ahead=own["ahead"][: len(part)],
            num_tokens=state.num_tokens,
            num_computed=state.num_computed,
            own_computed=own["own_computed"],
            own_rows=own["own_rows"],
            wanted=own["wanted"],
            max_len=state.tokens.shape[1],
            length=self._length,
            block=self._block_size,
        )
        self._pass(batch, features)

    def _pass(self, batch: Batch, features: Features) -> None:
        """Read the rows that slots have left, draw a draft where one is wanted, and append it."""
        state, own, requests = self._state, self._own, len(batch.slots)
        prepare(
            slots=batch.slots,
            row_start=own["row_start"][: requests + 1],
            draws=own["draws"][:requests],
            tokens=state.tokens,
            num_computed=own["own_computed"],
            num_drafts=own["own_rows"],
            token_ids=batch.token_ids,
            positions=batch.positions,
            row_slots=batch.row_slots,
            query_start=batch.query_start,
            lengths=batch.lengths,
            draw_rows=batch.draw_rows,
            draw_slots=batch.draw_slots,
            draw_lengths=batch.draw_lengths,
        )
        hidden = self.decoder.hidden(batch)
        draw_rows, draw_slots, draw_lengths = (
            own[name][:requests] for name in ("draw_rows", "draw_slots", "draw_lengths")
        )
        last_rows(
            slots=batch.slots,
            query_start=batch.query_start,
            lengths=batch.lengths,
            num_drafts=state.num_drafts,
            wanted=own["wanted"],
            draw_rows=draw_rows,
            draw_slots=draw_slots,
            draw_lengths=draw_lengths,
        )
        logits: Tensor = self.decoder.logits(hidden.index_select(0, draw_rows), draw_slots, None)[
            :, : self._vocab
        ]
        drawing = replace(batch, draw_slots=draw_slots[:, None], draw_lengths=draw_lengths[:, None])
        drawn = self._drawn[:requests]
        self._sampler.draw(logits, drawing, features, drawn)
        append(
            slots=batch.slots,
            drawn=drawn.token,
            tokens=state.tokens,
            num_tokens=state.num_tokens,
            num_drafts=state.num_drafts,
            own_computed=own["own_computed"],
            own_rows=own["own_rows"],
            wanted=own["wanted"],
        )

    def _sent(self, slots: Ints, rows: Ints, places: Ints) -> Batch:
        """The device is told of a pass over these slots, of up to so many rows each."""
        put, own, requests, total = self._arena.put, self._own, len(slots), int(rows.sum())
        put("slots", slots)
        put("draws", 1 + rows)  # for `prepare`, any of them may be missing
        put("row_start", np.concatenate(([0], np.cumsum(rows))))
        self._arena.send()
        return Batch(
            token_ids=own["token_ids"][:total],
            positions=own["positions"][:total],
            row_slots=own["row_slots"][:total],
            slots=own["slots"][:requests],
            query_start=own["query_start"][: requests + 1],
            lengths=own["lengths"][:requests],
            draw_rows=own["two_rows"][:requests],
            draw_slots=own["two_slots"][:requests],
            draw_lengths=own["two_lengths"][:requests],
            tables=self._state.tables,
            type_from=self._state.type_from,
            num_decodes=int((rows <= BEHIND_DRAFTS).sum()),
            max_query=int(rows.max()),
            max_length=int((self._ends + self._ahead)[places].max()),
        )
