"""One step's plan and results as fixed arrays that the C side reads and fills."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slipway_kernels.cpu.binding import (
    ADVANCE,
    DRAWN,
    DTYPES,
    EDIT,
    Floats,
    Ints,
    Masks,
    OutputStruct,
    PlanStruct,
    address,
    floats,
    library,
)
from slipway_kernels.cpu.memory import PageMemory
from slipway_kernels.cpu.ranks import RankLeft
from slipway_kernels.cpu.slots import Slots
from slipway_kernels.cpu.threads import Threads


@dataclass(frozen=True, slots=True)
class StepResult:
    """Views of the program's output arrays: valid until its next step.

    requests  [requests] with the fields first_row; first_drawn, the first of its rows that draws, or their
              end; num_drawn, rows from there on whose tokens stand; failed, whether the row after these has
    rows      [rows] with the fields token, failed, logprob, rank (1: most likely): of the token drawn or, at
              the row before it, of a prompt token that is reported; token -1 where there is neither
    top_ids, top_logprobs  [rows, max_top]  the most likely tokens, best first
    hidden    [rows, hidden]  final rows of pooled slots, those of others mean nothing; [rows, 0] of a program
              without `hidden`
    """

    requests: np.ndarray[Any, np.dtype[np.void]]
    rows: np.ndarray[Any, np.dtype[np.void]]
    top_ids: Ints
    top_logprobs: Floats
    hidden: Floats

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens that each request drew: none, one, or several where drafts were accepted."""
        drawn = self.rows["token"].tolist()
        spans = zip(self.requests["first_drawn"].tolist(), self.requests["num_drawn"].tolist(), strict=True)
        return [drawn[first : first + count] for first, count in spans]


@dataclass(frozen=True, slots=True)
class Edits:
    """Logits that a caller edits before they are drawn from.

    wanted  [requests] uint8: 1 of those whose rows are edited
    edit    of requests, by their place in the plan, and their rows of logits [vocab], which it only reads,
            makes what each draws from: a row [vocab], or None for the row as it is. It raises nothing
    """

    wanted: np.ndarray[Any, np.dtype[np.uint8]]
    edit: Callable[[list[int], list[Floats]], Sequence[Floats | None]]


