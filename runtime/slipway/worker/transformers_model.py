"""A causal model of transformers: its configuration, its shapes without weights, and its weights.

Its attention goes through transformers' interface to whatever stands at `paged` of each layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from slipway.worker.probe import check_layers

ATTENTION = "slipway"
"""Our name in transformers' attention interface. Unknown to its mask interface, it gets no masks made."""


class Attends(Protocol):
    """What stands at `paged` of a layer: a probe, or the layer's part of a cache."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]
    ) -> Tensor:
        """query, key, value [1, heads, rows, head_dim] → [1, rows, heads, value_dim]"""


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any) -> Any:
    """What transformers calls for each layer; the layer itself knows where its cache lies."""
    layer: Attends = module.paged  # type: ignore[assignment]
    return layer.attend(module, query, key, value, settings), None


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
    try:
        model = make(config, trust_remote_code=trust, attn_implementation=ATTENTION)
    except KeyError:  # the model chooses among attention classes of its own
        check_layers(make(config, trust_remote_code=trust, attn_implementation="eager"), [])
        raise
    except ValueError as error:
        raise LoadError(
            "UnsupportedModel",
            f"transformers has no causal model for {type(config).__name__}, or none with exchangeable "
            f"attention: {str(error).splitlines()[0]}",
            hint="Serve a text-generation model.",
        ) from error
    return model


def loaded_model(
    kind: type[transformers.PreTrainedModel],
    config: transformers.PreTrainedConfig,
    checkpoint: Checkpoint,
    dtype: DType,
) -> transformers.PreTrainedModel:
    """The model with its weights. Raises LoadError unless the checkpoint holds exactly these."""
    load: Any = kind.from_pretrained
    model: transformers.PreTrainedModel
    model, found = load(
        None,
        config=config,
        state_dict=dict(_state(checkpoint, dtype)),
        dtype=torch_type(dtype),
        attn_implementation=ATTENTION,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    check_complete(kind.__name__, sorted(found["missing_keys"]), sorted(found["unexpected_keys"]))
    for name, stored, wanted in sorted(found["mismatched_keys"]):
        raise wrong_shape(name, stored, wanted)
    return model


def _state(checkpoint: Checkpoint, dtype: DType) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, all in this type but integers; torch converts on every thread that it has."""
    for name, stored in checkpoint.stored(dtype):
        matrix = stored.read()
        weights = tensor(matrix.dequantized(dtype) if isinstance(matrix, Quantized) else matrix)
        yield name, weights.to(torch_type(dtype)) if weights.is_floating_point() else weights


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
