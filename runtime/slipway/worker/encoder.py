"""An encoder that `families/` knows, before its weights, and how it is made to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from slipway.load.arrays import DType
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.config import Config, integer
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.model.encoder_registry import EncoderFamily, encoders
from slipway.model.encoder_spec import EncoderSpec
from slipway.model.encoder_weights import EncoderWeights, encoder_entries, encoder_forms, load_encoder
from slipway.model.shard import Shard
from slipway.model.spec import Attention
from slipway.schemes.choice import SchemeChoice, Schemes
from slipway.worker.heads import Classifier
from slipway.worker.lower_encoder import lower_encoder
from slipway.worker.pool import DenseLayer
from slipway.worker.route import NewModel, check_heads, one_rank, one_stage
from slipway_kernels.cpu import EncoderProgram, PageMemory, Ranks, Slots, Threads

if TYPE_CHECKING:
    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.attention import NewBackend
    from slipway.worker.device.schemes import DeviceSchemes
    from slipway.worker.plan import ModelPlan


@dataclass(frozen=True, slots=True)
class Encoder:
    """A lowered program on CPU, kernel after kernel on a device.

    No layer keeps keys and values: requests hold no pages of the KV cache.
    """

    encoder: EncoderSpec
    conversion: OnTheFly | None
    native = True
    chunk = 0
    spec = stage = None

    @property
    def attentions(self) -> Sequence[Attention]:
        """None that keeps anything."""
        return ()

    @property
    def config(self) -> Config:
        """As far as it bounds a request: some tables of positions have rows that no token takes, and a model
        may have been trained with shorter texts than they hold."""
        return {"max_position_embeddings": self.encoder.max_position}

    @property
    def architecture(self) -> str:
        return self.encoder.architecture

    @property
    def vocab(self) -> int:
        return self.encoder.vocab

    @property
    def _family(self) -> EncoderFamily:
        return encoders()[self.architecture]

    def without_windows(self) -> Encoder:
        """Itself: its windows are how the model was trained, and keep nothing."""
        return self

    def on_rank(self, checkpoint: Checkpoint, shard: Shard, dtype: DType) -> Encoder:
        one_rank(self.architecture, "an encoder", shard)
        return self

    def on_stage(self, number: int, count: int, partition: Sequence[int], *, embeds: bool) -> Encoder:
        raise one_stage(self.architecture, "an encoder", count)

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        return list(encoder_forms(self.encoder, self._family, checkpoint, self.conversion).values())

    def layer_bytes(self, checkpoint: Checkpoint, dtype: DType) -> Sequence[int]:
        return ()

    def on_cpu(self, plan: ModelPlan, threads: Threads, ranks: Ranks | None = None) -> NewModel:
        self._check_positions(plan.max_model_len)
        weights = self._weights(plan, Schemes(plan.element, threads))
        assert plan.pooler is not None, "an encoder is planned for nothing but pooling"
        own = [Classifier(self.encoder, weights.arrays, threads)] if self.encoder.classifier else []
        plan.pooler.read(self.encoder.hidden, own, partial(DenseLayer, threads=threads))

        def model(
            slots: Slots, pages: PageMemory, max_tokens: int, max_top: int
        ) -> tuple[EncoderProgram, None]:
            program = plan.stepper(EncoderProgram, threads, slots, pages, max_tokens, max_top)
            lower_encoder(self.encoder, weights, program)
            return program, None

        return model

    def _check_positions(self, length: int) -> None:
        """Raises LoadError where a request may be longer than the table of positions."""
        positions = self.encoder.positions - self.encoder.first_position
        if self.encoder.positions and length > positions:
            raise LoadError(
                "BadArguments",
                f"--max-model-len {length}, and {self.architecture} has {positions} positions: it cannot "
                "read longer texts, whatever VLLM_ALLOW_LONG_MAX_MODEL_LEN permits.",
                hint=f"Set {positions} or less.",
                argument="max_model_len",
            )

    def on_device(self, plan: ModelPlan, schemes: DeviceSchemes, attention: NewBackend) -> AnyDecoder:
        from slipway.worker.device.encoder import DeviceEncoder  # imports torch
        from slipway.worker.device.heads import ClassifierOnDevice, DenseOnDevice

        self._check_positions(plan.max_model_len)
        weights, device = self._weights(plan, schemes), schemes.device
        assert plan.pooler is not None, "an encoder is planned for nothing but pooling"
        own = [ClassifierOnDevice(self.encoder, weights.arrays, device)] if self.encoder.classifier else []
        plan.pooler.read(self.encoder.hidden, own, partial(DenseOnDevice, device=device))
        return DeviceEncoder(self.encoder, weights, plan.max_model_len, device)

    def _weights(self, plan: ModelPlan, schemes: SchemeChoice) -> EncoderWeights:
        """The checkpoint's, or random ones, held as `schemes` says. Raises LoadError."""
        checkpoint = plan.checkpoint
        if isinstance(checkpoint, DummyCheckpoint):
            names = ((next(self._family.tensors_of(entry)), entry) for entry in encoder_entries(self.encoder))
            checkpoint.shapes = {
                name: (entry.shape[0] * parts, *entry.shape[1:]) for (name, _, parts), entry in names
            }
        return load_encoder(self.encoder, self._family, checkpoint, schemes, self.conversion)


def encoder_route(config: Config, conversion: OnTheFly | None) -> Encoder | None:
    """The route of an encoder that `families/` knows; None of any other model.

    Raises LoadError with UnsupportedModel where it has a feature that is not computed.
    """
    names: Any = config.get("architectures") or [""]
    family = encoders().get(names[0])
    if family is None:
        return None
    spec = family.spec(config)
    layers = (layer.attention for layer in spec.layers)
    check_heads(names[0], layers, "Serve another model of its family.", "model")
    longest = integer(config, "max_sequence_length", spec.max_position)
    return Encoder(replace(spec, max_position=min(longest, spec.max_position)), conversion)
