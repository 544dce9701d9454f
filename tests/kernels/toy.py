"""A two-layer decoder as a kernel program and as a torch loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from slipway.load.torch_arrays import array
from slipway_kernels.activation.reference import add_gated
from slipway_kernels.attention.reference import attention
from slipway_kernels.cpu import (
    Buffer,
    LowRank,
    Packed,
    PageMemory,
    Piece,
    Program,
    Slots,
    page_bytes,
    together,
)
from slipway_kernels.linear.reference import interleave, linear, linear_gated
from slipway_kernels.lora import reference as lora
from slipway_kernels.moe.reference import moe
from slipway_kernels.rms_norm.reference import rms_norm
from slipway_kernels.rope.reference import angles, rope

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}
ADAPTED = ("qkv", "o", "gate", "up", "down")
EXPERTS = ("gates", "ups", "downs")
GREEDY = SimpleNamespace(
    temperature=0.0, top_p=1.0, min_p=0.0, typical_p=1.0, top_k=0, min_tokens=0,
    presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0,
    num_logprobs=1, num_prompt_logprobs=-1, seed=0,
    logit_bias=(), allowed_token_ids=(), stop_token_ids=(), bad_words=(),
)  # fmt: skip


@dataclass
class Toy:
    dtype: str = "fp32"
    vocab: int = 101
    hidden: int = 72
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 24
    rotary_dim: int = 16
    inner: int = 45
    experts: int = 4
    window: int = 0
    softcap: float = 0.0
    qk_norm: bool = True
    max_len: int = 192
    nan_token: int | None = None
    """Its embedding is NaN, though not in the head."""
    pools: bool = False
    """It tells the final rows of pooled slots."""
    ranks: tuple[int, ...] = ()
    """Of adapters, each of which adds to qkv, o, gate, up and down, and to every expert."""
    weights: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {"embed": (self.vocab, self.hidden), "norm": (self.hidden,)}
        for i in range(2):
            shapes |= {
                f"{i}.norm1": (self.hidden,), f"{i}.norm2": (self.hidden,),
                f"{i}.qkv": (q + 2 * kv, self.hidden), f"{i}.bias": (q + 2 * kv,),
                f"{i}.q_norm": (self.head_dim,), f"{i}.k_norm": (self.head_dim,),
                f"{i}.o": (self.hidden, q), f"{i}.shared": (1, self.hidden),
                f"{i}.gate": (self.inner, self.hidden), f"{i}.up": (self.inner, self.hidden),
                f"{i}.down": (self.hidden, self.inner), f"{i}.router": (self.experts, self.hidden),
                f"{i}.gates": (self.experts, self.inner, self.hidden),
                f"{i}.ups": (self.experts, self.inner, self.hidden),
                f"{i}.downs": (self.experts, self.hidden, self.inner),
            }  # fmt: skip
        for name, shape in shapes.items():
            scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
            value = torch.randn(shape, generator=draw) * scale
            self.weights[name] = value if len(shape) == 1 else value.to(TORCH[self.dtype])
        for number, rank in enumerate(self.ranks):
            for name in (f"{i}.{part}" for i in range(2) for part in ADAPTED):
                n, k = self.weights[name].shape
                self.weights[f"{name}.a{number}"] = torch.randn(rank, k, generator=draw) * k**-0.5
                self.weights[f"{name}.b{number}"] = torch.randn(n, rank, generator=draw) * 0.3
            for name, expert in self.expert_matrices():
                n, k = self.weights[name][expert].shape
                self.weights[f"{name}.{expert}.a{number}"] = torch.randn(rank, k, generator=draw) * k**-0.5
                self.weights[f"{name}.{expert}.b{number}"] = torch.randn(n, rank, generator=draw) * 0.3
        self.angles = angles(self.max_len, self.rotary_dim)

    def expert_matrices(self) -> Iterator[tuple[str, int]]:
        for layer, part, expert in product(range(2), EXPERTS, range(self.experts)):
            yield f"{layer}.{part}", expert

    def merged(self, number: int) -> Toy:
        """The same model with an adapter in its weights."""
        toy = replace(self, ranks=(), weights={})
        for name in (f"{i}.{part}" for i in range(2) for part in ADAPTED):
            a, b = self.weights[f"{name}.a{number}"], self.weights[f"{name}.b{number}"]
            toy.weights[name] = lora.merged(toy.weights[name], a, b).to(TORCH[self.dtype])
        for name, expert in self.expert_matrices():
            a, b = self.weights[f"{name}.{expert}.a{number}"], self.weights[f"{name}.{expert}.b{number}"]
            toy.weights[name][expert] = lora.merged(toy.weights[name][expert], a, b)
        return toy

    def low_rank(self, number: int, names: Sequence[str]) -> LowRank | None:
        """Of one matrix, or of gate and up as they alternate; the second adapter leaves o alone."""
        if number == 1 and names[0].endswith(".o"):
            return None
        factors = [
            [self.weights[f"{name}.{side}{number}"].float().numpy() for side in "ab"] for name in names
        ]
        n = len(factors[0][1])
        rows = np.arange(n, dtype=np.int32)
        if len(names) == 1:
            return together_alone(LowRank(n, self.dtype, [Piece(*factors[0], rows)]))
        place = rows // 16 * 32 + rows % 16
        pieces = [Piece(a, b, place + 16 * at) for at, (a, b) in enumerate(factors)]
        return together_alone(LowRank(-(-n // 16) * 32, self.dtype, pieces))

    def pack(self, name: str, weight: Tensor | None = None) -> Packed:
        weight = self.weights[name] if weight is None else weight
        packed = Packed(len(weight), weight.shape[1], self.dtype)
        packed.load_rows(array(weight))
        return packed

    def pages(self, block_size: int) -> int:
        return page_bytes(2, self.kv_heads, self.head_dim, block_size, self.dtype)

    def program(self, slots: Slots, pool: PageMemory, block_size: int, threads: int) -> Program:
        p = Program(slots, self.max_len, self.dtype, threads, self.vocab, 4, pool, block_size)

        def adapt(x: Buffer, *names: str) -> None:
            """The operation that was added last takes what each adapter adds to these matrices."""
            if not self.ranks:
                return
            n, k = self.weights[names[0]].shape
            n = n if len(names) == 1 else -(-n // 16) * 32
            width = len(names) * -(-max(self.ranks) // 2) * 2
            to = p.adapt(len(self.ranks), width + 15, x, n, k)
            for number in range(len(self.ranks)):
                p.set_adapter(to, number, self.low_rank(number, names))

        def adapt_experts(x: Buffer, layer: int) -> None:
            if not self.ranks:
                return
            width = 2 * -(-max(self.ranks) // 2) * 2 + 15
            products = p.adapt_experts(len(self.ranks), width, x, self.hidden, self.inner, self.experts)
            for expert, (gate_up, down) in enumerate(products):
                gates, ups, downs = (f"{layer}.{part}.{expert}" for part in EXPERTS)
                for number in range(len(self.ranks)):
                    p.set_adapter(gate_up, number, self.low_rank(number, (gates, ups)))
                    p.set_adapter(down, number, self.low_rank(number, (downs,)))

        w = self.weights
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        x, normed = p.buffer(self.hidden), p.buffer(self.hidden, "act")
        qkv, queries, mixed = p.buffer(q + 2 * kv), p.buffer(q, "act"), p.buffer(q, "act")
        hidden, shared, gate = p.buffer(self.inner, "act"), p.buffer(self.hidden), p.buffer(1)
        shape = (self.heads, self.kv_heads, self.head_dim)
        embedding = w["embed"].clone()
        if self.nan_token is not None:
            embedding[self.nan_token] = torch.nan
        p.embed(self.pack("", embedding), x, 2.0)
        for i in range(2):
            p.rms_norm(x, w[f"{i}.norm1"].numpy(), normed, 1e-5)
            p.linear(normed, self.pack(f"{i}.qkv"), qkv, w[f"{i}.bias"].numpy())
            adapt(normed, f"{i}.qkv")
            norms = (w[f"{i}.q_norm"].numpy(), w[f"{i}.k_norm"].numpy()) if self.qk_norm else (None, None)
            p.rope_and_store(qkv, queries, (0, i), *shape, self.angles.numpy(), self.rotary_dim, *norms, 1e-6)
            p.attention(queries, mixed, (0, i), *shape, self.head_dim**-0.5, self.window, self.softcap)
            p.linear(mixed, self.pack(f"{i}.o"), x, accumulate=True)
            adapt(mixed, f"{i}.o")
            p.rms_norm(x, w[f"{i}.norm2"].numpy(), normed, 1e-5, add_one=True)
            gate_up = [
                self.pack("", interleave(*pair)) for pair in zip(w[f"{i}.gates"], w[f"{i}.ups"], strict=True)
            ]
            down = [self.pack("", expert) for expert in w[f"{i}.downs"]]
            p.moe(normed, self.pack(f"{i}.router"), gate_up, down, x, 2, True, "gelu_tanh")
            adapt_experts(normed, i)
            both = self.pack("", interleave(w[f"{i}.gate"], w[f"{i}.up"]))
            p.linear_gated(normed, both, hidden, "silu")
            adapt(normed, f"{i}.gate", f"{i}.up")
            p.linear(hidden, self.pack(f"{i}.down"), shared)
            adapt(hidden, f"{i}.down")
            p.linear(normed, self.pack(f"{i}.shared"), gate)
            p.add_gated(shared, gate, x)
        if self.pools:
            p.hidden(x, w["norm"].numpy(), 1e-5)
        p.head(x, w["norm"].numpy(), self.pack("embed"), 1e-5, softcap=20.0)
        p.finish()
        return p

    def logits(self, tokens: list[int]) -> Tensor:
        """[tokens, vocab] by torch, each operation's result rounded as the program rounds it."""
        logits = linear(self.final(tokens).to(TORCH[self.dtype]), self.weights["embed"])
        return 20.0 * torch.tanh(logits / 20.0)

    def final(self, tokens: list[int]) -> Tensor:
        """[tokens, hidden]  what the last norm makes, in fp32."""
        w, act = self.weights, TORCH[self.dtype]
        x = w["embed"][tokens].float() * 2.0
        rows, kv = len(tokens), self.kv_heads * self.head_dim
        for i in range(2):
            normed = rms_norm(x, w[f"{i}.norm1"], 1e-5).to(act)
            qkv = linear(normed, w[f"{i}.qkv"], w[f"{i}.bias"])
            q, k, v = (
                part.view(rows, -1, self.head_dim) for part in qkv.split((qkv.shape[1] - 2 * kv, kv, kv), 1)
            )
            if self.qk_norm:
                q, k = rms_norm(q, w[f"{i}.q_norm"], 1e-6), rms_norm(k, w[f"{i}.k_norm"], 1e-6)
            q, k = (rope(part, self.angles[:rows]).to(act) for part in (q, k))
            mixed = attention(q, k, v.to(act), self.head_dim**-0.5, self.window, self.softcap)
            x = x + linear(mixed.reshape(rows, -1).to(act), w[f"{i}.o"])
            normed = rms_norm(x, w[f"{i}.norm2"], 1e-5, add_one=True).to(act)
            experts = (w[f"{i}.router"], w[f"{i}.gates"], w[f"{i}.ups"], w[f"{i}.downs"])
            y = linear_gated(normed, w[f"{i}.gate"], w[f"{i}.up"], "silu").to(act)
            x = x + moe(normed, *experts, 2, True, "gelu_tanh")
            x = add_gated(x, linear(y, w[f"{i}.down"]), linear(normed, w[f"{i}.shared"]))
        return rms_norm(x, w["norm"], 1e-5)


