"""Drafts of layers that go on from the target's rows, with keys and values of their own in its pages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

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
from slipway.worker.drafts.layer import Tensors
from slipway.worker.drafts.tensors import Shapes, tensors_of
from slipway.worker.plan import opened_again
from slipway.worker.proposer import NewProposer
from slipway.worker.route import Model
from slipway_kernels.cpu import LinkedProgram, PageMemory, Slots, StepResult, Threads

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
    """

    program: LinkedProgram
    given: Sequence[Floats]
    told: Floats


class NewLink(Protocol):
    """Adds the operations of a program, over weights that all its programs share."""

    def __call__(
        self, program: LinkedProgram, places: Sequence[tuple[int, int]], target: Model, *, first: bool
    ) -> Link:
        """Finish the program.

        places  [layer]  its KV group and its index there
        first   its rows go on from the target's, else from what it told
        """


class FollowerSpec(Protocol):
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

    def taps(self, num_layers: int) -> Sequence[int]:
        """The target's rows that it goes on from: `ModelPlan.taps`, of a target of so many layers."""

    def shapes(self) -> Shapes:
        """Of every tensor."""

    def optional(self) -> Shapes:
        """Of those that it may also have: what it lacks of them is the target's, or nothing."""

    def place(self, name: str) -> str:
        """Which of these a tensor of the checkpoint is, by its name; "" where it is not wanted."""

    def packed(self, tensors: Tensors, schemes: Schemes) -> NewLink:
        """Raises LoadError for tensors that contradict each other."""

    def on_device(self, tensors: Tensors, schemes: DeviceSchemes, beside: Beside) -> Guesser:
        """The same on a device."""


@dataclass(frozen=True, slots=True)
class FollowerPlan:
    """Such layers before their weights.

    vocab             tokens of the target
    element, kv_dtype  what they compute in, and what their keys and values are kept in
    kv                where their layers are in the target's pages
    length            tokens of a request up to which they guess
    """

    spec: FollowerSpec
    checkpoint: Checkpoint
    settings: EngineConfig
    num_drafts: int
    vocab: int
    element: DType
    kv_dtype: DType
    kv: KVLayout
    length: int

    reads_rows = True

    @property
    def stored_bytes(self) -> int:
        return self.checkpoint.total_bytes

    def read(self, threads: Threads, progress: Progress) -> NewProposer:
        spec, dtype = self.spec, ELEMENTS[self.element]
        progress("load", 0, self.stored_bytes)
        tensors = self._tensors()
        new_link = spec.packed(tensors, Schemes(self.element, threads))
        del tensors

        def proposer(slots: Slots, pages: PageMemory, max_tokens: int, target: Model) -> Follower:
            own = Slots(slots.num_slots, slots.max_len, slots.num_groups, slots.max_blocks, slots)
            settings = dtype, threads, self.vocab, 0, pages, self.kv.block_sizes, ELEMENTS[self.kv_dtype]
            link = partial(new_link, places=self.kv.layer_place, target=target)
            first = link(LinkedProgram(own, max_tokens, *settings), first=True)
            again = link(LinkedProgram(own, min(MOST_ROWS, slots.num_slots), *settings), first=False)
            return Follower(first, again, target.told, own, self.length)

        return proposer

    def on_device(self, state: SlotState, sampler: Sampler, token_budget: int) -> DeviceProposer:
        from slipway.worker.device.row_drafts import FollowerOnDevice  # imports torch

        return FollowerOnDevice(
            state, sampler, vocab=self.vocab, length=self.length, token_budget=token_budget
        )

    def read_on_device(self, device: torch.device, target: AnyDecoder) -> Guesser:
        from slipway.worker.device.draft_layers import Beside  # imports torch
        from slipway.worker.device.schemes import DeviceSchemes
        from slipway.worker.device.transfer import Transfer

        beside = Beside(target, self.kv, self.length, self.settings.max_num_seqs, self.num_drafts)
        with closing(Transfer(device)) as transfer:
            return self.spec.on_device(self._tensors(), DeviceSchemes(self.element, transfer), beside)

    def _tensors(self) -> Tensors:
        spec = self.spec
        return dict(tensors_of(self.checkpoint, self.element, spec.place, spec.shapes(), spec.optional()))

    def opened_again(self, progress: Progress) -> FollowerPlan:
        return replace(self, checkpoint=opened_again(self.checkpoint, self.settings, progress))


