"""The configuration of compressed-tensors: groups of layers, each with its own arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from slipway.load.config import Config, flag, integer, table, text, texts
from slipway.load.errors import LoadError
from slipway.load.quantized.compressed import WHOLE_TENSOR, PackedLayout
from slipway.load.quantized.fields import block_shape, group_size, pattern
from slipway.load.quantized.layout import Layout, unsupported
from slipway.load.quantized.scaled import ScaledLayout

_FORMATS = ("dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_CLASS_NAMES = ("Linear", "LinearBase", "ParallelLMHead")
"""Targets that are classes of layers: all whose weights are quantized are of one of these."""


@dataclass(frozen=True, slots=True)
class _Group:
    targets: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    layout: Layout

    def matches(self, name: str) -> bool:
        whole = any(target in _CLASS_NAMES or target == name for target in self.targets)
        return whole or any(pattern.match(name) for pattern in self.patterns)


def compressed(settings: Config) -> Callable[[str, Collection[str]], Layout]:
    """The layouts of a `quantization_config`. Raises LoadError for features that we lack."""
    sparsity = text(table(settings, "sparsity_config"), "format", "dense")
    if sparsity != "dense":
        raise unsupported(f"Weights with the sparsity {sparsity}")
    if settings.get("transform_config"):
        raise unsupported("Weights that want their activations rotated (transform_config)")
    groups = [_group(name, settings, group) for name, group in table(settings, "config_groups").items()]
    # The exact name of a layer, or a pattern, goes before a class of layers.
    groups.sort(key=lambda group: any(target in _CLASS_NAMES for target in group.targets))

    def layout_of(name: str, pieces: Collection[str]) -> Layout:
        for group in groups:
            if group.matches(name):
                return group.layout
        raise LoadError(
            "BadCheckpoint",
            f"The layer {name} is quantized, and no group of config.json's quantization_config is for it.",
            hint="config.json and weights are of different models or versions: fetch both again.",
        )

    return layout_of


def _group(name: str, settings: Config, group: object) -> _Group:
    if not isinstance(group, Mapping):
        raise unsupported(f"A group of layers ({name}) that names a preset instead of its arguments")
    form = text(group, "format", text(settings, "format", "dense"))
    weights, inputs = table(group, "weights"), table(group, "input_activations")
    if form not in _FORMATS:
        raise unsupported(f"The form {form} of compressed-tensors")
    if table(group, "output_activations"):
        raise unsupported(f"A group of layers ({name}) whose outputs are quantized")
    floats = text(weights, "type", "int") == "float"
    layout = _floats(weights, inputs) if floats else _integers(form, weights, inputs)
    targets = texts(group, "targets")
    patterns = tuple(pattern(one.removeprefix("re:")) for one in targets if one.startswith("re:"))
    return _Group(targets, patterns, layout)


def _floats(weights: Config, inputs: Config) -> Layout:
    bits, strategy = integer(weights, "num_bits", 8), text(weights, "strategy", "tensor")
    if bits != 8:
        raise unsupported(f"compressed-tensors' floats of {bits} bits")
    if strategy in ("tensor", "channel"):
        return ScaledLayout(True, _static(inputs))
    if strategy == "block":
        return ScaledLayout(True, _static(inputs), block_shape(weights, "block_structure"))
    if strategy == "group":
        return ScaledLayout(True, _static(inputs), (1, group_size(weights, 128)))
    raise unsupported(f"fp8 weights with scales by {strategy}")


def _integers(form: str, weights: Config, inputs: Config) -> Layout:
    bits, symmetric = integer(weights, "num_bits", 8), flag(weights, "symmetric", True)
    strategy, packed = text(weights, "strategy", "tensor"), form == "pack-quantized"
    if strategy not in ("tensor", "channel", "group"):
        raise unsupported(f"Integer weights with scales by {strategy}")
    if packed and bits not in (4, 8):
        raise unsupported(f"compressed-tensors with {bits} bits", "Use a checkpoint of 4 or 8 bits.")
    if not packed and inputs and symmetric and strategy != "group":
        return ScaledLayout(False, _static(inputs))
    whole = {"tensor": WHOLE_TENSOR, "channel": -1}
    group = whole[strategy] if strategy in whole else group_size(weights, 128)
    # Codes of fewer bits that are not packed lie in whole bytes.
    return PackedLayout(bits if packed else 8, group, symmetric, weights.get("actorder") == "group", packed)


def _static(inputs: Config) -> bool:
    """Whether activations have a symmetric scale that was measured; others are scaled token by token."""
    return bool(inputs) and not inputs.get("dynamic") and flag(inputs, "symmetric", True)
