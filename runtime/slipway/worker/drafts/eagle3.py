"""EAGLE-3: one layer over each token's embedding beside what several of the target's layers say before it
(Li et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from slipway.load.arrays import Ints
from slipway.load.config import Config, flag, integers, positive, table
from slipway.load.errors import LoadError
from slipway.model.spec import Attention, DecoderSpec
from slipway.schemes.choice import Schemes
from slipway.worker.drafts.eagle import EMBEDDING, HEAD, llama, whole
from slipway.worker.drafts.follow import Link, NewLink
from slipway.worker.drafts.layer import DraftLayer, Joint, embed, layer_shapes, operands
from slipway.worker.drafts.tensors import Shapes, Tensors
from slipway.worker.route import Model
from slipway_kernels.cpu import LinkedProgram

if TYPE_CHECKING:
    from slipway.worker.device.draft_layers import Beside
    from slipway.worker.device.guesser import Guesser
    from slipway.worker.device.schemes import DeviceSchemes

LAYER = "layers.0"
INPUTS = 2
"""The normed embedding and the normed row, in this order."""
TOKENS = "d2t"
"""[draft_vocab]  how far each token of its head is behind its place there"""


@dataclass(frozen=True, slots=True)
class Eagle3:
    """row = W · [the target's rows]; x = row + attention([norm(E[token]); norm(row)]), then a layer's rest.

    What the stream has come to is the next row, which is normed for the head alone. The head has the tokens
    that are common; no other is drafted.

    hidden  of the target's rows, which need not be as wide as its own
    layers  of the target, before which its rows are told; empty: a low, a middle and a high one
    """

    decoder: DecoderSpec
    hidden: int
    draft_vocab: int
    layers: tuple[int, ...]
    norm_before_residual: bool

    usual_drafts = 0
    num_links = 1

    @classmethod
    def of(cls, config: Config) -> Eagle3:
        """Of `config.json`. Raises LoadError."""
        decoder, eagle = llama(config), table(config, "eagle_config")
        if len(decoder.layers) != 1 or not flag(eagle, "use_aux_hidden_state", True):
            asked = f"{len(decoder.layers)} layers" if len(decoder.layers) != 1 else "no rows of inner layers"
            raise LoadError(
                "UnsupportedModel",
                f"It is of {asked}; an EAGLE-3 head has one layer here, over rows of inner layers.",
                hint="Name another head for this target, or guess by n-grams.",
                argument="speculative_config",
            )
        ids = "eagle_aux_hidden_state_layer_ids"
        return cls(
            decoder,
            positive(config, "target_hidden_size", decoder.hidden),
            positive(config, "draft_vocab_size", decoder.vocab),
            tuple(sorted({*(integers(eagle, ids) or integers(config, ids))})),
            flag(config, "norm_before_residual"),
        )

    @property
    def names(self) -> Sequence[str]:
        return (LAYER,)

    def with_decoder(self, decoder: DecoderSpec) -> Eagle3:
        return replace(self, decoder=decoder)

    @property
    def vocab(self) -> int:
        return self.decoder.vocab

    @property
    def attentions(self) -> Sequence[Attention]:
        return [self.decoder.layers[0].attention]

    def taps(self, num_layers: int) -> Sequence[int]:
        found = self.layers or tuple(sorted({2, num_layers // 2, num_layers - 3}))
        if found[0] < 0 or found[-1] >= num_layers or len(found) != self._num_taps:
            raise LoadError(
                "UnsupportedModel",
                f"It goes on from rows before the layers {', '.join(map(str, found))} of a target, and this "
                f"one has {num_layers}: it was trained on another model.",
                hint="Name a head that was trained on this one.",
                argument="speculative_config",
            )
        return found

    def shapes(self) -> Shapes:
        width = self.decoder.hidden
        shapes = layer_shapes(self.decoder, LAYER, INPUTS) | {
            "fc.weight": (width, self._num_taps * self.hidden),
            f"{LAYER}.input_layernorm.weight": (width,),
            f"{LAYER}.hidden_norm.weight": (width,),
            "norm.weight": (width,),
            f"{HEAD}.weight": (self.draft_vocab, width),
        }
        if width != self.hidden:
            shapes[f"{EMBEDDING}.weight"] = self.vocab, width
        if self.draft_vocab != self.vocab:
            shapes[TOKENS] = (self.draft_vocab,)
        return shapes

    def optional(self) -> Shapes:
        width = self.decoder.hidden
        embedding = self.vocab, width
        return {f"{EMBEDDING}.weight": embedding, TOKENS: (self.draft_vocab,), "fc.bias": (width,)}

    def place(self, name: str) -> str:
        if name == "t2d" or name.endswith("rotary_emb.inv_freq"):
            return ""
        return name.removeprefix("model.").replace("midlayer.", f"{LAYER}.")

    def packed(self, tensors: Tensors, schemes: Schemes) -> Sequence[NewLink]:
        decoder, tokens = self.decoder, self._tokens(tensors)
        own, head = whole(tensors, EMBEDDING, schemes), tensors.linear([HEAD], schemes).whole
        joined = Joint(tensors, ["fc"], schemes, self._num_taps)
        layer = DraftLayer.of(decoder, tensors, LAYER, schemes, INPUTS)
        embedding_norm, row_norm, norm = (
            tensors.vector(name) for name in (f"{LAYER}.input_layernorm", f"{LAYER}.hidden_norm", "norm")
        )

        def link(
            program: LinkedProgram, places: Sequence[tuple[int, int]], target: Model, *, first: bool
        ) -> Link:
            embedded, row = program.buffer(decoder.hidden), program.buffer(decoder.hidden)
            rows = [program.buffer(self.hidden) for _ in range(self._num_taps)] if first else [row]
            given = [program.given(one) for one in rows]
            if first:
                joined.add(program, operands(program, *rows), row)
            embed(program, own, target, embedded)
            normed = [program.buffer(decoder.hidden, "act") for _ in range(INPUTS)]
            program.rms_norm(embedded, embedding_norm, normed[0], decoder.norm_eps)
            program.rms_norm(row, row_norm, normed[1], decoder.norm_eps)
            x = row
            if self.norm_before_residual:
                whole_row, x = program.buffer(decoder.hidden), program.buffer(decoder.hidden)
                program.rms_norm(row, row_norm, whole_row, decoder.norm_eps)
                program.activate(whole_row, x)  # what a norm writes is no place for sums
            layer.add(program, normed, x, places[0])
            told = program.tap(x)
            program.head(x, norm, head, decoder.norm_eps, tokens=tokens)
            program.finish()
            return Link(program, given, told)

        return [link]

    def on_device(self, tensors: Tensors, schemes: DeviceSchemes, beside: Beside) -> Guesser:
        from slipway.worker.device.draft_layers import DeviceEagle3, DeviceTensors  # imports torch

        return DeviceEagle3(self, DeviceTensors(tensors, schemes), beside, self._tokens(tensors))

    @property
    def _num_taps(self) -> int:
        return len(self.layers) or 3

    def _tokens(self, tensors: Tensors) -> Ints | None:
        """[draft_vocab]  the token of each row of the head; None: in order."""
        if TOKENS not in tensors:
            return None
        tokens = np.asarray(tensors.arrays[TOKENS]).astype(np.int64) + np.arange(self.draft_vocab)
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            raise LoadError(
                "BadCheckpoint",
                f"{TOKENS} names tokens {tokens.min()} to {tokens.max()}, and there are {self.vocab}.",
                hint="Fetch the head again.",
                argument="speculative_config",
            )
        return tokens.astype(np.int32)
