"""A decoder as data: what the lowering, the torch reference and the loaders need to know of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh"]

UNNORMED = -1
"""In the place of a layer's number: behind the last one, before the final norm."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding, half-split layout (Su et al. 2021; scaling as in transformers)."""

    theta: float
    rotary_dim: int
    scaling: dict[str, object] = field(default_factory=dict, hash=False)
    """Empty, or `rope_type` with its parameters."""
    max_position: int = 0
    """Trained length, which some scaling types read."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of one layer."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    scale: float
    window: int = 0
    """Tokens a query sees, itself included; 0 sees all."""
    softcap: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each query and key head before the rotation."""
    sinks: bool = False
    """A score of each head that takes its part of the softmax and has no value (Xiao et al. 2023)."""
    alibi: bool = False
    """Scores fall with the distance of their key, by a slope of each head (Press et al. 2022)."""

    @property
    def slopes(self) -> tuple[float, ...]:
        """[heads]  ALiBi's: powers of 2^(-8 / n) for n heads; where n is no power of two those of the power
        below, then every other one of the power above."""
        power = 1 << (self.heads.bit_length() - 1)
        below = tuple(2.0 ** (-8 * (head + 1) / power) for head in range(power))
        return below + tuple(2.0 ** (-8 * (head + 0.5) / power) for head in range(self.heads - power))


@dataclass(frozen=True, slots=True)
class Mlp:
    """Gated feed-forward layer: down(act(gate(x)) · up(x))."""

    intermediate: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Moe:
    """Experts chosen by a softmax router; each is a gated Mlp."""

    experts: int
    top_k: int
    intermediate: int
    activation: Activation
    normalize_top_k: bool
    shared: Mlp | None = None
    """Expert that sees every token, its output scaled by sigmoid(shared_gate(x))."""
    part: range | None = None
    """Of a rank that has some of the experts, which; None: it has all."""

    @property
    def held(self) -> range:
        """The experts that are here, by their numbers in the model."""
        return range(self.experts) if self.part is None else self.part

    @property
    def expert(self) -> Mlp:
        return Mlp(self.intermediate, self.activation)


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    mlp: Mlp | Moe


@dataclass(frozen=True, slots=True)
class Score:
    """A layer on the way from a final row to its scores."""

    scores: int
    columns: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A pre-norm decoder; `sandwich` adds a norm after attention and MLP too (Gemma 2 and 3)."""

    architecture: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    norm_eps: float
    max_position: int
    tied_embedding: bool
    norm_add_one: bool = False
    """The norm's weight is stored as w - 1."""
    sandwich: bool = False
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0
    head_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()
    scores: tuple[Score, ...] = ()
    """Layers that make scores of a final row, ReLU between them; empty: it has none."""
    both_ways: bool = False
    """Rows see those behind them, too, as in decoders that were trained further to embed. A window then
    counts the tokens to each side, the row's own included."""