class Stepper:
    """The C program, with its plan and output arrays. The base of what can compute a step."""

    def __init__(
        self,
        slots: Slots,
        max_tokens: int,
        dtype: str,
        threads: int | Threads,
        vocab: int,
        max_top: int,
        page_pool: PageMemory,
        block_size: int | Sequence[int],
        kv_dtype: str | None = None,
    ) -> None:
        """What a program needs of its worker.

        block_size  positions a page: of all groups, or of each
        kv_dtype    what keys and values are kept in, e4m3, e5m2 or int8; None is `dtype`
        """
        if dtype not in ("fp32", "bf16"):
            raise ValueError(f"A program computes in fp32 or bf16, not in {dtype}.")
        self.slots = slots
        self.max_tokens = max_tokens
        self.dtype = dtype
        self._has_own_scales = kv_dtype == "int8"
        self.threads = threads if isinstance(threads, Threads) else Threads(threads)
        self.vocab = vocab
        self.max_top = max(1, max_top)
        self.page_pool = page_pool
        blocks = np.full(slots.num_groups, block_size, np.int32)
        self._requests = np.zeros(slots.num_slots, ADVANCE)
        self._rows = np.zeros(max_tokens, DRAWN)
        self._top_ids = np.zeros((max_tokens, self.max_top), np.int32)
        self._top_logprobs = np.zeros((max_tokens, self.max_top), np.float32)
        self._hidden = np.zeros((max_tokens, 0), np.float32)
        self._output = OutputStruct(
            self.max_top,
            address(self._requests),
            address(self._rows),
            address(self._top_ids),
            address(self._top_logprobs),
        )
        self._c = library()
        self._pointer: int = self._c.sw_program_create(
            ctypes.byref(slots.struct),
            max_tokens,
            DTYPES[dtype],
            self.threads.pointer,
            vocab,
            self.max_top,
            page_pool.memory.address,
            page_pool.num_pages,
            page_pool.page_bytes,
            address(blocks),
        )
        if kv_dtype not in (None, dtype):
            self._c.sw_store_kv_as(self._pointer, DTYPES[str(kv_dtype)])
        self._kept: list[object] = []
        self.taken: list[Floats] = []
        """Arrays from which a step takes rows, of a program that takes some; [max_tokens, width] each."""
        self.told: list[Floats] = []
        """Arrays that have rows of the last step, of a program that tells them; [max_tokens, width] each."""
        # The threads and the slots outlive the C program that points at them.
        weakref.finalize(self, _destroy, self._c, self._pointer, (self.threads, slots, page_pool))

    @property
    def workspace_bytes(self) -> int:
        """What steps of the largest size take beside weights, slots and pages."""
        own: int = self._c.sw_program_bytes(self._pointer)
        told = (self._rows, self._top_ids, self._top_logprobs, self._hidden, *self.taken, *self.told)
        return own + sum(array.nbytes for array in told)

    def scale_kv(self, place: tuple[int, int], key: float, value: float) -> None:
        """What keys and values of a layer are divided by before they are kept in eight bits.

        place  its KV group and its index there
        Raises ValueError where each position has scales of its own.
        """
        self._check_scales()
        self._c.sw_scale_kv(self._pointer, *place, key, value)

    def kv_scale(self, place: tuple[int, int]) -> tuple[float, float]:
        """What keys and values of a layer are divided by: as told, or as found by a step."""
        found = np.empty(2, np.float32)
        self._c.sw_kv_scales(self._pointer, *place, address(found))
        return float(found[0]), float(found[1])

    def find_kv_scales(self, key_divisor: float, value_divisor: float) -> None:
        """Have the next step that computes anything find what keys and values are divided by from then on.

        A layer's scales become the largest finite magnitude of its keys, rotated, and of its values, each
        over its divisor; 1 where all of them are 0. What that step stores is already divided by them. Pages
        written before are read by the new scales, too: no request may still need them.
        Raises ValueError where a divisor is not above 0, and where each position has scales of its own.
        """
        self._check_scales()
        if key_divisor <= 0 or value_divisor <= 0:
            raise ValueError(
                f"Scales are found by divisors of {key_divisor} and {value_divisor}: both must be above 0."
            )
        self._c.sw_find_kv_scales(self._pointer, key_divisor, value_divisor)

    def _check_scales(self) -> None:
        if self._has_own_scales:
            raise ValueError("Integers of the KV cache have a scale for each position: a layer has none.")

    def _plan(
        self,
        slots: Ints,
        num_new: Ints,
        num_drafts: Ints | None,
        masks: Masks | None,
        edits: Edits | None = None,
    ) -> _Plan:
        """The C form and what it points at. Raises ValueError where the arrays contradict each other."""
        if num_drafts is None:
            num_drafts = np.zeros(len(slots), np.int32)
        arrays = [np.ascontiguousarray(array, np.int32) for array in (slots, num_new, num_drafts)]
        if {*map(len, arrays)} != {len(slots)} or len(slots) > self.slots.num_slots:
            raise ValueError(
                f"A plan of {len(slots)} slots, {len(num_new)} grants and {len(num_drafts)} numbers of "
                f"drafts: give one of each a slot, for at most {self.slots.num_slots} slots."
            )
        plan = _Plan(PlanStruct(len(slots), *map(address, arrays)), arrays)
        if masks:
            plan.add_masks(masks, (self.vocab + 31) // 32)
        if edits is not None:
            plan.add_edits(edits, self.vocab)
        return plan

    def _checked(self, rows: int, plan: _Plan) -> int:
        if rows == -2:
            raise RankLeft("A rank has left in the midst of a step.")
        if rows < 0:
            slots, grants, drafts = (array.tolist() for array in plan.arrays)
            raise ValueError(
                f"The plan does not fit the slots: slots {slots}, grants {grants}, of these drafts {drafts}. "
                f"Grants are at least 0, add up to at most {self.max_tokens}, none goes past the tokens "
                "known, drafts follow the last of them, the tokens are in the embedding, and every granted "
                "position has a page."
            )
        return rows

    def _result(self, requests: int, rows: int) -> StepResult:
        return StepResult(
            self._requests[:requests],
            self._rows[:rows],
            self._top_ids[:rows],
            self._top_logprobs[:rows],
            self._hidden[:rows],
        )


@dataclass(slots=True)
class _Plan:
    """`sw_plan`, and what it points at: slots, grants, numbers of drafts [requests]."""

    struct: PlanStruct
    arrays: list[Ints]
    masks: list[object] = field(default_factory=list)
    edited: list[object] = field(default_factory=list)

    def add_masks(self, masks: Masks, words: int) -> None:
        pointers = (ctypes.c_void_p * len(self.arrays[0]))()
        for place, rows in masks.items():
            mask = np.ascontiguousarray(rows, np.uint32)
            expected = (1 + int(self.arrays[2][place]), words)
            if mask.shape != expected:
                raise ValueError(f"The mask of request {place} has shape {mask.shape} instead of {expected}.")
            pointers[place] = address(mask)
            self.masks.append(mask)
        self.masks.append(pointers)
        self.struct.masks = ctypes.addressof(pointers)

    def add_edits(self, edits: Edits, vocab: int) -> None:
        """The C program calls back from within the step, on this thread."""

        def call(count: int, requests: Any, rows: Any, edited: Any) -> None:
            kind = ctypes.c_float * vocab
            views = [np.ctypeslib.as_array(kind.from_address(rows[i])) for i in range(count)]
            for i, row in enumerate(edits.edit(requests[:count], views)):
                if row is not None:
                    found = floats(row)
                    self.edited.append(found)
                    edited[i] = address(found)

        function = EDIT(call)
        self.edited += (edits.wanted, function)
        self.struct.edits = address(edits.wanted)
        self.struct.edit = ctypes.cast(function, ctypes.c_void_p).value


def _destroy(c: ctypes.CDLL, pointer: int, _alive: Sequence[object]) -> None:
    c.sw_program_destroy(pointer)
