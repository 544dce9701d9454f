"""Drafts of layers that go on from the target's rows, with keys and values of their own in its pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.engine.config import EngineConfig
from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import ELEMENTS, DType, Floats, Ints
from slipway.load.checkpoint import Checkpoint
from slipway.load.progress import Progress
from slipway.model.kv import KVLayout
from slipway.model.spec import Attention
from slipway.schemes.choice import Schemes
from slipway.worker.drafts.bounds import wanted_drafts
from slipway.worker.drafts.parted import Cuts, Parting
from slipway.worker.drafts.tensors import Shapes, Tensors
from slipway.worker.plan import opened_again
from slipway.worker.proposer import NewProposer
from slipway.worker.route import Model
from slipway_kernels.cpu import LinkedProgram, PageMemory, Ranks, Slots, StepResult, Threads

if TYPE_CHECKING:
    import torch

    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.draft_layers import Beside
    from slipway.worker.device.guesser import Guesser
    from slipway.worker.device.proposer import DeviceProposer
    from slipway.worker.device.sampler import Sampler
    from slipway.worker.device.schemes import DeviceSchemes
    from slipway.worker.device.state import SlotState

MOST_ROWS = 64
"""Of one step that guesses the next token of each slot: more slots take several."""


@dataclass(frozen=True, slots=True)
class Link:
    """A program that computes rows at positions, each from one before it, and draws what follows.

    given  [rows, width] each  what rows go on from, to be filled before a step
    told   [rows, width]  what the next row goes on from
    blank  positions from 0 on whose tokens it does not read: their embeddings are zeros
    """

    program: LinkedProgram
    given: Sequence[Floats]
    told: Floats
    blank: int = 0


class NewLink(Protocol):
    """Adds the operations of a program, over weights that all its programs share."""

    def __call__(
        self, program: LinkedProgram, places: Sequence[tuple[int, int]], target: Model, *, first: bool
    ) -> Link:
        """Finish the program.

        places  [layer]  its KV group and its index there
        first   its rows go on from the target's, else from what it told
        """


class FollowerSpec(Parting, Protocol):
    """What a checkpoint says in its configuration of layers that follow the target."""

    @property
    def hidden(self) -> int:
        """Numbers of a row of the target."""

    @property
    def vocab(self) -> int:
        """Tokens that it can read."""

    @property
    def attentions(self) -> Sequence[Attention]:
        """[layer]"""

    @property
    def usual_drafts(self) -> int:
        """Guesses where no number is asked for; 0: one has to be."""

    @property
    def num_links(self) -> int:
        """Links behind each other: rows of the first are made of the target's, of each other one of those of
        the one before it."""

    def taps(self, num_layers: int) -> Sequence[int]:
        """The target's rows that it goes on from: `ModelPlan.taps`, of a target of so many layers."""

    def shapes(self) -> Shapes:
        """Of every tensor."""

    def optional(self) -> Shapes:
        """Of those that it may also have: what it lacks of them is the target's, or nothing."""

    def place(self, name: str) -> str:
        """Which of these a tensor of the checkpoint is, by its name; "" where it is not wanted."""

    def packed(self, tensors: Tensors, schemes: Schemes) -> Sequence[NewLink]:
        """[link]  Raises LoadError for tensors that contradict each other."""

    def on_device(self, tensors: Tensors, schemes: DeviceSchemes, beside: Beside) -> Guesser:
        """The same on a device."""


