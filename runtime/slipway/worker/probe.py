"""Tries a model of transformers on shapes alone, to learn what its layers ask of attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slipway.load.errors import LoadError
from slipway.model.spec import Attention
from slipway.worker.route import HEAD_DIM_UNIT, MAX_HEAD_DIM

_UNKNOWN_TO_KERNELS = ("s_aux", "sinks", "position_bias", "relative_position_bias")
"""What some models add to the scores; the kernels cannot."""


class Probe:
    """Stands in for the paged layers while the model runs on the meta device, and takes notes."""

    def __init__(self, names: Mapping[nn.Module, str], tokens: Tensor) -> None:
        self._names = names
        self._tokens = tokens
        self.entered: list[str] = []
        self.layers: dict[str, Attention] = {}

    @classmethod
    def of(cls, model: nn.Module) -> tuple[dict[str, Attention], int, str]:
        """What each layer asks of attention, in order, the width of the logits, and the body's name.

        The body is the outermost module within that gets the tokens and holds all layers; empty where there
        is none.

        Raises LoadError, naming the layer, where attention bypasses the interface or asks it for what the
        kernels cannot do.
        """
        tokens = torch.zeros((1, 2), dtype=torch.long)
        probe = cls({module: name for name, module in model.named_modules()}, tokens)
        hooks = []
        for module in model.modules():
            module.paged = probe  # type: ignore[assignment]
            hooks.append(module.register_forward_pre_hook(probe.enter, with_kwargs=True))
        positions = torch.arange(2)[None]
        try:
            with torch.inference_mode():
                output = model(input_ids=tokens, position_ids=positions, use_cache=False)
        except LoadError:
            raise
        except Exception as error:
            raise _refused(f"{type(model).__name__} fails on a trial step: {error}") from error
        finally:
            for module in model.modules():
                del module.paged
            for hook in hooks:
                hook.remove()
        layers = probe.layers
        check_layers(model, layers)
        bodies = (one for one in probe.entered if all(layer.startswith(f"{one}.") for layer in layers))
        return layers, output.logits.shape[-1], next(bodies, "")

    def enter(self, module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Called before each module runs."""
        if any(one is self._tokens for one in (*given, *named.values())):
            self.entered.append(self._names[module])

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: Mapping[str, Any]
    ) -> Tensor:
        """query, key, value [1, heads, rows, head_dim] → [1, rows, heads, value_dim]"""
        name = self._names[module]
        for unknown in _UNKNOWN_TO_KERNELS:
            if settings.get(unknown) is not None:
                raise _refused(f"The layer {name} ({type(module).__name__}) uses {unknown} in its attention")
        causal = settings.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise _refused(f"The layer {name} ({type(module).__name__}) attends to later tokens too")
        if name in self.layers:
            raise _refused(f"The layer {name} attends more than once in a step")
        (_, heads, rows, head_dim), (_, kv_heads, _, value_dim) = query.shape, value.shape
        # Keys and values lie in the cache at a size that the kernels can compute and that holds both.
        size = -(-max(head_dim, value_dim) // HEAD_DIM_UNIT) * HEAD_DIM_UNIT
        if size > MAX_HEAD_DIM:
            raise _refused(
                f"The layer {name} has heads of {head_dim} numbers, and {MAX_HEAD_DIM} is the limit"
            )
        window = settings.get("sliding_window") or 0
        self.layers[name] = Attention(heads, kv_heads, size, None, size**-0.5, window)
        return query.new_empty((1, rows, heads, value_dim))


def check_layers(model: nn.Module, called: Collection[str]) -> None:
    """Raise LoadError, naming the layer, unless each layer with an index has called or holds one that has."""
    for name, module in model.named_modules():
        holds = any(f"{one}.".startswith(f"{name}.") for one in called)
        inside = any(f"{name}.".startswith(f"{one}.") for one in called)
        if isinstance(getattr(module, "layer_idx", None), int) and not holds and not inside:
            raise _refused(
                f"The layer {name} ({type(module).__name__}) does not go through transformers' attention "
                "interface"
            )
    if not called:
        raise _refused(f"{type(model).__name__} has no layer that goes through the attention interface")


def _refused(why: str) -> LoadError:
    return LoadError(
        "UnsupportedModel",
        f"{why}, so that its cache cannot be paged.",
        hint="Serve another model: `slipway serve --help=model-impl` says which can run.",
    )
