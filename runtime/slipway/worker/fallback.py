"""Runs any causal model of transformers whose attention goes through its attention interface.

transformers' code computes everything but attention, matrix products and draws: those are ours, so that
requests share the paged cache and results do not depend on company.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slipway.engine.config import EngineConfig
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.model.config import Config
from slipway.model.route import Room
from slipway.model.weights import check_complete
from slipway.schemes.choice import Schemes
from slipway.worker.packed_modules import Independent, pack_modules
from slipway.worker.probe import Call, Probe, check_calls
from slipway_kernels.cpu import ExternalProgram, StepResult
from slipway_kernels.cpu.binding import Ints

ATTENTION = "slipway"
"""Our name in transformers' attention interface. Unknown to its mask interface, it gets no masks made."""


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any) -> Any:
    """What transformers calls for each layer; the layer itself knows where its cache lies."""
    layer: Probe | PagedLayer = module.paged  # type: ignore[assignment]
    return layer.attend(module, query, key, value, settings), None


@dataclass(frozen=True, slots=True)
class Fallback:
    """A model of transformers before its weights.

    calls  of the attention interface, one for each layer in order
    """

    config: Config
    settings: transformers.PreTrainedConfig
    trust: bool
    architecture: str
    vocab: int
    calls: tuple[Call, ...]
    windows: tuple[int, ...]
    conversion: OnTheFly | None = None

    @property
    def kv_shape(self) -> tuple[int, int]:
        return self.calls[0].kv_heads, max(call.padded_dim for call in self.calls)

    def without_windows(self) -> Fallback:
        return replace(self, windows=(0,) * len(self.windows))

    def converting(self, conversion: OnTheFly) -> Fallback:
        return replace(self, conversion=conversion)

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        return list(checkpoint.forms().values())

    def build(self, checkpoint: Checkpoint, room: Room) -> FallbackModel:
        """Read the weights, pack the products, give each layer its place in the cache."""
        # The kernels' threads own the cores; and torch's results may depend on how many it has.
        torch.set_num_threads(1)
        with torch.device("meta"):
            empty = _empty_model(self.settings, self.trust)
        if isinstance(checkpoint, DummyCheckpoint):
            shapes = {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
            checkpoint.shapes = {
                name: shape for name, shape in shapes.items() if name not in empty.all_tied_weights_keys
            }
        model = _loaded(type(empty), self.settings, checkpoint, room.dtype)
        program = room.stepper(ExternalProgram, self.vocab)
        left = pack_modules(model, Schemes(room.dtype, room.threads), room.dtype, self.conversion)
        _fix_rotation(model, room.slots.max_len)
        heads, dim = self.kv_shape
        for call, window, place in zip(self.calls, self.windows, room.kv.layer_place, strict=True):
            module = model.get_submodule(call.module)
            module.paged = PagedLayer(program, place, heads, dim, window)  # type: ignore[assignment]
        return FallbackModel(model, program, Independent() if left else nullcontext())


def fallback(settings: Config, folder: Path | None, config: EngineConfig) -> Fallback:
    """Try the model on shapes alone. Raises LoadError where it cannot run, naming what prevents it."""
    transformers.AttentionInterface.register(ATTENTION, attend)
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hf_config = _transformers_config(settings, folder, config)
    hf_config.pad_token_id = None  # else some models look for padding in every step
    with torch.device("meta"):
        model = _empty_model(hf_config, config.trust_remote_code)
        calls, vocab = Probe.of(model)
    return Fallback(
        {**hf_config.to_dict(), **settings},
        hf_config,
        config.trust_remote_code,
        type(model).__name__,
        vocab,
        calls,
        tuple(call.window for call in calls),
    )


class FallbackModel:
    """The loaded model: one flat batch [1, rows] a step, whatever requests the rows belong to."""

    def __init__(
        self, model: nn.Module, program: ExternalProgram, products: AbstractContextManager[object]
    ) -> None:
        self._model = model.eval()
        self._products = products
        self._program = program
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def step(self, slots: Ints, num_new: Ints) -> StepResult:
        """Compute num_new tokens of each slot, draw where a slot has caught up, append and advance."""
        rows = self._program.prepare(slots, num_new)
        if len(rows.token_ids) == 0:
            return self._program.finish(torch.zeros(0, self._program.vocab))
        wanted = torch.from_numpy(rows.logit_rows).long()  # [logit rows]
        # At least one row of logits is computed: no model expects to keep none.
        keep = {"logits_to_keep": wanted if len(wanted) else 1} if self._keeps else {}
        with self._products:
            output = self._model(
                input_ids=torch.from_numpy(rows.token_ids).long()[None],
                position_ids=torch.from_numpy(rows.positions).long()[None],
                use_cache=False,
                **keep,
            )
        logits = output.logits[0] if self._keeps else output.logits[0][wanted]
        return self._program.finish(logits[: len(wanted)])


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One layer's attention over the pages. `head_dim`: what queries, keys and values are padded to."""

    program: ExternalProgram
    place: tuple[int, int]
    kv_heads: int
    head_dim: int
    window: int

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]
    ) -> Tensor:
        """query, key, value [1, heads, rows, head_dim] → [1, rows, heads, value_dim]"""
        heads, rows, size = query.shape[1:]
        scale = settings.get("scaling")
        self.program.store_kv(self.place, self._flat(key), self._flat(value), self.kv_heads, self.head_dim)
        out = self.program.attention(
            self.place,
            self._flat(query),
            heads,
            self.kv_heads,
            self.head_dim,
            size**-0.5 if scale is None else float(scale),
            self.window,
            settings.get("softcap") or 0.0,
        )
        return out.view(1, rows, heads, self.head_dim)[..., : value.shape[-1]]

    def _flat(self, x: Tensor) -> Tensor:
        """[1, heads, rows, size] → [rows, heads · head_dim]; zeros added to a head change no score."""
        padded = nn.functional.pad(x[0].transpose(0, 1), (0, self.head_dim - x.shape[-1]))
        return padded.flatten(1)


