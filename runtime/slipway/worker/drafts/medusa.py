"""Medusa: heads of residual blocks, each with an output matrix of its own (Cai et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.load.config import Config, flag, integer, positive
from slipway.worker.drafts.heads import Head, Parts
from slipway_kernels.cpu import LinkedProgram

if TYPE_CHECKING:
    from torch import Tensor

    from slipway.worker.device.draft_heads import DeviceParts
    from slipway.worker.device.guesser import Guesser


@dataclass(frozen=True, slots=True)
class Medusa:
    """x += SiLU(W · x + b), so many times; logits are those of the head's own matrix, or of one for all."""

    hidden: int
    vocab: int
    num_heads: int
    num_layers: int
    bias: bool
    one_matrix: bool

    @classmethod
    def of(cls, config: Config) -> Medusa:
        """Of `config.json`. Raises LoadError."""
        vocab = positive(config, "vocab_size", 32001)
        return cls(
            positive(config, "hidden_size", 4096),
            min(vocab, integer(config, "truncated_vocab_size", vocab)),
            positive(config, "num_heads", 5),
            positive(config, "num_hidden_layers", 1),
            flag(config, "medusa_fc_bias"),
            flag(config, "original_lm_head"),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(self.num_heads):
            for layer in range(self.num_layers):
                shapes[f"blocks.{head}.layers.{layer}.weight"] = self.hidden, self.hidden
                if self.bias:
                    shapes[f"blocks.{head}.layers.{layer}.bias"] = (self.hidden,)
            shapes[self._matrix(head)] = self.vocab, self.hidden
        return shapes

    def place(self, name: str) -> str:
        place = name.removeprefix("medusa_heads.")
        if self.one_matrix and place.startswith("lm_head"):
            return self._matrix(0) if place in ("lm_head.weight", "lm_heads.0.weight") else ""
        return place

    def lower(self, number: int, parts: Parts, program: LinkedProgram) -> Head:
        x, branch = program.buffer(self.hidden), program.buffer(self.hidden)
        operand = program.buffer(self.hidden, "act")
        given = program.given(x)
        for layer in range(self.num_layers):
            name = f"blocks.{number}.layers.{layer}"
            program.activate(x, operand)
            program.linear(operand, parts.matrices[f"{name}.weight"], branch)
            program.activate(branch, x, "silu", parts.vectors.get(f"{name}.bias"), accumulate=True)
        program.head(x, None, parts.matrices[self._matrix(number)], 0.0)
        program.finish()
        return Head(program, given, given)  # all heads go on from the same

    def on_device(self, parts: DeviceParts, told: Sequence[Tensor]) -> Guesser:
        from slipway.worker.device.draft_heads import DeviceMedusa  # imports torch

        heads, layers = range(self.num_heads), range(self.num_layers)
        blocks = [[f"blocks.{head}.layers.{layer}" for layer in layers] for head in heads]
        return DeviceMedusa(parts, told, blocks, [*map(self._matrix, heads)])

    def _matrix(self, head: int) -> str:
        return "lm_head.weight" if self.one_matrix else f"lm_heads.{head}.weight"
