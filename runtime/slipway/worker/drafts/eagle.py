"""EAGLE: layers over each token's embedding beside the target's final row before it (Li et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipway.load.config import Config, positive, table, texts
from slipway.load.errors import LoadError
from slipway.model.registry import family_of
from slipway.model.spec import Attention, DecoderSpec
from slipway.schemes.choice import Schemes
from slipway.worker.drafts.follow import Link, NewLink
from slipway.worker.drafts.layer import DraftLayer, Joint, embed, head, layer_shapes, operands
from slipway.worker.drafts.tensors import Shapes, Tensors
from slipway.worker.route import Model
from slipway_kernels.cpu import LinkedProgram, Weight

if TYPE_CHECKING:
    from slipway.worker.device.draft_layers import Beside
    from slipway.worker.device.guesser import Guesser
    from slipway.worker.device.schemes import DeviceSchemes

EMBEDDING, HEAD = "embed_tokens", "lm_head"
INPUTS = 2
"""The embedding and the row, in this order."""


@dataclass(frozen=True, slots=True)
class Eagle:
    """x = W · [E[token]; row]; then Llama's layers, the first one's input not normed; then the target's head.

    What a layer's stream has come to is the next row, without a norm. The embedding and the head are the
    target's where the checkpoint has none.
    """

    decoder: DecoderSpec

    usual_drafts = 0
    num_links = 1

    @classmethod
    def of(cls, config: Config) -> Eagle:
        """Of `config.json`. Raises LoadError."""
        return cls(llama(config))

    @property
    def names(self) -> Sequence[str]:
        return [f"layers.{number}" for number in range(len(self.decoder.layers))]

    def with_decoder(self, decoder: DecoderSpec) -> Eagle:
        return replace(self, decoder=decoder)

    @property
    def hidden(self) -> int:
        return self.decoder.hidden

    @property
    def vocab(self) -> int:
        return self.decoder.vocab

    @property
    def attentions(self) -> Sequence[Attention]:
        return [layer.attention for layer in self.decoder.layers]

    def taps(self, num_layers: int) -> Sequence[int]:
        return (num_layers,)

    def shapes(self) -> Shapes:
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (self.hidden, INPUTS * self.hidden)}
        for number in range(len(self.decoder.layers)):
            shapes |= layer_shapes(self.decoder, f"layers.{number}")
            if number:
                shapes[f"{_norm(number)}.weight"] = (self.hidden,)
        return shapes

    def optional(self) -> Shapes:
        matrix = self.vocab, self.hidden
        return {f"{EMBEDDING}.weight": matrix, f"{HEAD}.weight": matrix, "fc.bias": (self.hidden,)}

    def place(self, name: str) -> str:
        return "" if name.endswith("rotary_emb.inv_freq") else name.removeprefix("model.")

    def packed(self, tensors: Tensors, schemes: Schemes) -> Sequence[NewLink]:
        decoder = self.decoder
        own = {name: whole(tensors, name, schemes) for name in (EMBEDDING, HEAD)}
        joined = Joint(tensors, ["fc"], schemes, INPUTS)
        layers = [
            DraftLayer.of(decoder, tensors, f"layers.{number}", schemes, 1)
            for number in range(len(decoder.layers))
        ]
        norms = [tensors.vector(_norm(number)) for number in range(1, len(layers))]

        def link(
            program: LinkedProgram, places: Sequence[tuple[int, int]], target: Model, *, first: bool
        ) -> Link:
            row, embedded, x = (program.buffer(self.hidden) for _ in range(3))
            given = program.given(row)
            embed(program, own[EMBEDDING], target, embedded)
            joined.add(program, operands(program, embedded, row), x)
            for number, (layer, place) in enumerate(zip(layers, places, strict=True)):
                (normed,) = operands(program, x) if not number else [program.buffer(self.hidden, "act")]
                if number:
                    program.rms_norm(x, norms[number - 1], normed, decoder.norm_eps)
                layer.add(program, [normed], x, place)
            told = program.tap(x)
            head(program, own[HEAD], target, x, None, 0.0)
            program.finish()
            return Link(program, [given], told)

        return [link]

    def on_device(self, tensors: Tensors, schemes: DeviceSchemes, beside: Beside) -> Guesser:
        from slipway.worker.device.draft_layers import DeviceEagle, DeviceTensors  # imports torch

        return DeviceEagle(self, DeviceTensors(tensors, schemes), beside)


def llama(config: Config) -> DecoderSpec:
    """The layers that a configuration of EAGLE describes, itself or by one within it.

    Raises LoadError where these are not Llama's.
    """
    config = table(config, "model") or table(config, "transformer_layer_config") or config
    named = next(iter(texts(config, "architectures")), "")
    architecture = named.replace("Eagle3", "").replace("Eagle", "") or "LlamaForCausalLM"
    family = family_of("LlamaForCausalLM")
    if architecture != "LlamaForCausalLM" or family is None:
        raise LoadError(
            "UnsupportedModel",
            f"Its layers are those of {named}; of EAGLE's heads those of Llama's form run here.",
            hint="Name a head of Llama's form for this target, or guess by n-grams.",
            argument="speculative_config",
        )
    layers = positive(config, "num_hidden_layers", 1)
    decoder = family.spec({**config, "architectures": [architecture], "num_hidden_layers": layers})
    return replace(decoder, architecture=named or architecture)


def whole(tensors: Tensors, name: str, schemes: Schemes) -> Weight | None:
    """A matrix that need not be there."""
    return tensors.linear([name], schemes).whole if f"{name}.weight" in tensors else None


def _norm(number: int) -> str:
    return f"layers.{number}.input_layernorm"
