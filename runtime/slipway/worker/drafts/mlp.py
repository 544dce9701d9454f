"""The MLP speculator: a state that each head brings on by the token before it (Wertheimer et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slipway.load.config import Config, flag, integer, positive
from slipway.worker.drafts.heads import Head, Parts
from slipway_kernels.cpu import LinkedProgram

if TYPE_CHECKING:
    from torch import Tensor

    from slipway.worker.device.draft_heads import DeviceParts
    from slipway.worker.device.guesser import Guesser

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class MLPSpeculator:
    """state = GELU(norm(W · state + c · E[token]) · w + b), in `inner` numbers; logits are H · state.

    tied  heads share their tensors; the first one's W alone is another, for it reads the target's rows
    """

    hidden: int
    inner: int
    vocab: int
    num_heads: int
    num_trained: int
    tied: bool
    scaled: bool
    """The target's rows are normed first, and divided by √2."""

    @classmethod
    def of(cls, config: Config) -> MLPSpeculator:
        """Of `config.json`. Raises LoadError."""
        trained = positive(config, "n_predict", 3)
        hidden = positive(config, "emb_dim", 4096)
        return cls(
            hidden,
            integer(config, "inner_dim", 0) or hidden,
            positive(config, "vocab_size", 32000),
            positive(config, "num_lookahead_tokens", trained),
            trained,
            flag(config, "tie_weights"),
            flag(config, "scale_input"),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(self.num_heads):
            proj = self._tensor("proj", head)
            shapes[self._tensor("emb", head)] = self.vocab, self.inner
            shapes[self._tensor("head", head)] = self.vocab, self.inner
            shapes[proj] = self.inner, self.inner if head else self.hidden
            for part in ("weight", "bias"):
                shapes[self._tensor("ln", head, part)] = (self.inner,)
        return shapes

    def place(self, name: str) -> str:
        place = name.removeprefix("speculator.")
        kind, _, rest = place.partition(".")
        head, _, part = rest.partition(".")
        if kind not in ("emb", "proj", "head", "ln") or not head.isdecimal():
            return place
        # Of tied tensors a file may have copies, and of heads more than may be used.
        used = int(head) < self.num_heads and place == self._tensor(kind, int(head), part)
        return place if used else ""

    def lower(self, number: int, parts: Parts, program: LinkedProgram) -> Head:
        matrices, vectors = parts.matrices, parts.vectors
        width = self.inner if number else self.hidden
        before, operand = program.buffer(width), program.buffer(width, "act")
        state, normed = program.buffer(self.inner), program.buffer(self.inner)
        given = program.given(before)
        if self.scaled and number == 0:
            program.rms_norm(before, np.full(width, math.sqrt(0.5), np.float32), operand, EPS)
        else:
            program.activate(before, operand)
        program.embed(matrices[self._tensor("emb", number)], state, self._token_weight)
        program.linear(operand, matrices[self._tensor("proj", number)], state, accumulate=True)
        program.rms_norm(state, vectors[self._tensor("ln", number)], normed, EPS)
        program.activate(normed, state, "gelu", vectors[self._tensor("ln", number, "bias")])
        told = program.tap(state)
        program.head(state, None, matrices[self._tensor("head", number)], 0.0)
        program.finish()
        return Head(program, given, told)

    def on_device(self, parts: DeviceParts, told: Sequence[Tensor]) -> Guesser:
        from slipway.worker.device.draft_heads import DeviceSpeculator, StateHead  # imports torch

        heads = [
            StateHead(
                self._tensor("emb", head),
                self._tensor("proj", head),
                self._tensor("ln", head),
                self._tensor("ln", head, "bias"),
                self._tensor("head", head),
            )
            for head in range(self.num_heads)
        ]
        return DeviceSpeculator(
            parts, told, heads, token_weight=self._token_weight, scaled=self.scaled, eps=EPS
        )

    @property
    def _token_weight(self) -> float:
        """Of a token's embedding beside the state: the norm takes care of their common scale."""
        state = math.pow(0.5, 0.5 / self.num_trained)
        return math.sqrt((1 - state**2) * self.inner / 2) / state

    def _tensor(self, kind: str, head: int, part: str = "weight") -> str:
        own = min(head, 1) if kind == "proj" else 0
        return f"{kind}.{own if self.tied else head}.{part}"