def _transformers_config(
    settings: Config, folder: Path | None, config: EngineConfig
) -> transformers.PreTrainedConfig:
    """The configuration object; the one place that may import code from the model's folder."""
    made: transformers.PreTrainedConfig
    kind = str(settings.get("model_type", ""))
    own_code = folder if "auto_map" in settings else None
    if own_code and config.trust_remote_code:
        made = transformers.AutoConfig.from_pretrained(
            own_code, trust_remote_code=config.trust_remote_code, code_revision=config.code_revision
        )
        made.update(dict(settings))
        return made
    if kind in transformers.CONFIG_MAPPING:
        made = transformers.CONFIG_MAPPING[kind].from_dict(dict(settings))
        return made
    raise LoadError(
        "UnsupportedModel",
        f"The model type {kind!r} is known neither here nor to transformers {transformers.__version__}.",
        hint="It comes with its own code: --trust-remote-code runs that, with all rights of this process."
        if own_code
        else "A newer transformers may know it.",
        argument="trust_remote_code" if own_code else "model",
    )


def _empty_model(config: transformers.PreTrainedConfig, trust: bool) -> transformers.PreTrainedModel:
    model: transformers.PreTrainedModel
    make: Any = transformers.AutoModelForCausalLM.from_config
    try:
        model = make(config, trust_remote_code=trust, attn_implementation=ATTENTION)
    except KeyError:  # the model chooses among attention classes of its own
        check_calls(make(config, trust_remote_code=trust, attn_implementation="eager"), [])
        raise
    except ValueError as error:
        raise LoadError(
            "UnsupportedModel",
            f"transformers has no causal model for {type(config).__name__}, or none with exchangeable "
            f"attention: {str(error).splitlines()[0]}",
            hint="Serve a text-generation model.",
            argument="model",
        ) from error
    return model


def _loaded(
    kind: type[transformers.PreTrainedModel],
    config: transformers.PreTrainedConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
) -> transformers.PreTrainedModel:
    """The model with its weights. Raises LoadError unless the checkpoint holds exactly these."""
    load: Any = kind.from_pretrained
    model: transformers.PreTrainedModel
    model, found = load(
        None,
        config=config,
        state_dict=dict(checkpoint.tensors(dtype)),
        dtype=dtype,
        attn_implementation=ATTENTION,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    check_complete(kind.__name__, sorted(found["missing_keys"]), sorted(found["unexpected_keys"]))
    for name, stored, wanted in sorted(found["mismatched_keys"]):
        raise LoadError(
            "BadCheckpoint",
            f"The tensor {name} has the shape {list(stored)}, and config.json asks for {list(wanted)}.",
            hint="config.json and weights are of different models or versions: fetch both again.",
            argument="model",
        )
    return model


def _fix_rotation(model: nn.Module, max_len: int) -> None:
    """Keep rotary embeddings from choosing their frequencies by the longest row of a step."""
    for name, module in model.named_modules():
        kind = getattr(module, "rope_type", None)
        kinds = set(kind.values()) if isinstance(kind, dict) else {kind}
        if not kinds & {"dynamic", "longrope"}:
            continue
        if isinstance(kind, dict):
            raise LoadError(
                "UnsupportedModel",
                f"The layer {name} has rotary frequencies that depend on length and on the layer.",
                hint="Set another kind of scaling by --hf-overrides.",
                argument="model",
            )
        initialize = ROPE_INIT_FUNCTIONS[str(kind)]
        module.inv_freq, module.attention_scaling = initialize(module.config, None, seq_len=max_len)
        module.rope_type = "default"  # which is never updated
