"""A model that `families/` knows, before its weights, and how it is made to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from slipway.load.arrays import FP32, DType, Floats, Ints
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.config import Config, texts
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.model.adapters import EMBEDDING, HEAD
from slipway.model.own_rows import ReadRows
from slipway.model.pooling import Pooling
from slipway.model.registry import Family, family_of
from slipway.model.roles import expected_shapes
from slipway.model.shard import WHOLE_MODEL, Shard, Sharded
from slipway.model.spec import Attention, DecoderSpec
from slipway.model.stage import Stage
from slipway.model.weights import Builder, ModelWeights, forms_by_place, load_weights
from slipway.schemes.choice import SchemeChoice, Schemes
from slipway.schemes.fused import FusedLinear
from slipway.worker.adapters import AdapterPlaces, read_parts
from slipway.worker.lower import check_lowered, lower
from slipway.worker.pool import DenseLayer, NewLayer, Pooler, cpu_rows, decoder_layers
from slipway.worker.route import NewModel, check_heads
from slipway_kernels.cpu import STEP_PAGES, EncoderProgram, PageMemory, Program, Ranks, Slots, Threads

if TYPE_CHECKING:
    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.attention import NewBackend
    from slipway.worker.device.schemes import DeviceSchemes
    from slipway.worker.plan import ModelPlan


@dataclass(frozen=True, slots=True)
class Native:
    """A model with a specification of its own: a lowered program on CPU, a decoder on a device."""

    spec: DecoderSpec
    config: Config
    conversion: OnTheFly | None
    shard: Shard = WHOLE_MODEL
    held: tuple[Attention, ...] | None = None
    """Of a rank: its part of each layer's heads."""
    stage: Stage | None = None
    """Whose layers are computed; None: all are."""
    native = True
    chunk = 0

    @property
    def architecture(self) -> str:
        return self.spec.architecture

    @property
    def family(self) -> Family:
        found = family_of(self.architecture)
        assert found is not None, "a route is made of a family"
        return found

    @property
    def vocab(self) -> int:
        return self.spec.vocab

    @property
    def attentions(self) -> Sequence[Attention]:
        """Those that keep keys and values: none where rows see both ways, and prompts are computed whole."""
        if self.spec.both_ways:
            return ()
        return self.held or [layer.attention for layer in self.spec.layers]

    def without_windows(self) -> Native:
        if self.spec.both_ways:  # they keep nothing
            return self
        layers = [replace(layer, attention=replace(layer.attention, window=0)) for layer in self.spec.layers]
        return replace(self, spec=replace(self.spec, layers=tuple(layers)))

    def on_rank(self, checkpoint: Checkpoint, shard: Shard, dtype: DType) -> Native:
        route = replace(self, shard=shard)
        part = route._sharded(checkpoint, packed=dtype != FP32)
        return replace(route, held=tuple(layer.attention for layer in part.spec.layers))

    def on_stage(self, number: int, count: int, partition: Sequence[int], *, embeds: bool) -> Native:
        spec = self.spec
        tied = spec.tied_embedding or embeds
        return replace(self, stage=Stage.of(number, count, len(spec.layers), partition, tied=tied))

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        return list(self._sharded(checkpoint).forms.values())

    def weights(self, plan: ModelPlan, schemes: SchemeChoice) -> ModelWeights:
        """The checkpoint's, or random ones, held as `schemes` says. Raises LoadError."""
        family, checkpoint = self.family, plan.checkpoint
        if isinstance(checkpoint, DummyCheckpoint):
            checkpoint.shapes, checkpoint.drawn = expected_shapes(self.spec, family), schemes.drawn
        return load_weights(self.spec, family, checkpoint, schemes, self.conversion, self.shard, self.stage)

    def unread(self, part: Sharded, schemes: SchemeChoice, *, finished: bool = False) -> ModelWeights:
        """Every matrix of a rank's part as `schemes` will hold it, without its numbers.

        finished  as it is once all of it has been read
        """
        builder = Builder(part.spec, schemes, part.forms, self.stage)
        weights = builder.build()
        if finished:
            builder.finish()
        return weights

    def part(self, plan: ModelPlan) -> Sharded:
        """What a rank has of each matrix, of all stages."""
        return self._sharded(plan.checkpoint, packed=plan.element != FP32)

    def layer_bytes(self, checkpoint: Checkpoint, dtype: DType) -> Sequence[int]:
        from slipway.worker.device.offload import layer_bytes  # imports torch

        part = self._sharded(checkpoint)
        sizes = layer_bytes(part.spec, part.forms, dtype)
        return sizes if self.stage is None else [sizes[layer] for layer in self.stage.layers]

    def _sharded(self, checkpoint: Checkpoint, *, packed: bool = True) -> Sharded:
        forms = forms_by_place(self.spec, self.family, checkpoint, self.conversion)
        return Sharded(self.spec, forms, self.shard, packed=packed)

    def on_cpu(self, plan: ModelPlan, threads: Threads, ranks: Ranks | None = None) -> NewModel:
        check_lowered(self.spec)
        return self.lowered(plan, self.weights(plan, Schemes(plan.element, threads)), threads, ranks)

    def lowered(
        self, plan: ModelPlan, weights: ModelWeights, threads: Threads, ranks: Ranks | None = None
    ) -> NewModel:
        """The program over these weights, which may not have been read."""
        part = self.part(plan)
        stage = self.stage or Stage.whole(len(self.spec.layers))
        pools = plan.pooler is not None
        if plan.pooler is not None and stage.is_last:
            weights = self._pooled(weights, plan.pooler, partial(DenseLayer, threads=threads), cpu_rows)

        def model(
            slots: Slots, pages: PageMemory, max_tokens: int, max_top: int
        ) -> tuple[Program, AdapterPlaces | None]:
            kind = EncoderProgram if self.spec.both_ways else Program
            program = plan.stepper(kind, threads, slots, pages, max_tokens, max_top)
            if ranks is not None:
                program.join(ranks)
            adapters = None
            if plan.adapters is not None:
                adapters = AdapterPlaces(
                    program, plan.adapters, self.spec, self.family, part.cuts, self.shard
                )
            whole = (STEP_PAGES,) * len(stage.layers)
            layers = whole if self.spec.both_ways else plan.kv.layer_place
            lower(
                part.spec,
                weights,
                program,
                layers,
                adapters,
                part.tokens_from or None,
                stage=stage,
                pools=pools,
                taps=plan.taps if stage.is_last else (),  # what guesses is there
            )
            if stage.embeds and program.embedding is None:  # for what guesses
                program.embedding, program.tokens_from = weights.embedding.whole, part.tokens_from or None
            return program, adapters

        return model

    def on_device(self, plan: ModelPlan, schemes: DeviceSchemes, attention: NewBackend) -> AnyDecoder:
        from slipway.load.torch_arrays import torch_type  # imports torch
        from slipway.worker.device.decoder import Decoder
        from slipway.worker.device.heads import DenseOnDevice, device_rows, stored_rows
        from slipway.worker.device.low_rank import LowRank

        if schemes.device.type == "meta":
            weights = self.unread(self.part(plan), schemes, finished=True)
        else:
            weights = self.weights(plan, schemes)
        stage = self.stage or Stage.whole(len(self.spec.layers))
        if plan.pooler is not None and stage.is_last:
            new = partial(DenseOnDevice, device=schemes.device)
            weights = self._pooled(weights, plan.pooler, new, partial(device_rows, device=schemes.device))
        part = self.part(plan)
        spec = replace(part.spec, vocab=self.spec.vocab)
        backend = attention(self.attentions)
        low_rank = None
        if plan.adapters is not None:
            bias = weights.head.bias

            def stored(matrix: FusedLinear, here: bool) -> ReadRows | None:
                return partial(stored_rows, matrix=matrix, whole=self.shard.size == 1) if here else None

            read = partial(
                read_parts,
                limits=plan.adapters,
                spec=self.spec,
                family=self.family,
                # Of tokens every rank adds all: behind the sum of embeddings, and to the joined logits.
                cuts={place: cut for place, cut in part.cuts.items() if place not in (EMBEDDING, HEAD)},
                shard=self.shard,
                dtype=plan.element,
                embedding=stored(weights.embedding, stage.is_first),
                head=stored(weights.head, stage.is_last),
                head_bias=None if bias is None else bias.float().cpu().numpy(),
            )
            low_rank = LowRank(
                spec,
                stage,
                weights,
                plan.adapters,
                read,
                schemes.device,
                self.shard,
                schemes.ranks.added_up,
            )
        return Decoder(
            spec,
            weights,
            backend,
            plan.max_model_len,
            schemes.device,
            schemes.on_host,
            low_rank,
            plan.taps if stage.is_last else (),
            schemes.ranks,
            part.tokens_from,
            dtype=torch_type(plan.element),
            stage=stage,
        )

    def _pooled(
        self,
        weights: ModelWeights,
        pooler: Pooler,
        new: NewLayer,
        rows: Callable[[FusedLinear, Ints], Floats],
    ) -> ModelWeights:
        """The weights without a head, of which the layers behind the pooling have what they need.

        rows  gives rows of a matrix, by their numbers
        """
        own = decoder_layers(pooler.pooling, weights, partial(rows, weights.head), new)
        pooler.read(self.spec.hidden, [*own], new)
        return replace(weights, head=weights.embedding)


