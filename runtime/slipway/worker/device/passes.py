"""Passes of what guesses, behind the target's draw, over the target's slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import Ints
from slipway.worker.device.batch import PADDING, Batch, StepShape
from slipway.worker.device.guesser import Guesser
from slipway.worker.device.proposer import DeviceProposer
from slipway.worker.device.results import Timer
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import Arena, SlotState
from slipway_kernels.catch_up import append, catch_up, last_rows
from slipway_kernels.sampling import Features
from slipway_kernels.sampling.device import Draws


class Passes(DeviceProposer, ABC):
    """Draws what another would say in the target's place, token by token, all slots together.

    Its slots have the target's tokens, tables and records. Every pass is launched behind the target's draw,
    and none waits for the host: how far it has come, and who wants another draft, lies in slots of its own.
    The passes are launched kernel by kernel, and not captured.
    """

    guesser: Guesser
    reads_prompts = True
    _places = 0
    """Requests of the target's step, padding between them included."""

    def __init__(
        self,
        state: SlotState,
        sampler: Sampler,
        *,
        vocab: int,
        length: int,
        most_rows: int,
        few: int,
        block: int,
        num_links: int = 1,
    ) -> None:
        """
        vocab      tokens that the target draws
        length     tokens of a request that are read
        most_rows  of one pass
        few        rows of a request that attention takes for the next tokens, and not for a prompt's
        block      where nothing is to be guessed, it follows to the end of the last whole block of so many
        num_links  in turn each makes the pass of a draft, and all of them the passes that follow the target
        """
        slots = state.num_slots
        self._state = state
        self._sampler = sampler
        self._vocab = vocab
        self._length = length
        self._most_rows = most_rows
        self._few = few
        self._block = block
        self._num_links = num_links
        self._reads = np.zeros(slots, np.int32)
        """[slot]  0: its prompt has rows without a token, which cannot be read"""
        self._rows = self._ahead = self._slots = self._ends = np.zeros(0, np.int32)
        shapes: dict[str, tuple[int, ...]] = {
            "own_computed": (num_links, slots),
            **dict.fromkeys(("own_rows", "wanted"), (slots,)),
            **dict.fromkeys(("slots", "ahead", "draws", "lengths"), (slots,)),
            **dict.fromkeys(("row_start", "query_start"), (slots + 1,)),
            **dict.fromkeys(("token_ids", "positions", "row_slots"), (most_rows,)),
            **dict.fromkeys(("draw_rows", "draw_slots", "draw_lengths"), (slots * few,)),
            **dict.fromkeys(("last_rows", "last_slots", "last_lengths"), (slots,)),
        }
        self._arena = Arena(state.device, shapes)
        self._own = self._arena.arrays
        self._drawn = Draws.empty(slots, 1, state.device)

    @abstractmethod
    def _most(self, shape: StepShape, ahead: Ints) -> Ints:
        """[requests]  rows that suffice for the first pass behind this step, of drafts `ahead` at most."""

    def _begin(self) -> None:
        """The target has drawn."""

    def _given(self, batch: Batch, ahead: int) -> Sequence[Tensor]:
        """What the rows of a pass go on from."""
        return ()

    def _told(self, batch: Batch, hidden: Tensor, slots: Tensor, last: Tensor, ahead: int) -> None:
        """What a pass has made: hidden [rows, width], and of these `last` [requests, width], from which it
        has guessed for `slots` [requests], -1 where for nobody."""

    def _aim(self, ahead: int) -> None:
        """Say which rows the pass makes that is next, where `append` of the one before has not."""

    def _followed(self) -> None:
        """The first passes are done: all slots have come as far as tokens are known."""

    def _guessed(self) -> None:
        """All passes are done."""

    def start(self, start: SlotStart) -> None:
        self._arena.put("own_computed", [start.num_computed], 0, start.slot)
        self._reads[start.slot] = not (self.reads_prompts and start.given)

    def launch(self, plan: StepPlan, shape: StepShape) -> None:
        self._arena.send()  # of starts alone: a slot may be taken again before anything is guessed
        ahead = np.array(plan.ahead or [0] * shape.num_requests, np.int32)[shape.order]
        ahead = ahead * shape.draws * self._reads[shape.slots]
        rows = self._most(shape, ahead) * self._reads[shape.slots]
        # Those of few rows come first, as the attention kernels want them.
        order = np.argsort(rows > self._few, kind="stable")
        order = order[rows[order] > 0]
        self._slots, self._rows, self._ahead = shape.slots[order], rows[order], ahead[order]
        self._ends = (shape.first + shape.num_new)[order]

    def guess(self, features: Features, places: int) -> Timer | None:
        if not len(self._slots):
            return None
        self._places = places
        features = replace(features, max_top=-1, masked=False)
        timer = Timer(self._state.device)
        with timer:
            self._begin()
            for part in self._parts():
                self._follow(part, features)
            self._followed()
            links = self._num_links
            going: Ints = np.flatnonzero(self._ahead > links).astype(np.int32)
            if len(going):
                batch = self._sent(self._slots[going], np.full(len(going), links, np.int32), going)
                for ahead in range(links, int(self._ahead.max())):
                    self._aim(ahead)
                    self._pass(batch, features, ahead)
            self._guessed()
        return timer

    def largest_step(self) -> None:
        slots = self._state.num_slots
        self._slots = np.full(slots, PADDING, np.int32)
        self._ends = np.ones(slots, np.int32)
        # The first pass behind those that follow the target stands for all.
        self._ahead = np.full(slots, min(self._state.most_drafts, 1 + self._num_links), np.int32)
        self._rows = np.ones(slots, np.int32)
        self._rows[-1] = max(self._most_rows - slots + 1, 1)
        self.guess(self._sampler.every_feature, 0)

    def forget(self) -> None:
        del self.guesser

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
        """The first passes: what has not been read of these requests, and a draft of each link."""
        state, own = self._state, self._own
        self._arena.put("ahead", self._ahead[part])
        batch = self._sent(self._slots[part], self._rows[part], part)
        catch_up(
            slots=batch.slots,
            row_start=own["row_start"][: len(part) + 1],
            ahead=own["ahead"][: len(part)],
            num_tokens=state.num_tokens,
            num_computed=state.num_computed,
            own_computed=own["own_computed"][0],
            own_rows=own["own_rows"],
            wanted=own["wanted"],
            max_len=state.tokens.shape[1],
            length=self._length,
            block=self._block,
        )
        self._pass(batch, features, 0)
        for link in range(1, self._num_links):
            self._aim(link)
            self._pass(batch, features, link)

    def _pass(self, batch: Batch, features: Features, ahead: int) -> None:
        """Read the rows that slots have left, draw a draft where one is wanted, and append it."""
        state, own, requests = self._state, self._own, len(batch.slots)
        own_computed = own["own_computed"][ahead % self._num_links]
        batch.prepare(own, state.tokens, own_computed, own["own_rows"])
        hidden = self.guesser.hidden(batch, self._given(batch, ahead), ahead)
        draw_rows, draw_slots, draw_lengths = (
            own[name][:requests] for name in ("last_rows", "last_slots", "last_lengths")
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
        rows = hidden.index_select(0, draw_rows)
        logits = self.guesser.logits(rows, draw_slots, ahead)[:, : self._vocab]
        drawing = replace(batch, draw_slots=draw_slots[:, None], draw_lengths=draw_lengths[:, None])
        drawn = self._drawn[:requests]
        self._sampler.draw(logits, drawing, features, drawn)
        append(
            slots=batch.slots,
            drawn=drawn.token,
            tokens=state.tokens,
            num_tokens=state.num_tokens,
            num_drafts=state.num_drafts,
            own_computed=own_computed,
            own_rows=own["own_rows"],
            wanted=own["wanted"],
        )
        self._told(batch, hidden, draw_slots, rows, ahead)

    def _sent(self, slots: Ints, rows: Ints, places: Ints) -> Batch:
        """The device is told of a pass over these slots, of up to so many rows each."""
        put = self._arena.put
        put("slots", slots)
        put("draws", 1 + rows)  # for `prepare`, any of them may be missing
        put("row_start", np.concatenate(([0], np.cumsum(rows))))
        self._arena.send()
        return Batch.of(
            self._own,
            int(rows.sum()),
            len(slots),
            self._few,
            tables=self._state.tables,
            type_from=self._state.type_from,
            num_decodes=int((rows <= self._few).sum()),
            max_query=int(rows.max()),
            max_length=int((self._ends + self._ahead)[places].max()),
        )
