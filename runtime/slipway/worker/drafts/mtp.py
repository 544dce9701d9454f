"""MTP as MiMo has it: layers for the tokens behind the next, in the target's own checkpoint.

Sources: https://github.com/XiaomiMiMo/MiMo for the layer; vLLM's mimo.py and mimo_mtp.py for the row that it
goes on from, which is the target's before its final norm, and for the embedding of its first row, which is
zeros. Several layers follow each other as those of DeepSeek-V3 do (DeepSeek-AI 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipway.load.config import Config, integer, texts
from slipway.load.errors import LoadError
from slipway.model.registry import family_of
from slipway.model.spec import UNNORMED, Attention, DecoderSpec
from slipway.schemes.choice import Schemes
from slipway.worker.drafts.follow import Link, NewLink
from slipway.worker.drafts.layer import FIRST_ROW, DraftLayer, Joint, embed, head, layer_shapes
from slipway.worker.drafts.tensors import Shapes, Tensors
from slipway.worker.route import Model
from slipway_kernels.cpu import LinkedProgram

if TYPE_CHECKING:
    from slipway.worker.device.draft_layers import Beside
    from slipway.worker.device.guesser import Guesser
    from slipway.worker.device.schemes import DeviceSchemes

ARCHITECTURES = ("MiMoForCausalLM",)
INPUTS = 2
"""The normed row and the normed embedding, in this order."""
NORMS = ("hidden_layernorm", "token_layernorm", "input_layernorm", "final_layernorm")


@dataclass(frozen=True, slots=True)
class Mtp:
    """x = W · [norm(row); norm(E[token])], a layer of the target's form, a norm, and the target's head.

    What is normed for the head is the next row, and what the next layer goes on from.
    """

    decoder: DecoderSpec
    num_links: int

    @classmethod
    def of(cls, config: Config) -> Mtp:
        """Of the `config.json` of a model that has such layers. Raises LoadError."""
        architecture = next(iter(texts(config, "architectures")), "")
        family = family_of(architecture)
        if architecture not in ARCHITECTURES or family is None:
            raise _none(
                f"{architecture or 'A model without architectures in config.json'} has no MTP layers that "
                f"run here; those of {', '.join(ARCHITECTURES)} do."
            )
        number = integer(config, "num_nextn_predict_layers", 0)
        if number < 1:
            raise _none(
                f"config.json of this {architecture} has num_nextn_predict_layers {number}: there are no MTP "
                "layers that could guess."
            )
        return cls(family.spec(config), number)

    @property
    def names(self) -> Sequence[str]:
        """[link]  how the names of its tensors begin"""
        return [f"mtp_layers.{number}" for number in range(self.num_links)]

    def with_decoder(self, decoder: DecoderSpec) -> Mtp:
        return replace(self, decoder=decoder)

    @property
    def usual_drafts(self) -> int:
        return self.num_links

    @property
    def hidden(self) -> int:
        return self.decoder.hidden

    @property
    def vocab(self) -> int:
        return self.decoder.vocab

    @property
    def attentions(self) -> Sequence[Attention]:
        return [self.decoder.layers[0].attention] * self.num_links

    def taps(self, num_layers: int) -> Sequence[int]:
        return (UNNORMED,)

    def shapes(self) -> Shapes:
        shapes: dict[str, tuple[int, ...]] = {}
        for name in self.names:
            shapes |= layer_shapes(self.decoder, name)
            shapes |= {f"{name}.{norm}.weight": (self.hidden,) for norm in NORMS}
            shapes[f"{name}.input_proj.weight"] = self.hidden, INPUTS * self.hidden
        return shapes

    def optional(self) -> Shapes:
        return {}

    def place(self, name: str) -> str:
        place = name.removeprefix("model.")
        return place if place.startswith("mtp_layers.") and not place.endswith("rotary_emb.inv_freq") else ""

    def on_device(self, tensors: Tensors, schemes: DeviceSchemes, beside: Beside) -> Guesser:
        from slipway.worker.device.draft_layers import DeviceMtp, DeviceTensors  # imports torch

        return DeviceMtp(self, DeviceTensors(tensors, schemes), beside)

    def packed(self, tensors: Tensors, schemes: Schemes) -> Sequence[NewLink]:
        return [self._packed(tensors, schemes, number) for number in range(self.num_links)]

    def _packed(self, tensors: Tensors, schemes: Schemes, number: int) -> NewLink:
        decoder, name = self.decoder, self.names[number]
        joined = Joint(tensors, [f"{name}.input_proj"], schemes, INPUTS)
        layer = DraftLayer.of(decoder, tensors, name, schemes, 1)
        row_norm, token_norm, norm, final = (tensors.vector(f"{name}.{one}") for one in NORMS)
        first_row = FIRST_ROW + number

        def link(
            program: LinkedProgram, places: Sequence[tuple[int, int]], target: Model, *, first: bool
        ) -> Link:
            row, embedded, x = (program.buffer(self.hidden) for _ in range(3))
            normed_row, normed_token, normed = (program.buffer(self.hidden, "act") for _ in range(3))
            given = program.given(row)
            embed(program, None, target, embedded)
            program.rms_norm(row, row_norm, normed_row, decoder.norm_eps)
            program.rms_norm(embedded, token_norm, normed_token, decoder.norm_eps)
            joined.add(program, [normed_row, normed_token], x)
            program.rms_norm(x, norm, normed, decoder.norm_eps)
            layer.add(program, [normed], x, places[number], first_row)
            told = program.tap(x, final, decoder.norm_eps)
            head(program, None, target, x, final, decoder.norm_eps)
            program.finish()
            return Link(program, [given], told, blank=first_row + 1)

        return link


def _none(message: str) -> LoadError:
    return LoadError(
        "UnsupportedModel",
        message,
        hint="Leave --speculative-config out, or guess by n-grams (method ngram) or a draft model "
        "(method draft_model).",
        argument="speculative_config",
    )