_POOLS = "Serve another model: transformers' code, which could run it, makes no vectors here."


def native(config: Config, conversion: OnTheFly | None, pooling: Pooling | None = None) -> Native:
    """The route of a model that `families/` knows, whose plain matrices `conversion` quantizes.

    pooling  what is made of its final rows; None: tokens are
    Raises LoadError with UnsupportedModel where its architecture, or a feature that it uses, is not there.
    """
    architecture = next(iter(texts(config, "architectures")), "")
    family = family_of(architecture)
    if family is None:
        raise LoadError(
            "UnsupportedModel",
            f"{architecture or 'A model without architectures in config.json'} has no native code here.",
            hint=_POOLS if pooling else "Use --model-impl auto or transformers, which run it by their code.",
            argument="model_impl",
        )
    spec = family.spec(config) if pooling is None else pooling.of(family.spec(config))
    hint = _POOLS if pooling else "Use --model-impl auto or transformers, which pad smaller heads."
    if spec.both_ways and pooling is None:
        raise LoadError(
            "UnsupportedModel",
            f"{architecture} lets rows see those behind them, as config.json says: it draws no next token.",
            hint="Use --task embed.",
            argument="task",
        )
    check_heads(architecture, (layer.attention for layer in spec.layers), hint, "model_impl")
    return Native(spec, family.complete(config), conversion)
