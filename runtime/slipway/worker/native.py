"""A model that `families/` knows, before its weights, and how it is made to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipway.load.arrays import DType
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.config import Config, texts
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.model.registry import families
from slipway.model.roles import expected_shapes
from slipway.model.shard import Sharded
from slipway.model.spec import Attention, DecoderSpec
from slipway.model.weights import ModelWeights, forms_by_place, load_weights
from slipway.schemes.choice import SchemeChoice, Schemes
from slipway.worker.lower import check_lowered, lower
from slipway.worker.route import HEAD_DIM_UNIT, MAX_HEAD_DIM, NewModel
from slipway_kernels.cpu import PageMemory, Program, Slots, Threads

if TYPE_CHECKING:
    from slipway.worker.device.attention import NewBackend
    from slipway.worker.device.schemes import DeviceSchemes
    from slipway.worker.device.worker import AnyDecoder
    from slipway.worker.plan import ModelPlan


@dataclass(frozen=True, slots=True)
class Native:
    """A model with a specification of its own: a lowered program on CPU, a decoder on a device."""

    spec: DecoderSpec
    config: Config
    conversion: OnTheFly | None

    @property
    def architecture(self) -> str:
        return self.spec.architecture

    @property
    def vocab(self) -> int:
        return self.spec.vocab

    @property
    def attentions(self) -> Sequence[Attention]:
        return [layer.attention for layer in self.spec.layers]

    def without_windows(self) -> Native:
        layers = [replace(layer, attention=replace(layer.attention, window=0)) for layer in self.spec.layers]
        return replace(self, spec=replace(self.spec, layers=tuple(layers)))

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        return list(self._sharded(checkpoint).forms.values())

    def weights(self, plan: ModelPlan, schemes: SchemeChoice) -> ModelWeights:
        """The checkpoint's, or random ones, held as `schemes` says. Raises LoadError."""
        family, checkpoint = families()[self.architecture], plan.checkpoint
        if isinstance(checkpoint, DummyCheckpoint):
            checkpoint.shapes, checkpoint.drawn = expected_shapes(self.spec, family), schemes.drawn
        return load_weights(self.spec, family, checkpoint, schemes, self.conversion, adapters=plan.adapters)

    def layer_bytes(self, checkpoint: Checkpoint, dtype: DType) -> Sequence[int]:
        from slipway.worker.device.offload import layer_bytes  # imports torch

        part = self._sharded(checkpoint)
        return layer_bytes(part.spec, part.forms, dtype)

    def _sharded(self, checkpoint: Checkpoint) -> Sharded:
        forms = forms_by_place(self.spec, families()[self.architecture], checkpoint, self.conversion)
        return Sharded(self.spec, forms)

    def on_cpu(self, plan: ModelPlan, threads: Threads) -> NewModel:
        check_lowered(self.spec)
        weights = self.weights(plan, Schemes(plan.element, threads))

        def model(slots: Slots, pages: PageMemory, max_tokens: int, max_top: int) -> Program:
            program = plan.stepper(Program, threads, slots, pages, max_tokens, max_top)
            lower(self.spec, weights, program, plan.kv.layer_place)
            return program

        return model

    def on_device(self, plan: ModelPlan, schemes: DeviceSchemes, attention: NewBackend) -> AnyDecoder:
        from slipway.worker.device.decoder import Decoder  # imports torch

        weights = self.weights(plan, schemes)
        backend = attention(self.attentions)
        return Decoder(self.spec, weights, backend, plan.max_model_len, schemes.device, schemes.on_host)


def native(config: Config, conversion: OnTheFly | None) -> Native:
    """The route of a model that `families/` knows, whose plain matrices `conversion` quantizes.

    Raises LoadError with UnsupportedModel where its architecture, or a feature that it uses, is not there.
    """
    architecture = next(iter(texts(config, "architectures")), "")
    family = families().get(architecture)
    if family is None:
        raise LoadError(
            "UnsupportedModel",
            f"{architecture or 'A model without architectures in config.json'} has no native code here.",
            hint="Use --model-impl auto or transformers, which run it by transformers' code.",
            argument="model_impl",
        )
    spec = family.spec(config)
    for layer in spec.layers:
        size = layer.attention.head_dim
        if size % HEAD_DIM_UNIT or size > MAX_HEAD_DIM:
            raise LoadError(
                "UnsupportedModel",
                f"{architecture} has heads of {size} numbers, and the attention kernel wants a multiple of "
                f"{HEAD_DIM_UNIT} up to {MAX_HEAD_DIM}.",
                hint="Use --model-impl auto or transformers, which pad smaller heads.",
                argument="model_impl",
            )
    return Native(spec, family.complete(config), conversion)
