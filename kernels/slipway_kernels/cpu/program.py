"""A model as a list of operations over fixed buffers, run by one C call a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from slipway_kernels.cpu.adapters import LowRank
from slipway_kernels.cpu.binding import (
    ACTIVATIONS,
    DTYPES,
    Floats,
    Ints,
    Masks,
    WeightStruct,
    address,
    floats,
)
from slipway_kernels.cpu.extension import Extension
from slipway_kernels.cpu.ranks import USED_UP, Ranks
from slipway_kernels.cpu.step import Edits, Stepper, StepResult
from slipway_kernels.cpu.weights import Weight

Shared = Literal["whole", "dealt", "added up"]
"""What a rank has of A · x: all of it; some columns, which go to ranks in turn; or a part of its sum."""
SHARED: dict[Shared, int] = {"whole": 0, "dealt": 1, "added up": 2}


@dataclass(frozen=True, slots=True)
class Buffer:
    """[max_tokens, width] between operations: fp32, or "act", which is the program's dtype."""

    index: int
    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Adaptable:
    """A product to which adapters add: `Program.adapt` has the rest.

    part     as width, of what a rank makes
    product  of an operation that has several: of `moe` gate and up are 0, and down is 1
    expert   of `experts`, each of which has such a product
    """

    operation: int
    width: int
    part: int
    n: int
    k: int
    product: int = 0
    expert: int = 0
    experts: int = 1


