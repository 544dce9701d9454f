"""One step's plan and results as fixed arrays that the C side reads and fills."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway_kernels.cpu.binding import (
    DRAWN,
    DTYPES,
    Floats,
    Ints,
    OutputStruct,
    PlanStruct,
    address,
    library,
)
from slipway_kernels.cpu.memory import PageMemory
from slipway_kernels.cpu.slots import Slots
from slipway_kernels.cpu.threads import Threads


@dataclass(frozen=True, slots=True)
class StepResult:
    """Views of the program's output arrays: valid until its next step.

    drawn [requests], prompt [rows] have the fields token (-1: none), failed, logprob, rank (1: most likely);
    the top arrays hold the most likely tokens of each, best first. `prompt` speaks of a prompt token at the
    row of the token before it.
    """

    drawn: np.ndarray[Any, np.dtype[np.void]]
    top_ids: Ints  # [requests, max_top]
    top_logprobs: Floats  # [requests, max_top]
    prompt: np.ndarray[Any, np.dtype[np.void]]
    prompt_top_ids: Ints  # [rows, max_top]
    prompt_top_logprobs: Floats  # [rows, max_top]


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
        block_size: int,
        kv_dtype: str | None = None,
    ) -> None:
        """kv_dtype: what keys and values are kept in, e4m3 or e5m2; None is `dtype`."""
        if dtype not in ("fp32", "bf16"):
            raise ValueError(f"A program computes in fp32 or bf16, not in {dtype}.")
        self.slots = slots
        self.max_tokens = max_tokens
        self.dtype = dtype
        self.threads = threads if isinstance(threads, Threads) else Threads(threads)
        self.vocab = vocab
        self.max_top = max(1, max_top)
        self.page_pool = page_pool
        self.block_size = block_size
        requests = slots.num_slots
        self._drawn = np.zeros(requests, DRAWN)
        self._top_ids = np.zeros((requests, self.max_top), np.int32)
        self._top_logprobs = np.zeros((requests, self.max_top), np.float32)
        self._prompt = np.zeros(max_tokens, DRAWN)
        self._prompt_top_ids = np.zeros((max_tokens, self.max_top), np.int32)
        self._prompt_top_logprobs = np.zeros((max_tokens, self.max_top), np.float32)
        self._output = OutputStruct(
            self.max_top,
            address(self._drawn),
            address(self._top_ids),
            address(self._top_logprobs),
            address(self._prompt),
            address(self._prompt_top_ids),
            address(self._prompt_top_logprobs),
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
            block_size,
        )
        if kv_dtype not in (None, dtype):
            self._c.sw_store_kv_as(self._pointer, DTYPES[str(kv_dtype)])
        self._kept: list[object] = []
        # The threads and the slots outlive the C program that points at them.
        weakref.finalize(self, _destroy, self._c, self._pointer, (self.threads, slots, page_pool))

    def scale_kv(self, place: tuple[int, int], key: float, value: float) -> None:
        """What keys and values of a layer are divided by before they are kept in eight bits.

        place  its KV group and its index there
        """
        self._c.sw_scale_kv(self._pointer, *place, key, value)

    def find_kv_scales(self, key_divisor: float, value_divisor: float) -> None:
        """Have the next step that computes anything find what keys and values are divided by from then on.

        A layer's scales become the largest finite magnitude of its keys, rotated, and of its values, each
        over its divisor; 1 where all of them are 0. What that step stores is already divided by them. Pages
        written before are read by the new scales, too: no request may still need them.
        Raises ValueError where a divisor is not above 0.
        """
        if key_divisor <= 0 or value_divisor <= 0:
            raise ValueError(
                f"Scales are found by divisors of {key_divisor} and {value_divisor}: both must be above 0."
            )
        self._c.sw_find_kv_scales(self._pointer, key_divisor, value_divisor)

    def _plan(self, slots: Ints, num_new: Ints) -> tuple[PlanStruct, tuple[Ints, Ints]]:
        """The C form and the arrays that it points at."""
        chosen = np.ascontiguousarray(slots, np.int32)
        granted = np.ascontiguousarray(num_new, np.int32)
        if len(chosen) != len(granted) or len(chosen) > self.slots.num_slots:
            raise ValueError(
                f"A plan of {len(chosen)} slots and {len(granted)} grants: give one grant a slot, for at "
                f"most {self.slots.num_slots} slots."
            )
        return PlanStruct(len(chosen), address(chosen), address(granted)), (chosen, granted)

    def _checked(self, rows: int, slots: Ints, num_new: Ints) -> int:
        if rows < 0:
            raise ValueError(
                f"The plan does not fit the slots: slots {np.asarray(slots).tolist()}, grants "
                f"{np.asarray(num_new).tolist()}. Grants are at least 0, add up to at most "
                f"{self.max_tokens}, none goes past the tokens known, the tokens "
                "are in the embedding, and every granted position has a page."
            )
        return rows

    def _result(self, requests: int, rows: int) -> StepResult:
        return StepResult(
            self._drawn[:requests],
            self._top_ids[:requests],
            self._top_logprobs[:requests],
            self._prompt[:rows],
            self._prompt_top_ids[:rows],
            self._prompt_top_logprobs[:rows],
        )


def _destroy(c: ctypes.CDLL, pointer: int, _alive: Sequence[object]) -> None:
    c.sw_program_destroy(pointer)
