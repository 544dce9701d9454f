"""Drafts of heads on the target's last hidden states: one head for each position ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slipway.engine.config import EngineConfig
from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import ELEMENTS, DType, Floats
from slipway.load.checkpoint import Checkpoint
from slipway.load.progress import Progress
from slipway.load.quantized.tensors import in_type
from slipway.worker.drafts.bounds import wanted_drafts
from slipway.worker.drafts.tensors import tensors_of
from slipway.worker.plan import opened_again
from slipway.worker.proposer import NewProposer
from slipway.worker.route import Model
from slipway_kernels.cpu import LinkedProgram, Packed, PageMemory, Ranks, Slots, StepResult, Threads
from slipway_kernels.cpu.binding import floats

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.draft_heads import DeviceParts
    from slipway.worker.device.guesser import Guesser
    from slipway.worker.device.proposer import DeviceProposer
    from slipway.worker.device.sampler import Sampler
    from slipway.worker.device.state import SlotState

MOST_ROWS = 64
"""Of one step of a head: more slots take several."""


@dataclass(frozen=True, slots=True)
class Head:
    """What draws one draft of each row.

    given  [rows, width]  what it goes on from, to be filled before a step
    told   [rows, width]  what the next head goes on from
    """

    program: LinkedProgram
    given: Floats
    told: Floats


@dataclass(frozen=True, slots=True)
class Parts:
    """The weights of heads by their names: matrices packed, vectors in fp32."""

    matrices: Mapping[str, Packed]
    vectors: Mapping[str, Floats]


class HeadSpec(Protocol):
    """What a checkpoint of heads says of itself in its configuration."""

    @property
    def hidden(self) -> int:
        """Of the target's rows."""

    @property
    def vocab(self) -> int: ...
    @property
    def num_heads(self) -> int: ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor."""

    def place(self, name: str) -> str:
        """Which of these a tensor of the checkpoint is, by its name; "" where it is a copy of another."""

    def lower(self, number: int, parts: Parts, program: LinkedProgram) -> Head:
        """Add the operations of a head, and finish its program."""

    def on_device(self, parts: DeviceParts, told: Sequence[Tensor]) -> Guesser:
        """All heads, over the target's rows."""


@dataclass(frozen=True, slots=True)
class HeadsPlan:
    """Heads before their weights. vocab: tokens of the target; element: what they compute in."""

    spec: HeadSpec
    checkpoint: Checkpoint
    settings: EngineConfig
    num_drafts: int
    vocab: int
    element: DType
    length: int

    num_recomputed = 0  # a step's last row is all that they go on from

    @property
    def stored_bytes(self) -> int:
        return self.checkpoint.total_bytes

    def read(self, threads: Threads, progress: Progress, ranks: Ranks | None = None) -> NewProposer:
        """Each rank has them all: they draw the same, and save what telling would cost."""
        progress("load", 0, self.checkpoint.total_bytes)
        dtype = ELEMENTS[self.element]
        parts = _read(self.spec, self.checkpoint, self.element, threads)

        def proposer(slots: Slots, pages: PageMemory, max_tokens: int, target: Model) -> Heads:
            own = Slots(slots.num_slots, slots.max_len, 0, 1, slots)
            rows = min(MOST_ROWS, slots.num_slots)
            program = partial(LinkedProgram, own, rows, dtype, threads, self.vocab, 0, pages, [])
            heads = [self.spec.lower(number, parts, program()) for number in range(self.num_drafts)]
            return Heads(heads, target.told[0], own, self.length)

        return proposer

    def on_device(self, state: SlotState, sampler: Sampler, token_budget: int) -> DeviceProposer:
        from slipway.worker.device.row_drafts import HeadsOnDevice  # imports torch

        return HeadsOnDevice(state, sampler, vocab=self.vocab, length=self.length)

    def read_on_device(self, device: torch.device, target: AnyDecoder) -> Guesser:
        from slipway.worker.device.draft_heads import DeviceParts  # imports torch

        parts = DeviceParts.read(self.spec, self.checkpoint, self.element, device)
        return self.spec.on_device(parts, target.told)

    def opened_again(self, progress: Progress) -> HeadsPlan:
        return replace(self, checkpoint=opened_again(self.checkpoint, self.settings, progress))


class Heads:
    """Each head draws the token behind that of the head before, all slots together.

    They keep no keys and values: a step's last row of each slot is all that they go on from.
    """

    def __init__(self, heads: Sequence[Head], hidden: Floats, slots: Slots, length: int) -> None:
        """hidden [most tokens, hidden]: the target's rows of a step; slots: beside the target's; length:
        tokens of a request up to which they guess."""
        self._heads = heads
        self._hidden = hidden
        self._slots = slots
        self._length = length

    def start(self, slots: Slots, start: SlotStart) -> None:
        self._slots.sample_as(start.slot, slots)

    def precede(self, slots: Slots, plan: StepPlan) -> None:
        return

    def follow(self, slots: Slots, plan: StepPlan, result: StepResult) -> None:
        wanted = wanted_drafts(slots, plan, result, self._length)
        if not wanted.any():
            return
        last = result.requests["first_drawn"] + result.requests["num_drawn"] - 1
        at = np.array(plan.slots, np.int32)
        self._slots.num_tokens[at] = slots.num_tokens[at]
        self._slots.num_computed[at] = slots.num_tokens[at] - 1
        drawing = np.flatnonzero(wanted)
        for first in range(0, len(drawing), MOST_ROWS):
            some = drawing[first : first + MOST_ROWS]
            self._draw(slots, np.asarray(at[some]), wanted[some], self._hidden[last[some]])

    def _draw(self, slots: Slots, at: np.ndarray, wanted: np.ndarray, rows: Floats) -> None:
        going = np.arange(len(at))
        for count, head in enumerate(self._heads, 1):
            head.given[: len(going)] = rows
            result = head.program.step(at[going], np.ones(len(going), np.int32))
            fine = result.requests["failed"] == 0
            slots.num_drafts[at[going[fine]]] = count
            fine &= wanted[going] > count
            rows, going = head.told[: len(going)][fine], going[fine]
            if not len(going):
                break


def _read(spec: HeadSpec, checkpoint: Checkpoint, element: DType, threads: Threads) -> Parts:
    """Every tensor, packed as it is read. Raises LoadError where the checkpoint has others."""
    matrices: dict[str, Packed] = {}
    vectors: dict[str, Floats] = {}
    for place, stored in tensors_of(checkpoint, element, spec.place, spec.shapes()):
        numbers = in_type(stored, element)
        if numbers.ndim == 1:
            vectors[place] = floats(numbers)
        else:
            matrices[place] = Packed(numbers.shape[0], numbers.shape[1], ELEMENTS[element])
            matrices[place].load_rows(numbers, threads=threads)
    return Parts(matrices, vectors)
