"""Steps of a model that computes elsewhere and keeps its KV cache, its attention and its draws here."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from slipway_kernels.cpu.arrays import BF16, FP32, Array
from slipway_kernels.cpu.binding import Floats, Ints, Masks, address, floats, library
from slipway_kernels.cpu.sources import cast
from slipway_kernels.cpu.step import Edits, Stepper, StepResult
from slipway_kernels.cpu.threads import Threads
from slipway_kernels.cpu.weights import Weight


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step computes, row by row: copies, valid for good.

    token_ids, positions [rows]; logit_rows: the rows whose logits `finish` wants, ascending.
    """

    token_ids: Ints
    positions: Ints
    logit_rows: Ints


class ExternalProgram(Stepper):
    """A step in pieces: prepare, then for each layer store_kv and attention, then finish with the logits."""

    _num_requests = 0
    _num_rows = 0

    def prepare(
        self,
        slots: Ints,
        num_new: Ints,
        num_drafts: Ints | None = None,
        masks: Masks | None = None,
        edits: Edits | None = None,
    ) -> Rows:
        """The rows of the plan: `Program.step` has its arguments. Raises ValueError where it does not fit."""
        plan = self._plan(slots, num_new, num_drafts, masks, edits)
        rows = self._c.sw_prepare(self._pointer, ctypes.byref(plan.struct), ctypes.byref(self._output))
        self._num_rows = self._checked(rows, plan)
        self._num_requests = len(slots)
        self._prepared = plan  # the C program points at its arrays until the step is finished
        logit_rows = np.empty(rows, np.int32)
        count = self._c.sw_logit_rows(self._pointer, address(logit_rows))
        return Rows(
            _copy(self._c.sw_row_tokens(self._pointer), rows),
            _copy(self._c.sw_row_positions(self._pointer), rows),
            logit_rows[:count],
        )

    def store_kv(self, layer: tuple[int, int], k: Array, v: Array, kv_heads: int, head_dim: int) -> None:
        """Keys and values of the step's rows go to their pages.   k, v [rows, kv_heads · head_dim]"""
        k, v = (np.ascontiguousarray(cast(part, FP32)) for part in (k, v))
        self._expect_rows("keys", k, kv_heads * head_dim)
        self._expect_rows("values", v, kv_heads * head_dim)
        width = kv_heads * head_dim
        self._c.sw_store_kv(self._pointer, *layer, kv_heads, head_dim, address(k), address(v), width)

    def attention(
        self,
        layer: tuple[int, int],
        q: Array,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Array:
        """softmax(scale · q · Kᵀ) · V over the pages.   q [rows, heads · head_dim], out of q's dtype."""
        queries = np.ascontiguousarray(cast(q, BF16 if self.dtype == "bf16" else FP32))
        self._expect_rows("queries", queries, heads * head_dim)
        out = np.empty_like(queries)
        width = heads * head_dim
        self._c.sw_attend(
            *(self._pointer, *layer, heads, kv_heads, head_dim),
            *(address(queries), width, address(out), width, scale, window, softcap),
        )
        return cast(out, q.dtype)

    def finish(self, logits: Array) -> StepResult:
        """Draw from logits [logit rows, vocab], append and advance as Program.step does."""
        scratch = np.array(logits, np.float32, order="C")  # the sampler writes to it
        if scratch.shape[1] < self.vocab:
            raise ValueError(f"Logits over {scratch.shape[1]} tokens; the vocabulary has {self.vocab}.")
        self._c.sw_draw(self._pointer, address(scratch), scratch.shape[1])
        self._c.sw_conclude(self._pointer)
        return self._result(self._num_requests, self._num_rows)

    def _expect_rows(self, name: str, array: Array, width: int) -> None:
        if array.size != self._num_rows * width:
            raise ValueError(
                f"The {name} have shape {array.shape}; the step has {self._num_rows} rows of {width}."
            )


def linear(x: Array, weight: Weight, bias: Array | None = None, threads: Threads | None = None) -> Floats:
    """x · Wᵀ + bias outside of any program, on the caller's thread alone where no threads are given.

    x [..., k] of any float dtype; the result [..., n] is fp32.
    """
    pool = threads or _caller_alone()
    narrow = weight.element == "bf16" or (weight.is_integers and x.dtype == BF16)
    element = BF16 if narrow else FP32
    rows = cast(x.reshape(-1, weight.k), element)
    # An odd number of cache lines from row to row, as in a program's buffers (`padded_width`).
    line = 64 // element.itemsize
    width = (-(-weight.k // line) | 1) * line
    padded = _aligned((len(rows), width), element)
    padded[:, : weight.k] = rows
    out = np.empty((len(rows), weight.n), np.float32)
    block_bias = None
    if bias is not None:
        block_bias = np.zeros((weight.n + 31) // 32 * 32, np.float32)
        block_bias[: weight.n] = floats(bias)
    operand, stride = padded, width
    if weight.is_integers:
        stride = library().sw_code_stride(weight.k)
        operand = _aligned((len(rows), stride), np.uint8)
        library().sw_quantize_rows(
            *(address(padded), int(narrow), width, len(rows), weight.k, address(operand))
        )
    library().sw_linear(
        *(pool.pointer, address(operand), stride, len(rows), ctypes.byref(weight.struct)),
        *(address(out), weight.n, address(block_bias)),
    )
    return out.reshape(*x.shape[:-1], weight.n)


def _aligned(shape: tuple[int, int], dtype: npt.DTypeLike) -> Array:
    """Zeros that begin with a cache line: where each row of a tile lies in two, AMX takes a third longer."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


@cache
def _caller_alone() -> Threads:
    return Threads(1)


def _copy(pointer: int, count: int) -> Ints:
    if count == 0:
        return np.zeros(0, np.int32)
    view = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int32))
    return np.ctypeslib.as_array(view, (count,)).copy()
