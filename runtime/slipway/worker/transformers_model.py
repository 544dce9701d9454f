"""A causal model of transformers: its configuration, its shapes without weights, and its weights.

Its attention goes through transformers' interface to whatever stands at `paged` of each layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import transformers
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slipway.engine.config import EngineConfig
from slipway.load.arrays import DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.config import Config
from slipway.load.errors import LoadError
from slipway.load.quantized.tensors import Quantized
from slipway.load.torch_arrays import tensor, torch_type
from slipway.model.weights import check_complete, wrong_shape
from slipway.worker.attention_masks import mask, one_request
from slipway.worker.probe import Place, check_layers

ATTENTION = "slipway"
"""Our name in transformers' interfaces of attention and of masks."""


class Attends(Protocol):
    """What stands at `paged` of a layer: a probe, or the layer's parts of a cache."""

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


class Turns:
    """The attentions of one module, for which it asks in the same order in each step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns: list[Attends] = []
        self._next = 0

    def add(self, one: Attends) -> None:
        self._turns.append(one)

    def begin(self) -> None:
        self._next = 0

    def end(self) -> None:
        if self._next != len(self._turns):
            raise RuntimeError(
                f"{self._name} has attended {self._next} times in a step, and before {len(self._turns)} times"
            )

    def attend(self, module: nn.Module, query: Tensor, *others: Any) -> Tensor:
        """As `Attends`."""
        turn = self._next
        self._next += 1
        if turn >= len(self._turns):
            self.end()
        return self._turns[turn].attend(module, query, *others)


class Attentions:
    """Puts what attends into a model, and sees to it that each step asks for all of it once."""

    def __init__(self, model: nn.Module, attends: Iterable[tuple[Place, Attends]]) -> None:
        self._turns: dict[str, Turns] = {}
        for place, one in attends:
            self._turns.setdefault(place.module, Turns(place.module)).add(one)
        for name, turns in self._turns.items():
            module: Any = model.get_submodule(name)
            module.paged = turns

    @contextmanager
    def step(self) -> Iterator[None]:
        for turns in self._turns.values():
            turns.begin()
        with one_request():
            yield
        for turns in self._turns.values():
            turns.end()


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
) -> Any:
    """What transformers calls for each layer, by these names; the layer itself knows where its cache lies."""
    layer: Attends = module.paged  # type: ignore[assignment]
    return layer.attend(module, query, key, value, attention_mask, settings), None


def register() -> None:
    """Give transformers our attention and our masks."""
    transformers.AttentionInterface.register(ATTENTION, attend)
    transformers.AttentionMaskInterface.register(ATTENTION, mask)


def scale_and_softcap(query: Tensor, settings: Mapping[str, Any]) -> tuple[float, float]:
    """What a layer's scores are multiplied by, and then bound to; 0: not bound.

    query  [1, heads, rows, head_dim]
    """
    scale = settings.get("scaling")
    return query.shape[-1] ** -0.5 if scale is None else float(scale), settings.get("softcap") or 0.0


def by_row(x: Tensor, head_dim: int) -> Tensor:
    """[1, heads, rows, size] → [rows, heads, head_dim]; zeros added to a head change no score."""
    rows = x[0].transpose(0, 1)
    if missing := head_dim - x.shape[-1]:
        return nn.functional.pad(rows, (0, missing))
    return rows if rows.stride(2) == 1 else rows.contiguous()


def configuration(
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


def empty_model(config: transformers.PreTrainedConfig, trust: bool) -> transformers.PreTrainedModel:
    model: transformers.PreTrainedModel
    make: Any = transformers.AutoModelForCausalLM.from_config
    config = deepcopy(config)  # models keep the object
    try:
        model = make(config, trust_remote_code=trust, attn_implementation=ATTENTION)
    except KeyError:  # the model chooses among attention classes of its own
        check_layers(make(config, trust_remote_code=trust, attn_implementation="eager"), ())
        raise
    except ValueError as error:
        raise LoadError(
            "UnsupportedModel",
            f"transformers has no causal model for {type(config).__name__}, or none with exchangeable "
            f"attention: {str(error).splitlines()[0]}",
            hint="Serve a text-generation model.",
        ) from error
    _forget_padding(model)
    return model


def _forget_padding(model: nn.Module) -> None:
    """Else some models look for it in every step. Layers are made with it: theirs may have no numbers."""
    for module in model.modules():
        if isinstance(getattr(module, "config", None), transformers.PreTrainedConfig):
            vars(module.config)["pad_token_id"] = None  # past its checks, which may want a number


def loaded_model(
    empty: transformers.PreTrainedModel,
    config: transformers.PreTrainedConfig,
    checkpoint: Checkpoint,
    dtype: DType,
) -> transformers.PreTrainedModel:
    """The model with its weights. Raises LoadError unless the checkpoint holds exactly these."""
    kind = type(empty)
    load: Any = kind.from_pretrained
    model: transformers.PreTrainedModel
    model, found = load(
        None,
        config=deepcopy(config),
        state_dict=dict(_state(checkpoint, dtype, _padded(empty))),
        dtype=torch_type(dtype),
        attn_implementation=ATTENTION,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    _forget_padding(model)
    check_complete(kind.__name__, sorted(found["missing_keys"]), sorted(found["unexpected_keys"]))
    for name, stored, wanted in sorted(found["mismatched_keys"]):
        raise wrong_shape(name, stored, wanted)
    return model


def _padded(model: nn.Module) -> set[str]:
    """Embeddings with a row for padding, where some models write zeros while they are loaded."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }


def _state(checkpoint: Checkpoint, dtype: DType, written: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, all in this type but integers; torch converts on every thread that it has.

    written  those that must not lie in the file, which is mapped to be read
    """
    for name, stored in checkpoint.stored(dtype):
        matrix = stored.read()
        weights = tensor(matrix.dequantized(dtype) if isinstance(matrix, Quantized) else matrix)
        weights = weights.to(torch_type(dtype)) if weights.is_floating_point() else weights
        yield name, weights.clone() if name in written else weights


def fix_rotation(model: nn.Module, max_len: int) -> None:
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
            )
        initialize = ROPE_INIT_FUNCTIONS[str(kind)]
        module.inv_freq, module.attention_scaling = initialize(module.config, None, seq_len=max_len)
        module.rope_type = "default"  # which is never updated
