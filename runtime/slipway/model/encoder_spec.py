"""An encoder as data: what the lowering and the loaders need to know of a model whose rows see both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipway.model.spec import Attention

EncoderActivation = Literal["silu", "gelu", "gelu_tanh", "relu", "tanh"]


@dataclass(frozen=True, slots=True)
class EncoderMlp:
    """down(act(up(x))), or where it is gated down(act(gate(x)) · up(x))."""

    intermediate: int
    activation: EncoderActivation
    gated: bool = False
    bias: bool = True
    """Of gate and up."""
    out_bias: bool = True


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    attention: Attention
    """Its window counts the tokens that a row sees to each side, its own included."""
    mlp: EncoderMlp


@dataclass(frozen=True, slots=True)
class ClassifierSpec:
    """classifier(norm(act(dense(pooled)))): the scores of a sequence, or of a pair of texts.

    labels   outputs of the classifier
    pooling  what is made of the final rows: the first of them, or their mean
    """

    labels: int
    activation: EncoderActivation
    pooling: Literal["cls", "mean"] = "cls"
    dense_bias: bool = True
    norm: bool = False


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Layers that norm after adding (BERT), or before as decoders do, with a last norm (ModernBERT).

    max_position    tokens of the longest request
    positions       rows of the table of absolute positions; 0: there is none, heads are rotated instead
    first_position  the row of a request's first token
    types           rows of the table of token types; 0: there is none
    """

    architecture: str
    hidden: int
    vocab: int
    layers: tuple[EncoderLayer, ...]
    norm_eps: float
    max_position: int
    positions: int = 0
    first_position: int = 0
    types: int = 0
    pre_norm: bool = False
    norm_bias: bool = True
    classifier: ClassifierSpec | None = None