def together_alone(adapter: LowRank) -> LowRank:
    """With memory of its own."""
    together([adapter])
    return adapter


class Server:
    """Slots, pages and a program over a toy model."""

    def __init__(self, toy: Toy, block_size: int = 16, threads: int = 1, slots: int = 4) -> None:
        blocks = -(-toy.max_len // block_size)
        self.slots = Slots(slots, toy.max_len, 1, blocks)
        self.pool = PageMemory(slots * blocks, toy.pages(block_size))
        order = np.random.default_rng(3).permutation(slots * blocks).astype(np.int32)
        self.slots.block_table[0] = order.reshape(slots, blocks)
        self.program = toy.program(self.slots, self.pool, block_size, threads)

    def start(self, slot: int, prompt: list[int], params: SimpleNamespace = GREEDY) -> None:
        self.slots.start(slot, prompt)
        self.slots.set_sampling(slot, params)

    def generate(self, slot: int, prompt: list[int], count: int, chunk: int) -> tuple[list[int], list[float]]:
        """Tokens and their log-probabilities, the prompt in chunks."""
        self.start(slot, prompt)
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < count:
            left = int(self.slots.num_tokens[slot] - self.slots.num_computed[slot])
            result = self.program.step(np.array([slot]), np.array([min(left, chunk)]))
            if result.tokens[0]:
                tokens += result.tokens[0]
                logprobs.append(float(result.rows["logprob"][result.requests["first_drawn"][0]]))
        return tokens, logprobs
