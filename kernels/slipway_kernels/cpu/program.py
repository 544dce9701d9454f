"""A model as a list of operations over fixed buffers, run by one C call a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway_kernels.cpu.binding import (
    ACTIVATIONS,
    DTYPES,
    AdapterStruct,
    Floats,
    Ints,
    Masks,
    WeightStruct,
    address,
    floats,
)
from slipway_kernels.cpu.step import Stepper, StepResult
from slipway_kernels.cpu.weights import Packed, Weight

Adapter = tuple[Packed, Packed]
"""What is added to a product [*, n] of rows [*, k]: A [rank, k], which has the scaling, and B [n, rank]."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """[max_tokens, width] between operations: fp32, or "act", which is the program's dtype."""

    index: int
    width: int
    dtype: str


class Program(Stepper):
    """Built once by adding operations in the order of computation, then run step by step.

    The residual stream and all sums are fp32; what enters a product ("act" buffers), the weights and the KV
    cache are of the program's dtype. Weights may also be integers: what enters their products is quantized to
    16 bits before. No result depends on what else is in the step.
    """

    _finished = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._operations: list[str] = []
        self._quantized: set[int] = set()  # buffers whose codes are those of their rows

    def buffer(self, width: int, dtype: str = "fp32") -> Buffer:
        if dtype not in ("fp32", "act"):
            raise ValueError(f"A buffer is fp32 or act, not {dtype}.")
        element = self.dtype if dtype == "act" else "fp32"
        index = self._c.sw_buffer(self._pointer, width, DTYPES[element])
        return Buffer(index, width, dtype)

    def embed(self, table: Weight, out: Buffer, scale: float = 1.0) -> None:
        """out = table[token] · scale.   out fp32 [*, k]"""
        self._expect("embed", out, "fp32", table.k)
        self._add("embed", self._weight(table), self._written(out), scale)

    def rms_norm(
        self,
        x: Buffer,
        weight: Floats,
        out: Buffer,
        eps: float,
        add_one: bool = False,
        accumulate: bool = False,
    ) -> None:
        """out = (or +=) x / sqrt(mean(x²) + eps) · weight, or · (1 + weight).   x fp32, out act or fp32"""
        self._expect("rms_norm", x, "fp32", out.width)
        self._expect("rms_norm", out, "fp32" if accumulate else out.dtype, x.width)
        factors = self._floats(weight, x.width)
        self._add("rms_norm", x.index, factors, self._written(out), eps, add_one, accumulate)

    def linear(
        self,
        x: Buffer,
        weight: Weight,
        out: Buffer,
        bias: Floats | None = None,
        accumulate: bool = False,
        column: int = 0,
        adapters: Sequence[Adapter | None] = (),
    ) -> None:
        """out[:, column : column + n] = (or +=) x · Wᵀ + bias.   x act [*, k]; out fp32 where accumulated

        x is shared by all products that read it: what integers want, its codes, are made once, by the norm
        that writes it or by an operation before the first of them.
        adapters  by index, what each adds to the rows of slots that ask for it, before they are joined with
                  anything; out is then fp32
        """
        self._expect("linear", x, "act", weight.k)
        self._expect("linear", out, "fp32" if accumulate else out.dtype)
        if column + weight.n > out.width:
            raise ValueError(
                f"linear: columns {column} to {column + weight.n} do not fit a buffer of width {out.width}."
            )
        if adapters:
            self._expect("linear", out, "fp32")
        self._linear(x, weight, out, bias, accumulate, column, 0)
        self._adapters(x, weight, adapters)

    def linear_gated(
        self,
        x: Buffer,
        weight: Weight,
        out: Buffer,
        activation: str,
        bias: Floats | None = None,
        adapters: Sequence[Adapter | None] = (),
    ) -> None:
        """out = activation(gate) · up; W's rows are 16 of the gate, 16 of up, and so on.   x act, out act

        adapters  as of `linear`; a step in which one is asked for computes gate and up apart, to the same
                  bits, so that they are added before the activation
        """
        self._expect("linear_gated", x, "act", weight.k)
        if (weight.n + 31) // 32 * 16 < out.width:
            raise ValueError(f"linear_gated: {weight.n} rows of gate and up do not give {out.width} columns.")
        self._linear(x, weight, out, bias, False, 0, ACTIVATIONS[activation])
        self._adapters(x, weight, adapters)

    def rope_and_store(
        self,
        qkv: Buffer,
        q_out: Buffer,
        layer: tuple[int, int],
        heads: int,
        kv_heads: int,
        head_dim: int,
        cos_sin: Floats | None,
        rotary_dim: int,
        q_norm: Floats | None = None,
        k_norm: Floats | None = None,
        eps: float = 0.0,
        add_one: bool = False,
    ) -> None:
        """Norm and rotate the heads of qkv; queries go to q_out, keys and values to their pages.

        qkv      fp32 [*, (heads + 2 · kv_heads) · head_dim]
        q_out    act [*, heads · head_dim]
        layer    (group, index within the group)
        cos_sin  [max_len, rotary_dim / 2, 2], pairs are (i, i + rotary_dim / 2); None: no rotation
        """
        self._check_heads(heads, kv_heads, head_dim)
        self._expect("rope_and_store", qkv, "fp32", (heads + 2 * kv_heads) * head_dim)
        self._expect("rope_and_store", q_out, "act", heads * head_dim)
        angles = None
        if cos_sin is not None:
            if cos_sin.shape[0] < self.slots.max_len or cos_sin.shape[1:] != (rotary_dim // 2, 2):
                raise ValueError(
                    f"rope_and_store: angles of shape {tuple(cos_sin.shape)}; they must be "
                    f"[at least {self.slots.max_len}, {rotary_dim // 2}, 2]."
                )
            angles = self._floats(cos_sin)
        self._add(
            "rope_and_store",
            *(qkv.index, self._written(q_out), *layer, heads, kv_heads, head_dim, angles, rotary_dim),
            self._floats(q_norm, head_dim),
            self._floats(k_norm, head_dim),
            *(eps, add_one),
        )

    def attention(
        self,
        q: Buffer,
        out: Buffer,
        layer: tuple[int, int],
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> None:
        """out = softmax(scale · q · Kᵀ) · V over the pages, causal; a row sees its last `window` positions.

        q, out  act [*, heads · head_dim]; window 0: all positions; softcap c > 0: scores are c · tanh(s / c)
        """
        self._check_heads(heads, kv_heads, head_dim)
        self._expect("attention", q, "act", heads * head_dim)
        self._expect("attention", out, "act", heads * head_dim)
        shape = (heads, kv_heads, head_dim)
        self._add("attention", q.index, self._written(out), *layer, *shape, scale, window, softcap)

    def moe(
        self,
        x: Buffer,
        router: Weight,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        out: Buffer,
        top_k: int,
        normalize: bool,
        activation: str,
    ) -> None:
        """out += the weighted sum of the top_k experts of each row, in ascending order of the expert.

        Weights are the softmax over all experts, divided by their sum over the top_k where `normalize`.
        x act [*, k], router [experts, k], gate_up interleaved as in linear_gated, out fp32.
        """
        self._expect("moe", x, "act", router.k)
        self._expect("moe", out, "fp32", down[0].n)
        if not router.n == len(gate_up) == len(down) or top_k > router.n:
            raise ValueError(
                f"moe: a router over {router.n} experts, {len(gate_up)} gates, {len(down)} downs and top_k "
                f"{top_k} do not fit together."
            )
        for matrices in (gate_up, down):
            if len({weight.is_integers for weight in matrices}) > 1:
                raise ValueError("moe: some experts are integers, others floats: bring them to one form.")
        for weight in (router, gate_up[0]):
            self._operand(x, weight)
        for weight in (router, *gate_up, *down):
            self._weight(weight)
        structs = [(WeightStruct * router.n)(*(w.struct for w in matrices)) for matrices in (gate_up, down)]
        self._add(
            "moe",
            *(x.index, self._weight(router), *structs, self._written(out)),
            *(top_k, normalize, ACTIVATIONS[activation]),
        )

    def add_gated(self, y: Buffer, gate: Buffer, out: Buffer) -> None:
        """out += sigmoid(gate[:, 0]) · y.   All fp32."""
        self._expect("add_gated", y, "fp32", out.width)
        self._expect("add_gated", gate, "fp32")
        self._expect("add_gated", out, "fp32")
        self._add("add_gated", y.index, gate.index, self._written(out))

    def head(
        self,
        x: Buffer,
        norm_weight: Floats,
        weight: Weight,
        eps: float,
        add_one: bool = False,
        bias: Floats | None = None,
        softcap: float = 0.0,
    ) -> None:
        """Final norm, logits of the rows that need them, their tokens.   x fp32 [*, k], weight [vocab, k]"""
        self._expect("head", x, "fp32", weight.k)
        if weight.n < self.vocab:
            raise ValueError(f"head: {weight.n} rows of weight for a vocabulary of {self.vocab}.")
        self._add(
            "head",
            *(x.index, self._floats(norm_weight, x.width), self._weight(weight)),
            *(eps, add_one, self._bias(bias, weight.n), softcap),
        )

    def finish(self) -> None:
        """No operation is added after this."""
        self._finished = True

    def measure(self) -> list[tuple[str, np.ndarray[Any, np.dtype[np.float64]]]]:
        """Each operation's name and the seconds that it takes, added up over the steps from now on."""
        seconds = np.zeros(len(self._operations))
        self._keep(seconds)
        self._c.sw_measure(self._pointer, address(seconds))
        return [(name, seconds[i : i + 1]) for i, name in enumerate(self._operations)]

    def step(
        self, slots: Ints, num_new: Ints, num_drafts: Ints | None = None, masks: Masks | None = None
    ) -> StepResult:
        """Compute num_new tokens of each slot, draw where a slot has caught up, append and advance.

        num_drafts  of these, the most that verify drafts, where the slot has them
        masks       what may be drawn, for requests that may not draw anything
        Raises ValueError where the plan does not fit the slots; nothing has changed then.
        """
        plan = self._plan(slots, num_new, num_drafts, masks)
        rows = self._c.sw_step(self._pointer, ctypes.byref(plan.struct), ctypes.byref(self._output))
        return self._result(len(slots), self._checked(rows, plan))

    def _linear(
        self,
        x: Buffer,
        weight: Weight,
        out: Buffer,
        bias: Floats | None,
        accumulate: bool,
        column: int,
        activation: int,
    ) -> None:
        self._operand(x, weight)
        self._add(
            "linear",
            *(x.index, self._weight(weight), self._written(out)),
            *(self._bias(bias, weight.n), accumulate, column, activation),
        )

    def _adapters(self, x: Buffer, weight: Weight, adapters: Sequence[Adapter | None]) -> None:
        """Of the product that was added last. Raises ValueError for factors that do not fit it."""
        if not adapters:
            return
        structs = (AdapterStruct * len(adapters))()
        for place, adapter in enumerate(adapters):
            if adapter is None:
                continue
            a, b = adapter
            if (a.k, b.n, b.k) != (weight.k, weight.n, a.n) or a.n % 2:
                raise ValueError(
                    f"An adapter of [{a.n}, {a.k}] and [{b.n}, {b.k}] does not fit a weight of [{weight.n}, "
                    f"{weight.k}]: it has [rank, k] and [n, rank], and an even rank."
                )
            for part in adapter:
                self._weight(part)
            structs[place] = AdapterStruct(a.struct, b.struct)
        self._c.sw_add_adapters(self._pointer, x.index, structs, len(adapters))

    def _operand(self, x: Buffer, weight: Weight) -> None:
        """Quantize x, where the weight wants that and no operation before has."""
        if weight.is_integers and x.index not in self._quantized:
            self._check_unfinished("quantize")
            if self._c.sw_add_quantize(self._pointer, x.index):
                self._operations.append("quantize")
            self._quantized.add(x.index)

    def _written(self, out: Buffer) -> int:
        """The buffer that the operation added now changes."""
        self._quantized.discard(out.index)
        return out.index

    def _check_unfinished(self, operation: str) -> None:
        if self._finished:
            raise ValueError(f"{operation}: the program is finished; operations are added before finish().")

    def _add(self, operation: str, *arguments: Any) -> None:
        self._check_unfinished(operation)
        getattr(self._c, f"sw_add_{operation}")(self._pointer, *arguments)
        self._operations.append(operation)

    def _keep(self, value: object) -> None:
        """What the C program points at lives as long as the program."""
        self._kept.append(value)

    def _weight(self, weight: Weight) -> object:
        if not weight.is_integers and weight.dtype != self.dtype:
            raise ValueError(
                f"A weight in {weight.dtype} does not fit a program in {self.dtype}: pack it anew."
            )
        self._keep(weight)
        return ctypes.byref(weight.struct)

    def _floats(self, values: Floats | None, length: int | None = None) -> int | None:
        if values is None:
            return None
        array = floats(values)
        if length is not None and array.shape != (length,):
            raise ValueError(f"A vector of shape {array.shape} stands where {length} values belong.")
        self._keep(array)
        return address(array)

    def _bias(self, bias: Floats | None, n: int) -> int | None:
        """Padded to whole blocks: the kernel reads sixteen at a time."""
        if bias is None:
            return None
        padded = np.zeros((n + 31) // 32 * 32, np.float32)
        padded[:n] = floats(bias)
        return self._floats(padded)

    def _expect(self, operation: str, buffer: Buffer, dtype: str, width: int | None = None) -> None:
        if self.dtype == "bf16" and buffer.dtype != dtype:
            raise ValueError(f"{operation}: the buffer is {buffer.dtype}; it must be {dtype}.")
        if width is not None and buffer.width != width:
            raise ValueError(f"{operation}: the buffer has width {buffer.width}; it must be {width}.")

    def _check_heads(self, heads: int, kv_heads: int, head_dim: int) -> None:
        if heads % kv_heads or head_dim % 8 or not 8 <= head_dim <= 256:
            raise ValueError(
                f"{heads} heads over {kv_heads} key heads of {head_dim}: heads must be a multiple of key "
                "heads, and the head size a multiple of 8 up to 256."
            )
