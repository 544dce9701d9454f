"""Tries a model of transformers on shapes alone, to learn what its layers ask of attention."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.fx.experimental._config
from torch import Tensor, nn

from slipway.load.errors import LoadError
from slipway.model.spec import Attention
from slipway.worker.attention_masks import Unknown, probing, seen_by
from slipway.worker.route import HEAD_DIM_UNIT, MAX_HEAD_DIM

_UNKNOWN_TO_KERNELS = ("s_aux", "sinks", "position_bias", "relative_position_bias")
"""What some models add to the scores; the kernels cannot."""
ANOTHER_MODEL = "Serve another model: `slipway serve --help=model-impl` says which can run."
_ROTARY = "inv_freq"
"""A module that has this keeps frequencies, which are of positions alone."""


class Place(NamedTuple):
    """One attention of a step: the module that asks for it, and how many it has asked for before."""

    module: str
    turn: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a model asks of attention.

    layers  in the order of a step; scale and soft-cap are told with every call
    vocab   the width of the logits
    body    the outermost module within that gets the tokens and holds all layers; empty where there is none
    chunk   the least stretch of positions beyond which a row of some layer does not see; 0: there is none
    """

    layers: Mapping[Place, Attention]
    vocab: int
    body: str
    chunk: int


class Probe:
    """Stands in for the paged layers while the model runs on the meta device, and takes notes."""

    def __init__(self, names: Mapping[nn.Module, str], tokens: Tensor) -> None:
        self._names = names
        self._tokens = tokens
        self.entered: list[str] = []
        self.layers: dict[Place, Attention] = {}
        self.chunks: list[int] = []
        self.notes = True

    @classmethod
    def of(cls, model: nn.Module, longest: int) -> Found:
        """Try it, for requests of up to so many tokens.

        Raises LoadError, naming the layer, where attention bypasses the interface or asks it for what the
        kernels cannot do, and where something else is kept from one step to the next.
        """
        cached, tokens = None, torch.zeros((1, 2), dtype=torch.long)
        probe = cls({module: name for name, module in model.named_modules()}, tokens)
        hooks = []
        modules = list(model.modules())  # which a step may replace
        for module in modules:
            module.paged = probe  # type: ignore[assignment]
            hooks.append(module.register_forward_pre_hook(probe.enter, with_kwargs=True))
        try:
            with torch.inference_mode(), probing(longest), _nothing_kept(model):
                output = _run(model, tokens, use_cache=False)
            probe.notes = False
            with torch.inference_mode(), suppress(LoadError):  # a cache may want numbers
                cached = _run(model, tokens, use_cache=True)
        finally:
            for module in modules:
                del module.paged
            for hook in hooks:
                hook.remove()
        layers = probe.layers
        names = {place.module for place in layers}
        check_layers(model, names, cached)
        bodies = (one for one in probe.entered if all(layer.startswith(f"{one}.") for layer in names))
        return Found(layers, output.logits.shape[-1], next(bodies, ""), min(probe.chunks, default=0))

    def enter(self, module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Called before each module runs."""
        if any(one is self._tokens for one in (*given, *named.values())):
            self.entered.append(self._names.get(module, ""))

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
        (_, heads, rows, head_dim), (_, kv_heads, _, value_dim) = query.shape, value.shape
        out = query.new_empty((1, rows, heads, value_dim))
        if not self.notes:
            return out
        name = self._names.get(module, "")
        layer = f"The layer {name} ({type(module).__name__})"
        for unknown in _UNKNOWN_TO_KERNELS:
            if settings.get(unknown) is not None:
                raise _refused(f"{layer} uses {unknown} in its attention")
        window = self._window(module, layer, mask, settings)
        # Keys and values lie in the cache at a size that the kernels can compute and that holds both.
        size = -(-max(head_dim, value_dim) // HEAD_DIM_UNIT) * HEAD_DIM_UNIT
        if size > MAX_HEAD_DIM:
            raise _refused(
                f"The layer {name} has heads of {head_dim} numbers, and {MAX_HEAD_DIM} is the limit"
            )
        place = Place(name, sum(place.module == name for place in self.layers))
        self.layers[place] = Attention(heads, kv_heads, size, None, size**-0.5, window)
        return out

    def _window(self, module: nn.Module, layer: str, mask: Any, settings: Mapping[str, Any]) -> int:
        """That of the mask; one that an argument names is none that transformers' own attention follows."""
        if mask is None:
            causal = settings.get("is_causal")
            if not (getattr(module, "is_causal", True) if causal is None else causal):
                raise _refused(f"{layer} attends to later tokens too")
            if settings.get("sliding_window"):
                raise _refused(f"{layer} names a window, and has no mask that shows it")
        try:
            seen = seen_by(mask)
        except Unknown as error:
            raise _refused(f"{layer} {error}") from None
        self.chunks += [seen.chunk] if seen.chunk else []
        return seen.window


def check_layers(model: nn.Module, called: Collection[str], output: Any = None) -> None:
    """Raise LoadError, naming the layer, unless all that a model keeps are keys and values of attention.

    called  the modules that have called the interface
    output  what it gave with a cache
    """
    indexes = {getattr(model.get_submodule(name), "layer_idx", None) for name in called}
    for name, module in model.named_modules():
        index = getattr(module, "layer_idx", None)
        near = any(f"{one}.".startswith(f"{name}.") or f"{name}.".startswith(f"{one}.") for one in called)
        if isinstance(index, int) and index not in indexes and not near:
            raise _refused(
                f"The layer {name} ({type(module).__name__}) does not go through transformers' attention "
                "interface"
            )
    if not called:
        raise _refused(f"{type(model).__name__} has no layer that goes through the attention interface")
    for index, kept in enumerate(_layers_of(output)):
        for what, value in vars(kept).items():
            if what not in ("keys", "values") and _has_numbers(value):
                raise _refused(f"Layer {index} keeps {what} from step to step, beside keys and values")


def _layers_of(output: Any) -> Iterable[Any]:
    """Of the cache in a model's output, which older releases of transformers call by another name."""
    cache = getattr(output, "cache", None) or getattr(output, "past_key_values", None)
    return getattr(getattr(cache, "self_attention_cache", cache), "layers", ())


def _run(model: nn.Module, tokens: Tensor, *, use_cache: bool) -> Any:
    positions = torch.arange(tokens.shape[1])[None]
    try:
        with mock.patch.object(torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", True):
            return model(input_ids=tokens, position_ids=positions, use_cache=use_cache)
    except LoadError:
        raise
    except Exception as error:
        if "meta tensor" in str(error):
            raise _refused(
                f"{type(model).__name__} decides by numbers what it computes: it cannot be tried on shapes"
            ) from error
        raise _refused(f"{type(model).__name__} fails on a trial step: {error}") from error


@contextmanager
def _nothing_kept(model: nn.Module) -> Iterator[None]:
    """Raise LoadError, naming the layer, where a step has left numbers in a module."""

    def held(module: nn.Module) -> dict[str, Any]:
        return {**vars(module), **module._buffers}

    before = {module: held(module) for module in model.modules()}
    yield
    for name, module in model.named_modules():
        layer = f"The layer {name} ({type(module).__name__})"
        if module not in before:
            raise _refused(f"{layer} takes the place of another in a step")
        for what, value in held(module).items():
            if value is not before[module].get(what) and _has_numbers(value) and not hasattr(module, _ROTARY):
                raise _refused(f"{layer} keeps {what} from step to step, outside its cache")


def _has_numbers(value: Any) -> bool:
    """A tensor, or a collection that has one; a single number may be a length."""
    match value:
        case Tensor():
            return value.ndim > 0
        case dict():
            return any(map(_has_numbers, value.values()))
        case list() | tuple():
            return any(map(_has_numbers, value))
    return False


def _refused(why: str) -> LoadError:
    return LoadError(
        "UnsupportedModel",
        f"{why}, so that its cache cannot be paged.",
        hint=ANOTHER_MODEL,
    )