@dataclass(frozen=True, slots=True)
class FollowerPlan:
    """Such layers before their weights.

    part, cuts        what a rank has of it, and reads
    vocab             tokens of the target
    element, kv_dtype  what they compute in, and what their keys and values are kept in
    kv                where their layers are in the target's pages
    length            tokens of a request up to which they guess
    """

    spec: FollowerSpec
    part: FollowerSpec
    cuts: Cuts
    checkpoint: Checkpoint
    settings: EngineConfig
    num_drafts: int
    vocab: int
    element: DType
    kv_dtype: DType
    kv: KVLayout
    length: int

    @property
    def num_recomputed(self) -> int:
        return self.spec.num_links

    @property
    def stored_bytes(self) -> int:
        promised = {**self.spec.shapes(), **self.spec.optional()}.values()
        numbers = sum(math.prod(shape) for shape in promised)
        return min(self.checkpoint.total_bytes, numbers * self.element.itemsize)

    def read(self, threads: Threads, progress: Progress, ranks: Ranks | None = None) -> NewProposer:
        spec, dtype = self.part, ELEMENTS[self.element]
        progress("load", 0, self.stored_bytes)
        tensors = self._tensors()
        new_links = spec.packed(tensors, Schemes(self.element, threads))
        del tensors

        def proposer(slots: Slots, pages: PageMemory, max_tokens: int, target: Model) -> Follower:
            own = Slots(slots.num_slots, slots.max_len, slots.num_groups, slots.max_blocks, slots)
            settings = dtype, threads, self.vocab, 0, pages, self.kv.block_sizes, ELEMENTS[self.kv_dtype]
            most = min(MOST_ROWS, slots.num_slots * spec.num_links)
            of = partial(_links, new_links, places=self.kv.layer_place, target=target)
            first = of([_program(ranks, own, max_tokens, *settings) for _ in new_links], first=True)
            again = of([_program(ranks, own, most, *settings) for _ in new_links], first=False)
            blank = bytes(4 * spec.hidden * max(link.blank for link in first))
            for slot in range(slots.num_slots):
                own.give(slot, blank, 0)
            return Follower(first, again, target.told, own, self.length)

        return proposer

    def on_device(self, state: SlotState, sampler: Sampler, token_budget: int) -> DeviceProposer:
        from slipway.worker.device.row_drafts import FollowerOnDevice  # imports torch

        return FollowerOnDevice(
            state,
            sampler,
            vocab=self.vocab,
            length=self.length,
            token_budget=token_budget,
            num_links=self.spec.num_links,
        )

    def read_on_device(self, device: torch.device, target: AnyDecoder) -> Guesser:
        from slipway.worker.device.draft_layers import Beside  # imports torch
        from slipway.worker.device.schemes import DeviceSchemes
        from slipway.worker.device.transfer import Transfer

        beside = Beside(target, self.kv, self.length, self.settings.max_num_seqs, self.num_drafts)
        with closing(Transfer(device)) as transfer:
            schemes = DeviceSchemes(self.element, transfer, ranks=target.ranks)
            return self.part.on_device(self._tensors(), schemes, beside)

    def _tensors(self) -> Tensors:
        spec = self.spec
        shapes = spec.shapes(), spec.optional()
        return Tensors.of(self.checkpoint, self.element, spec.place, *shapes, self.cuts)

    def opened_again(self, progress: Progress) -> FollowerPlan:
        return replace(self, checkpoint=opened_again(self.checkpoint, self.settings, progress))


def _program(ranks: Ranks | None, *arguments: Any) -> LinkedProgram:
    program = LinkedProgram(*arguments)
    if ranks is not None:
        program.join(ranks)
    return program