class Program(Stepper):
    """Built once by adding operations in the order of computation, then run step by step.

    The residual stream and all sums are fp32; what enters a product ("act" buffers), the weights and the KV
    cache are of the program's dtype. Weights may also be integers: what enters their products is quantized to
    16 bits before. No result depends on what else is in the step.
    """

    _finished = False
    ranks: Ranks | None = None
    """With whom it computes."""
    _places = 0
    _part = 0
    """Columns of A · x that ranks share."""
    _most_added: int | None = None
    """Tokens that an adapter may add; None: adapters have nothing of their own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._operations: list[str] = []
        self._adapters: dict[tuple[Adaptable, int], LowRank | None] = {}
        """By product and place: what the C program points at."""
        self._extensions: dict[int, Extension | None] = {}
        """By place: the same."""
        self.embedding: Weight | None = None
        """The table of its last `embed`."""
        self.tokens_from: Sequence[int] | None = None
        """Of which tokens each rank has that table's rows; None: all."""
        self.output: Weight | None = None
        """What its `head` multiplies rows by."""
        self._quantized: set[int] = set()  # buffers whose codes are those of their rows

    def buffer(self, width: int, dtype: str = "fp32") -> Buffer:
        if dtype not in ("fp32", "act"):
            raise ValueError(f"A buffer is fp32 or act, not {dtype}.")
        element = self.dtype if dtype == "act" else "fp32"
        index = self._c.sw_buffer(self._pointer, width, DTYPES[element])
        return Buffer(index, width, dtype)

    def join(self, ranks: Ranks) -> None:
        """Compute this rank's part, beside the programs of the others; before any operation."""
        self.ranks = ranks
        self._keep(ranks)
        self._c.sw_join(self._pointer, ranks.pointer)

    def buffer_of_ranks(self, width: int) -> Buffer:
        """fp32 rows of which each rank has its own, in the memory of all."""
        index = self._c.sw_buffer_of_ranks(self._pointer, width)
        if index < 0:
            raise MemoryError(USED_UP)
        return Buffer(index, width, "fp32")

    def from_ranks(self, x: Buffer, out: Buffer, *, accumulate: bool = False) -> None:
        """out = (or +=) what the ranks have in x, added up in their order.   All fp32

        Nobody may write x again before all have met behind another buffer: two serve by turns.
        """
        self._expect("from_ranks", x, "fp32", out.width)
        self._expect("from_ranks", out, "fp32")
        self._add("from_ranks", x.index, self._written(out), accumulate)

    def embed(
        self, table: Weight, out: Buffer, scale: float = 1.0, tokens_from: Sequence[int] | None = None
    ) -> None:
        """out = table[token] · scale.   out fp32 [*, k]

        tokens_from  [ranks + 1]  which tokens' rows each rank has; of others it makes zeros. The first rank
                     has those that are in no table.
        """
        self._expect("embed", out, "fp32", table.k)
        self._add("embed", self._weight(table), self._written(out), scale)
        if tokens_from is not None:
            assert self.ranks is not None, "only ranks part a table"
            self._c.sw_shard_embed(self._pointer, tokens_from[self.ranks.rank], tokens_from[-1])
        self.embedding, self.tokens_from = table, tokens_from

    def given(self, out: Buffer) -> Floats:
        """out = the rows of an array [max_tokens, width], which the caller fills before a step.   out fp32"""
        self._expect("given", out, "fp32")
        rows = np.zeros((self.max_tokens, out.width), np.float32)
        self._keep(rows)
        self.taken.append(rows)
        self._add("given", address(rows), self._written(out))
        return rows

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
    ) -> None:
        """out[:, column : column + n] = (or +=) x · Wᵀ + bias.   x act [*, k]; out fp32 where accumulated

        x is shared by all products that read it: what integers want, its codes, are made once, by the norm
        that writes it or by an operation before the first of them.
        """
        self._expect("linear", x, "act", weight.k)
        self._expect("linear", out, "fp32" if accumulate else out.dtype)
        if column + weight.n > out.width:
            raise ValueError(
                f"linear: columns {column} to {column + weight.n} do not fit a buffer of width {out.width}."
            )
        self._linear(x, weight, out, bias, accumulate, column)

    def linear_gated(
        self,
        x: Buffer,
        weight: Weight,
        out: Buffer,
        activation: str,
        bias: Floats | None = None,
    ) -> None:
        """out = activation(gate) · up; W's rows are 16 of the gate, 16 of up, and so on.   x act, out act"""
        self._expect("linear_gated", x, "act", weight.k)
        if (weight.n + 31) // 32 * 16 < out.width:
            raise ValueError(f"linear_gated: {weight.n} rows of gate and up do not give {out.width} columns.")
        self._linear(x, weight, out, bias, gate=ACTIVATIONS[activation])

    def gate(self, x: Buffer, out: Buffer, activation: str) -> None:
        """out = activation(gate) · up; a row of x is the gate's numbers, then up's.   x fp32, out act"""
        self._expect("gate", x, "fp32", 2 * out.width)
        self._expect("gate", out, "act")
        self._add("gate", x.index, ACTIVATIONS[activation], self._written(out))

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
        rotations: Sequence[Floats] = (),
    ) -> None:
        """Norm and rotate the heads of qkv; queries go to q_out, keys and values to their pages.

        qkv      fp32 [*, (heads + 2 · kv_heads) · head_dim]
        q_out    act [*, heads · head_dim]
        layer    (group, index within the group)
        cos_sin  [max_len, rotary_dim / 2, 2], pairs are (i, i + rotary_dim / 2); None: no rotation
        rotations  tables like it, which adapters may have instead (`set_extension`)
        """
        self._check_heads(heads, kv_heads, head_dim)
        self._expect("rope_and_store", qkv, "fp32", (heads + 2 * kv_heads) * head_dim)
        self._expect("rope_and_store", q_out, "act", heads * head_dim)
        angles = None if cos_sin is None else self._angles(cos_sin, rotary_dim)
        self._add(
            "rope_and_store",
            *(qkv.index, self._written(q_out), *layer, heads, kv_heads, head_dim, angles, rotary_dim),
            self._floats(q_norm, head_dim),
            self._floats(k_norm, head_dim),
            *(eps, add_one),
        )
        for table in rotations if angles else ():
            self._c.sw_add_rotation(self._pointer, self._angles(table, rotary_dim))

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
        first: int = 0,
    ) -> None:
        """out = softmax(scale · q · Kᵀ) · V over the pages, causal; a row sees its last `window` positions.

        q, out  act [*, heads · head_dim]; window 0: all positions; softcap c > 0: scores are c · tanh(s / c)
        first   positions before this one are seen by their own rows alone
        """
        self._check_heads(heads, kv_heads, head_dim)
        self._expect("attention", q, "act", heads * head_dim)
        self._expect("attention", out, "act", heads * head_dim)
        shape = (heads, kv_heads, head_dim)
        self._add("attention", q.index, self._written(out), *layer, *shape, scale, window, softcap, first)

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
        *,
        first: int = 0,
        accumulate: bool = True,
    ) -> None:
        """out = (or +=) the weighted sum of the top_k experts of each row, in ascending order of the expert.

        Weights are the softmax over all experts, divided by their sum over the top_k where `normalize`.
        x act [*, k], router [experts, k], gate_up interleaved as in linear_gated, out fp32.
        first  of the experts whose matrices are given, its number among all; those of others give nothing
        """
        self._expect("moe", x, "act", router.k)
        self._expect("moe", out, "fp32", down[0].n)
        held = range(first, first + len(gate_up))
        if len(gate_up) != len(down) or first < 0 or held.stop > router.n or top_k > router.n:
            raise ValueError(
                f"moe: a router over {router.n} experts, {len(gate_up)} gates, {len(down)} downs from expert "
                f"{first} on and top_k {top_k} do not fit together."
            )
        for matrices in (gate_up, down):
            if len({weight.is_integers for weight in matrices}) > 1:
                raise ValueError("moe: some experts are integers, others floats: bring them to one form.")
        for weight in (router, gate_up[0]):
            self._operand(x, weight)
        for weight in (router, *gate_up, *down):
            self._weight(weight)
        structs = [(WeightStruct * len(held))(*(w.struct for w in matrices)) for matrices in (gate_up, down)]
        self._add(
            "moe",
            *(x.index, self._weight(router), *structs, first, len(held), self._written(out)),
            *(top_k, normalize, ACTIVATIONS[activation], accumulate),
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
        norm_weight: Floats | None,
        weight: Weight,
        eps: float,
        add_one: bool = False,
        bias: Floats | None = None,
        softcap: float = 0.0,
        tokens: Ints | None = None,
        tokens_from: Sequence[int] | None = None,
    ) -> None:
        """Final norm, if any, logits of rows that want them, tokens.   x fp32 [*, k], weight [vocab, k]

        tokens  [n] of each row of the weight, where it has not all; no other can be drawn
        tokens_from  [ranks + 1]  which tokens' rows of the weight each rank has; None: all. The first rank
                     draws for all.
        """
        self._expect("head", x, "fp32", weight.k)
        if tokens is None and tokens_from is None and weight.n < self.vocab:
            raise ValueError(f"head: {weight.n} rows of weight for a vocabulary of {self.vocab}.")
        self._add(
            "head",
            *(x.index, self._floats(norm_weight, x.width), self._weight(weight)),
            *(eps, add_one, self._bias(bias, weight.n), softcap, self._tokens(tokens, weight.n)),
        )
        if self.ranks is not None:
            parts = None if tokens_from is None else np.array(tokens_from, np.int32)
            if not self._c.sw_share_head(self._pointer, None if parts is None else address(parts)):
                raise MemoryError(USED_UP)
        self.output = weight

    def tap(
        self, x: Buffer, norm_weight: Floats | None = None, eps: float = 0.0, add_one: bool = False
    ) -> Floats:
        """An array [max_tokens, width] of x's rows after a step, normed where there is a weight.   x fp32"""
        self._expect("tap", x, "fp32")
        rows = np.zeros((self.max_tokens, x.width), np.float32)
        self._keep(rows)
        self.told.append(rows)
        self._add("tap", x.index, self._floats(norm_weight, x.width), eps, add_one, address(rows))
        return rows

    def hidden(self, x: Buffer, norm_weight: Floats | None, eps: float = 0.0, add_one: bool = False) -> None:
        """The rows of pooled slots, normed where there is a weight, as `StepResult.hidden`.   x fp32 [*, k]

        Rows of other slots cost nothing.
        """
        self._expect("hidden", x, "fp32")
        self._hidden = np.zeros((self.max_tokens, x.width), np.float32)
        self._output.hidden = address(self._hidden)
        self._add("hidden", x.index, self._floats(norm_weight, x.width), eps, add_one)

    def share_adapters(self, part: int) -> None:
        """Let ranks share A · x of products, of which each makes so many columns at most.

        Raises MemoryError where the memory of the ranks is used up.
        """
        self._check_unfinished("share_adapters")
        if not self._c.sw_share_adapters(self._pointer, part):
            raise MemoryError(USED_UP)
        self._part = part

    def adapt(
        self, places: int, width: int, x: Buffer, n: int, k: int, shared: Shared = "whole", part: int = 0
    ) -> Adaptable:
        """Let adapters in so many places add to the operation that was added last: embed, linear or head.

        What is added to a product joins it before anything else: gate and up are computed apart for that, to
        the same bits, in a step in which any slot asks for an adapter. An operation's name and its own bits
        stay what they are without.
        width  most columns of A · x
        x      its input; of an embedding or a head what it writes or norms
        n, k   numbers of a row of its output, and of its input; of an embedding k is 0
        shared, part  of a product whose A · x ranks share: what a rank has of it before all meet, and the
                      most columns of that
        """
        self._check_unfinished("adapt")
        if places < 1 or self._places not in (0, places):
            raise ValueError(f"adapt: {places} places where the program has {self._places}.")
        if part > self._part or (part == 0) != (shared == "whole"):
            raise ValueError(f"adapt: {part} columns of A · x, {shared}, where ranks share {self._part}.")
        self._places = places
        index = self._c.sw_adapt(self._pointer, x.index, places, width, SHARED[shared], part)
        return Adaptable(index, width, part or width, n, k)

    def adapt_experts(
        self, places: int, width: int, x: Buffer, hidden: int, inner: int, experts: int
    ) -> list[tuple[Adaptable, Adaptable]]:
        """As `adapt`, of the `moe` that was added last: gate and up as one product, and down, of each expert.

        hidden, inner  numbers of a row of x, and of gate and up as they alternate
        """
        gate_up = self.adapt(places, width, x, -(-inner // 16) * 32, hidden)
        down = replace(gate_up, n=hidden, k=inner, product=1)
        return [
            (
                replace(gate_up, expert=expert, experts=experts),
                replace(down, expert=expert, experts=experts),
            )
            for expert in range(experts)
        ]

    def set_adapter(self, to: Adaptable, place: int, adapter: LowRank | None) -> None:
        """Between steps: what the slots that have `place` as their adapter get added there.

        Raises ValueError for one that does not fit, or that has not been given memory by `together`.
        """
        if not 0 <= place < self._places:
            raise ValueError(f"set_adapter: there are {self._places} places, and no place {place}.")
        if adapter is not None and (adapter.n, adapter.k or to.k) != (to.n, to.k):
            raise ValueError(
                f"An adapter of [{adapter.n}, {adapter.k}] does not fit a product of [{to.n}, {to.k}]."
            )
        columns = () if adapter is None else ((adapter.width, to.width), (adapter.part, to.part))
        for found, room in columns:
            if found > room:
                raise ValueError(
                    f"An adapter has {found} columns, where there is room for {room}: raise the rank."
                )
        struct = None if adapter is None else ctypes.byref(adapter.placed)
        at = place * to.experts + to.expert
        self._c.sw_set_adapter(self._pointer, to.operation, to.product, at, struct)
        self._adapters[to, place] = adapter

    def extend(self, places: int, most: int) -> None:
        """Let adapters in so many places have rows and a rotation of their own, and add up to `most` tokens.

        It goes before all operations, adds none and changes none.
        """
        if self._operations:
            raise ValueError("extend: operations have been added; the room for logits comes before them.")
        self._most_added = most
        self._c.sw_extend(self._pointer, places, most)

    def set_extension(self, place: int, extension: Extension | None) -> None:
        """Between steps: what the slots that have `place` as their adapter have of their own.

        Their rows of logits are as wide as the vocabulary with what it adds; masks and edited rows stay as
        wide as the model's, and so nothing that is added can be drawn with them.
        Raises ValueError for one that does not fit.
        """
        most = self._most_added
        if most is None or not 0 <= place < self._places:
            raise ValueError(f"set_extension: there is no place {place} for rows of an adapter's own.")
        if extension is not None and (extension.vocab != self.vocab or extension.added > most):
            raise ValueError(
                f"An adapter adds {extension.added} tokens to {extension.vocab}; there are {self.vocab}, "
                f"and room for {most}."
            )
        struct = None if extension is None else ctypes.byref(extension.struct)
        self._c.sw_set_extension(self._pointer, place, struct)
        self._extensions[place] = extension

    def draw_elsewhere(self) -> None:
        """Draw nothing: the caller enters in each slot what was drawn before its next step."""
        self._check_unfinished("draw_elsewhere")
        self._c.sw_draw_elsewhere(self._pointer)

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
        self,
        slots: Ints,
        num_new: Ints,
        num_drafts: Ints | None = None,
        masks: Masks | None = None,
        edits: Edits | None = None,
    ) -> StepResult:
        """Compute num_new tokens of each slot, draw where a slot has caught up, append and advance.

        num_drafts  of these, the most that verify drafts, where the slot has them
        masks       what may be drawn, for requests that may not draw anything
        edits       what changes logits before they are drawn from; those that are reported stay the model's
        Raises ValueError where the plan does not fit the slots; nothing has changed then.
        """
        plan = self._plan(slots, num_new, num_drafts, masks, edits)
        rows = self._c.sw_step(self._pointer, ctypes.byref(plan.struct), ctypes.byref(self._output))
        return self._result(len(slots), self._checked(rows, plan))

    def _linear(
        self,
        x: Buffer,
        weight: Weight,
        out: Buffer,
        bias: Floats | None,
        accumulate: bool = False,
        column: int = 0,
        gate: int = 0,
        pointwise: int = 0,
    ) -> None:
        self._operand(x, weight)
        self._add(
            "linear",
            *(x.index, self._weight(weight), self._written(out)),
            *(self._bias(bias, weight.n), accumulate, column, gate, pointwise),
        )

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

    @property
    def weight_bytes(self) -> int:
        """Of the matrices that it reads, each counted once."""
        return sum({id(one): one.nbytes for one in self._kept if isinstance(one, Weight)}.values())

    def _weight(self, weight: Weight) -> object:
        if not weight.is_integers and weight.element != self.dtype:
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

    def _angles(self, table: Floats, rotary_dim: int) -> int | None:
        if table.shape[0] < self.slots.max_len or table.shape[1:] != (rotary_dim // 2, 2):
            raise ValueError(
                f"rope_and_store: angles of shape {tuple(table.shape)}; they must be "
                f"[at least {self.slots.max_len}, {rotary_dim // 2}, 2]."
            )
        return self._floats(table)

    def _bias(self, bias: Floats | None, n: int) -> int | None:
        """Padded to whole blocks: the kernel reads sixteen at a time."""
        if bias is None:
            return None
        padded = np.zeros((n + 31) // 32 * 32, np.float32)
        padded[:n] = floats(bias)
        return self._floats(padded)

    def _tokens(self, tokens: Ints | None, n: int) -> int | None:
        if tokens is None:
            return None
        array = np.ascontiguousarray(tokens, np.int32)
        if array.shape != (n,) or (n and not 0 <= array.min() <= array.max() < self.vocab):
            raise ValueError(
                f"head: {array.shape} tokens for {n} rows of weight: give one of the {self.vocab} for each."
            )
        self._keep(array)
        return address(array)

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
