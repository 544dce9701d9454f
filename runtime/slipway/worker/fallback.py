"""Runs any causal model of transformers whose attention goes through its attention interface.

transformers' code computes everything but attention, matrix products and draws: those are ours, so that
requests share the paged cache and results do not depend on company.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from slipway.engine.config import EngineConfig
from slipway.engine.plan import Masks
from slipway.load.arrays import DType, Ints
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.config import Config
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.load.torch_arrays import array, tensor, torch_type
from slipway.model.limits import trained_length
from slipway.model.shard import Shard
from slipway.model.spec import Attention
from slipway.schemes.choice import Schemes
from slipway.worker.packed_modules import Independent, pack_modules, quantize_modules
from slipway.worker.probe import Found, Probe
from slipway.worker.route import NewModel, one_rank, one_stage
from slipway.worker.transformers_model import (
    Attentions,
    by_row,
    configuration,
    empty_model,
    fix_rotation,
    loaded_model,
    register,
    scale_and_softcap,
)
from slipway.worker.trial import try_out
from slipway_kernels.cpu import Edits, ExternalProgram, PageMemory, Ranks, Slots, StepResult, Threads

if TYPE_CHECKING:
    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.attention import NewBackend
    from slipway.worker.device.schemes import DeviceSchemes
    from slipway.worker.plan import ModelPlan


@dataclass(frozen=True, slots=True)
class Fallback:
    """A model of transformers before its weights.

    found  what its layers ask of attention
    """

    config: Config
    settings: transformers.PreTrainedConfig
    trust: bool
    architecture: str
    found: Found
    conversion: OnTheFly | None
    native = False
    stage = None

    @property
    def vocab(self) -> int:
        return self.found.vocab

    @property
    def chunk(self) -> int:
        return self.found.chunk

    @property
    def attentions(self) -> Sequence[Attention]:
        return list(self.found.layers.values())

    def without_windows(self) -> Fallback:
        layers = {place: replace(one, window=0) for place, one in self.found.layers.items()}
        return replace(self, found=replace(self.found, layers=layers))

    @property
    def spec(self) -> None:
        """None: transformers' code is the specification."""
        return None

    def on_rank(self, checkpoint: Checkpoint, shard: Shard, dtype: DType) -> Fallback:
        one_rank(self.architecture, "run by transformers' code", shard)
        return self

    def on_stage(self, number: int, count: int, partition: Sequence[int], *, embeds: bool) -> Fallback:
        raise one_stage(self.architecture, "run by transformers' code", count)

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        return list(checkpoint.forms().values())

    def layer_bytes(self, checkpoint: Checkpoint, dtype: DType) -> Sequence[int]:
        """Nothing: its layers stay where the rest is."""
        return ()

    def model(self, checkpoint: Checkpoint, dtype: DType) -> transformers.PreTrainedModel:
        """The model on the host, with its weights or random ones.

        Raises LoadError unless the checkpoint holds exactly its weights.
        """
        with torch.device("meta"):
            empty = empty_model(self.settings, self.trust)
        if isinstance(checkpoint, DummyCheckpoint):
            shapes = {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
            checkpoint.shapes = {
                name: shape for name, shape in shapes.items() if name not in empty.all_tied_weights_keys
            }
        return loaded_model(empty, self.settings, checkpoint, dtype)

    def on_cpu(self, plan: ModelPlan, threads: Threads, ranks: Ranks | None = None) -> NewModel:
        """Read the weights and pack the products; over slots and pages each layer gets its own in the cache.

        There are no adapters: `plan_model` refuses them.
        """
        # The kernels' threads own the cores; and torch's results may depend on how many it has.
        torch.set_num_threads(1)
        dtype = plan.element
        torch_model = self.model(plan.checkpoint, dtype)
        left = pack_modules(torch_model, Schemes(dtype, threads), torch_type(dtype), self.conversion)

        def model(
            slots: Slots, pages: PageMemory, max_tokens: int, max_top: int
        ) -> tuple[FallbackModel, None]:
            fix_rotation(torch_model, slots.max_len)
            program = plan.stepper(ExternalProgram, threads, slots, pages, max_tokens, max_top)
            products = Independent() if left else nullcontext()
            with products:
                try_out(torch_model, self.found, torch_type(dtype), plan.max_model_len)
            layers = [
                ProgramLayer(program, *one) for one in zip(plan.kv.layer_place, self.attentions, strict=True)
            ]
            attentions = Attentions(torch_model, zip(self.found.layers, layers, strict=True))
            return FallbackModel(torch_model, program, attentions, products), None

        return model

    def on_device(self, plan: ModelPlan, schemes: DeviceSchemes, attention: NewBackend) -> AnyDecoder:
        """The model as torch has it, but for matrices that are quantized on the way.

        Raises LoadError unless the checkpoint holds exactly its weights, and where it has no body.
        """
        from slipway.worker.device.transformers_decoder import FallbackDecoder

        if not self.found.body:
            raise LoadError(
                "UnsupportedModel",
                f"{self.architecture} has no one module that holds all layers and gets the tokens; without "
                "one --device cuda cannot tell hidden states from logits.",
                hint="Serve it with --device cpu.",
                argument="device",
            )
        model = self.model(plan.checkpoint, plan.element)
        fix_rotation(model, plan.max_model_len)
        held = quantize_modules(model, schemes, self.conversion) if self.conversion is not None else []
        model.to(schemes.device)  # type: ignore[arg-type]
        try_out(model, self.found, torch_type(plan.element), plan.max_model_len)
        return FallbackDecoder(self, model, attention(self.attentions), torch_type(plan.element), held)


def fallback(
    settings: Config, folder: Path | None, config: EngineConfig, conversion: OnTheFly | None
) -> Fallback:
    """Try the model on shapes alone. Raises LoadError where it cannot run, naming what prevents it."""
    register()
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hf_config = configuration(settings, folder, config)
    known = {**hf_config.to_dict(), **settings}
    with torch.device("meta"):
        model = empty_model(hf_config, config.trust_remote_code)
        found = Probe.of(model, max(config.max_model_len or 0, trained_length(known)))
    return Fallback(known, hf_config, config.trust_remote_code, type(model).__name__, found, conversion)


class FallbackModel:
    """The loaded model: one flat batch [1, rows] a step, whatever requests the rows belong to."""

    def __init__(
        self,
        model: nn.Module,
        program: ExternalProgram,
        attentions: Attentions,
        products: AbstractContextManager[object],
    ) -> None:
        self._model = model.eval()
        self._attentions = attentions
        self._products = products
        self._program = program
        self.kv_scale, self.find_kv_scales = program.kv_scale, program.find_kv_scales
        self.taken, self.told = program.taken, program.told  # nothing
        self.embedding = self.output = self.tokens_from = None  # nor these
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def step(
        self,
        slots: Ints,
        num_new: Ints,
        num_drafts: Ints | None = None,
        masks: Masks | None = None,
        edits: Edits | None = None,
    ) -> StepResult:
        """Compute num_new tokens of each slot, draw where a slot has caught up, append and advance."""
        rows = self._program.prepare(slots, num_new, num_drafts, masks, edits)
        if len(rows.token_ids) == 0:
            return self._program.finish(np.zeros((0, self._program.vocab), np.float32))
        wanted = torch.from_numpy(rows.logit_rows).long()  # [logit rows]
        # At least one row of logits is computed: no model expects to keep none.
        keep = {"logits_to_keep": wanted if len(wanted) else 1} if self._keeps else {}
        with self._products, self._attentions.step():
            output = self._model(
                input_ids=torch.from_numpy(rows.token_ids).long()[None],
                position_ids=torch.from_numpy(rows.positions).long()[None],
                use_cache=False,
                **keep,
            )
        logits = output.logits[0] if self._keeps else output.logits[0][wanted]
        return self._program.finish(array(logits[: len(wanted)]))


@dataclass(frozen=True, slots=True)
class ProgramLayer:
    """One layer's attention over the pages."""

    program: ExternalProgram
    place: tuple[int, int]
    spec: Attention

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        settings: Mapping[str, Any],
    ) -> Tensor:
        """query, key, value [1, heads, rows, head_dim] → [1, rows, heads, value_dim]"""
        spec, head_dim = self.spec, self.spec.head_dim
        keys, values, queries = (array(by_row(x, head_dim).flatten(1)) for x in (key, value, query))
        self.program.store_kv(self.place, keys, values, spec.kv_heads, head_dim)
        scale, softcap = scale_and_softcap(query, settings)
        out = self.program.attention(
            self.place, queries, spec.heads, spec.kv_heads, head_dim, scale, spec.window, softcap
        )
        return tensor(out).view(1, -1, spec.heads, head_dim)[..., : value.shape[-1]]