def _links(
    new: Sequence[NewLink],
    programs: Sequence[LinkedProgram],
    places: Sequence[tuple[int, int]],
    target: Model,
    *,
    first: bool,
) -> list[Link]:
    pairs = zip(new, programs, strict=True)
    return [link(program, places, target, first=first) for link, program in pairs]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step made for each of its requests, at positions behind each other.

    rows   [*, width] each
    first  [requests]  which of these is a request's first
    begun  [requests]  the position of that one
    end    [requests]  positions before which rows stand: what is behind is made of guesses
    """

    rows: Sequence[Floats]
    first: Ints
    begun: Ints
    end: Ints


class Follower:
    """Computes a row for each of the target's tokens from the target's row before it, and goes on from there.

    Where the target's row of a position is known, and the token behind it, they make the row of that token:
    so keys and values at a position depend on the tokens up to there alone, as the target's do, and its pages
    can be found by these. The first row of a step goes on from the last one of the step before, which is
    kept by slot. Of a prefix hit it is not: the target computes the last token of it again.

    Of several links each makes rows of those of the link before it, in the same way, and draws the guess
    behind that of this one. So each has rows at all positions, and of a prefix hit as many tokens are
    computed again as there are links.

    Rows behind a guess go on from rows of its own, those that guesses were drawn from; the target's replace
    them when they are known. Prompts of embeddings have no tokens to read: there it guesses nothing, and no
    request with tokens finds their pages.
    """

    def __init__(
        self,
        first: Sequence[Link],
        again: Sequence[Link],
        told: Sequence[Floats],
        slots: Slots,
        length: int,
    ) -> None:
        """first, again [link]: that go on from the target's rows, and from their own; told [most tokens,
        width] each: the target's rows of a step; slots: beside the target's; length: tokens of a request that
        are read."""
        self._first = first
        self._again = again
        self._told = told
        self._slots = slots
        self._length = length
        self._standing = np.zeros((len(first), slots.num_slots), np.int32)
        """[link, slot]  positions whose rows are there, made of the target's"""
        sources = [told, *([link.told] for link in first[:-1])]
        self._last = [
            [np.zeros((slots.num_slots, rows.shape[1]), np.float32) for rows in source] for source in sources
        ]
        """[link][slot, width] each: of what it goes on from the last standing row; zeros before the first"""
        self._reads = np.zeros(slots.num_slots, np.int32)
        """[slot]  1: its request has tokens"""

    def start(self, slots: Slots, start: SlotStart) -> None:
        hit = start.num_computed > 0  # which has a position more than is spared for each link
        self._standing[:, start.slot] = hit * (start.num_computed + 1 + np.arange(len(self._first)))
        self._slots.sample_as(start.slot, slots)
        self._reads[start.slot] = not start.given
        for last in self._last:
            for rows in last:
                rows[start.slot] = 0.0

    def precede(self, slots: Slots, plan: StepPlan) -> None:
        return

    def follow(self, slots: Slots, plan: StepPlan, result: StepResult) -> None:
        at, made = np.array(plan.slots, np.int32), result.requests
        computed = slots.num_computed[at]
        rows = made["first_drawn"] - made["first_row"] + made["num_drawn"] + made["failed"]
        self._slots.num_tokens[at] = slots.num_tokens[at]
        wanted = wanted_drafts(slots, plan, result, self._length) * self._reads[at]
        end = np.minimum(computed + (wanted > 0), self._length) * self._reads[at]
        source, going = Rows(self._told, made["first_row"], computed - rows, computed), wanted > 0
        found, drawn_from = np.zeros(len(at), np.int32), []
        for number in range(len(self._first)):
            going = going & (wanted > number)
            fine, source, last = self._make(number, at, source, end, number * going)
            going = going & fine
            found += going
            drawn_from.append(last)
        self._go_on(at, wanted, going, found, np.stack(drawn_from, 1))
        slots.num_drafts[at[wanted > 0]] = found[wanted > 0]

    def _make(
        self, number: int, at: Ints, source: Rows, end: Ints, ahead: Ints
    ) -> tuple[NDArray[np.bool_], Rows, Floats]:
        """Have a link make rows up to `end` and, of so many guesses, behind it.

        Whether each request's went well, all rows, and each request's last one.
        """
        standing = self._standing[number][at]
        num_new = np.maximum(end + ahead - standing, 0)
        before = self._rows_before(number, at, num_new, source)
        self._keep(number, at, source)
        self._slots.num_computed[at] = standing
        self._standing[number][at] = np.maximum(end, standing)
        fine, told = _compute(self._first[number], at, num_new, before)
        behind = np.cumsum(num_new)
        last = np.zeros((len(at), told.shape[1]), np.float32)
        last[num_new > 0] = told[behind[num_new > 0] - 1]
        return fine, Rows([told], behind - num_new, standing, self._standing[number][at]), last

    def _rows_before(self, number: int, at: Ints, num_new: Ints, source: Rows) -> list[Floats]:
        """[rows, width] each: the rows before those that a link makes now."""
        of = np.repeat(np.arange(len(at)), num_new)
        place = np.arange(len(of)) - np.repeat(np.cumsum(num_new) - num_new, num_new)
        behind = self._standing[number][at][of] + place - source.begun[of]  # from the first row's position on
        found = []
        for last, these in zip(self._last[number], source.rows, strict=True):
            rows = these[source.first[of] + behind - 1]
            rows[behind == 0] = last[at[of[behind == 0]]]
            found.append(rows)
        return found

    def _keep(self, number: int, at: Ints, source: Rows) -> None:
        """Of what a link goes on from, each request's last row that stands."""
        count = source.end - source.begun
        for last, these in zip(self._last[number], source.rows, strict=True):
            last[at[count > 0]] = these[(source.first + count - 1)[count > 0]]

    def _go_on(
        self, at: Ints, wanted: Ints, going: NDArray[np.bool_], found: Ints, drawn_from: Floats
    ) -> None:
        """Guess in turn by each link again, and count in `found` [requests].

        drawn_from  [requests, links, width]  the rows of the last guesses, which stand for the target's
        """
        own, num_links = self._slots, len(self._again)
        while (going & (wanted > found)).any():
            rows, last = drawn_from, []
            for link in self._again:
                going = going & (wanted > found)
                now = np.flatnonzero(going)
                own.num_computed[at[now]] = own.num_tokens[at[now]] - num_links
                num_new = np.full(len(now), num_links, np.int32)
                fine, told = _compute(link, at[now], num_new, [rows[now].reshape(-1, rows.shape[2])])
                rows = np.zeros_like(rows)
                rows[now] = told.reshape(len(now), *rows.shape[1:])
                going[now] = fine
                found += going
                last.append(rows[:, -1])
            drawn_from = np.stack(last, 1)


def _compute(link: Link, at: Ints, num_new: Ints, rows: Sequence[Floats]) -> tuple[NDArray[np.bool_], Floats]:
    """Compute so many tokens of each slot from these rows; whether that went well, and what all of them told.

    rows  [sum of num_new, width] each
    """
    fine, told = np.ones(len(at), bool), np.zeros((int(num_new.sum()), link.told.shape[1]), np.float32)
    end = np.cumsum(num_new)
    link.program.slots.num_given[at] = link.blank
    for start in range(0, len(told), link.program.max_tokens):
        stop = start + link.program.max_tokens
        now = np.clip(stop, end - num_new, end) - np.clip(start, end - num_new, end)
        chosen = np.flatnonzero(now)
        for given, these in zip(link.given, rows, strict=True):
            piece = these[start:stop]
            given[: len(piece)] = piece
        result = link.program.step(at[chosen], now[chosen])
        fine[chosen] &= result.requests["failed"] == 0
        told[start:stop] = link.told[: int(now.sum())]
    return fine, told