class Follower:
    """Computes a row for each of the target's tokens from the target's row before it, and goes on from there.

    Where the target's row of a position is known, and the token behind it, they make the row of that token:
    so keys and values at a position depend on the tokens up to there alone, as the target's do, and its pages
    can be found by these. The first row of a step goes on from the last one of the step before, which is
    kept by slot. Of a prefix hit it is not: the target computes the last token of it again.

    Rows behind a guess go on from rows of its own; the target's replace them when they are known. Prompts of
    embeddings have no tokens to read: there it guesses nothing, and no request with tokens finds their pages.
    """

    def __init__(self, first: Link, again: Link, told: Sequence[Floats], slots: Slots, length: int) -> None:
        """told [most tokens, width] each: the target's rows of a step; slots: beside the target's; length:
        tokens of a request that are read."""
        self._first = first
        self._again = again
        self._told = told
        self._slots = slots
        self._length = length
        self._standing = np.zeros(slots.num_slots, np.int32)
        """[slot]  positions whose rows are there, made of the target's"""
        self._last = [np.zeros((slots.num_slots, rows.shape[1]), np.float32) for rows in told]
        """[slot, width] each: the target's last rows that stand; zeros before the first"""
        self._reads = np.zeros(slots.num_slots, np.int32)
        """[slot]  1: its request has tokens"""

    def start(self, slots: Slots, start: SlotStart) -> None:
        hit = start.num_computed > 0  # which has one position more than is spared
        self._standing[start.slot] = start.num_computed + hit
        self._slots.sample_as(start.slot, slots)
        self._reads[start.slot] = not start.given
        for rows in self._last:
            rows[start.slot] = 0.0

    def precede(self, slots: Slots, plan: StepPlan) -> None:
        return

    def follow(self, slots: Slots, plan: StepPlan, result: StepResult) -> None:
        own, at, made = self._slots, np.array(plan.slots, np.int32), result.requests
        computed = slots.num_computed[at]
        rows = made["first_drawn"] - made["first_row"] + made["num_drawn"] + made["failed"]
        own.num_tokens[at] = slots.num_tokens[at]
        own.num_computed[at] = self._standing[at]
        wanted = wanted_drafts(slots, plan, result, self._length) * self._reads[at]
        end = np.minimum(computed + (wanted > 0), self._length) * self._reads[at]
        num_new = np.maximum(end - own.num_computed[at], 0)
        before = self._rows_before(at, num_new, made["first_row"], computed - rows)
        fine, told = _compute(self._first, at, num_new, before)
        self._standing[at] += num_new
        for last, these in zip(self._last, self._told, strict=True):
            last[at[rows > 0]] = these[(made["first_row"] + rows - 1)[rows > 0]]
        found = self._guess(at, wanted, fine & (wanted > 0), told)
        slots.num_drafts[at[wanted > 0]] = found[wanted > 0]

    def _rows_before(self, at: Ints, num_new: Ints, first_row: Ints, begun: Ints) -> list[Floats]:
        """[rows, width] each: the target's rows before those that are computed now.

        begun  [requests]  the position of the first row of this step, whose row is `first_row`
        """
        of = np.repeat(np.arange(len(at)), num_new)
        place = np.arange(len(of)) - np.repeat(np.cumsum(num_new) - num_new, num_new)
        behind = self._standing[at][of] + place - begun[of]  # from the first row's position on
        found = []
        for last, these in zip(self._last, self._told, strict=True):
            rows = these[first_row[of] + behind - 1]
            rows[behind == 0] = last[at[of[behind == 0]]]
            found.append(rows)
        return found

    def _guess(self, at: Ints, wanted: Ints, going: NDArray[np.bool_], rows: Floats) -> Ints:
        """[requests]  drafts found; the first is there. rows: what the next goes on from"""
        found = going.astype(np.int32)
        while (going := going & (wanted > found)).any():
            now = np.flatnonzero(going)
            going[now], rows[now] = _compute(self._again, at[now], np.ones(len(now), np.int32), [rows[now]])
            found += going
        return found


def _compute(link: Link, at: Ints, num_new: Ints, rows: Sequence[Floats]) -> tuple[NDArray[np.bool_], Floats]:
    """Compute so many tokens of each slot from these rows; whether that went well, and what the last told.

    rows  [sum of num_new, width] each
    """
    fine, told = np.ones(len(at), bool), np.zeros((len(at), link.told.shape[1]), np.float32)
    end = np.cumsum(num_new)
    for start in range(0, int(num_new.sum()), link.program.max_tokens):
        stop = start + link.program.max_tokens
        now = np.clip(stop, end - num_new, end) - np.clip(start, end - num_new, end)
        chosen = np.flatnonzero(now)
        for given, these in zip(link.given, rows, strict=True):
            piece = these[start:stop]
            given[: len(piece)] = piece
        result = link.program.step(at[chosen], now[chosen])
        fine[chosen] &= result.requests["failed"] == 0
        told[chosen] = link.told[np.cumsum(now[chosen]) - 1]
    return fine, told
