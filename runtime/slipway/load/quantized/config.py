"""What a model's `quantization_config` says: which layers are quantized, and how each is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.load.config import Config, flag, integer, integers, table, text, texts, wrong
from slipway.load.errors import LoadError
from slipway.load.folder import read_json
from slipway.load.quantized.awq import AwqLayout
from slipway.load.quantized.compressed import WHOLE_TENSOR, PackedLayout
from slipway.load.quantized.gptq import GptqLayout
from slipway.load.quantized.layout import Layout, unsupported
from slipway.load.quantized.scaled import ScaledLayout

_PLACE = "the quantization_config of the model's config.json"
_OWN_FILES = {"gptq": "quantize_config.json", "awq": "quant_config.json"}

_FORMATS = ("dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_CLASS_NAMES = ("Linear", "LinearBase", "ParallelLMHead")
"""Targets of compressed-tensors that are classes of layers: all quantized weights are of one of these."""

LayoutOf = Callable[[str, Collection[str]], Layout]
"""The layout of a layer by its name and the names of its pieces. Raises LoadError where there is none."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint is quantized. `method` is its `quant_method`.

    What a layer's pieces are called shows that it is quantized: the configuration says how, and lists of
    layers that were left alone are not needed to read it.
    """

    method: str
    layout_of: LayoutOf


def quantization_settings(config: Config, folder: Path, overrides: Config) -> dict[str, object]:
    """The `quantization_config` of a model's folder under `--hf-overrides`; {} for plain weights.

    Older checkpoints of AutoGPTQ and AutoAWQ keep it in a file of its own.
    """
    found = table(config, "quantization_config") or table(config, "compression_config")
    for method, file in _OWN_FILES.items():
        if not found and (folder / file).is_file():
            found = {"quant_method": method, **read_json(folder / file)}
    return {**found, **table(overrides, "quantization_config")} if found else {}


def quantization(settings: Config) -> Quantization | None:
    """What a `quantization_config` says; None where it is empty.

    Raises LoadError for methods, and features of methods, that we lack.
    """
    if not settings:
        return None
    method = text(settings, "quant_method", "compressed-tensors" if "config_groups" in settings else None)
    read = _METHODS.get(method)
    if read is None:
        raise unsupported(
            f"The weights are quantized by {method!r}",
            f"Use {', '.join(_METHODS)} or an unquantized checkpoint.",
        )
    return Quantization(method, read(settings))


def _awq(settings: Config) -> LayoutOf:
    bits = integer(settings, "bits", integer(settings, "w_bit", 4))
    if bits != 4:
        raise unsupported(f"AWQ with {bits} bits")
    version = text(settings, "version", text(settings, "format", "gemm")).lower()
    if version != "gemm" or settings.get("backend") == "llm-awq":
        raise unsupported(
            f"AWQ's packing {'llm-awq' if version == 'gemm' else version}",
            "Use a checkpoint of the version gemm, which AutoAWQ writes by default.",
        )
    group = _group_size(settings, _group_size(settings, 128, "q_group_size"))
    layout = AwqLayout(group, flag(settings, "zero_point", True))
    return lambda name, pieces: layout


def _gptq(settings: Config) -> LayoutOf:
    kind = text(settings, "checkpoint_format", text(settings, "format", "gptq"))
    if kind not in ("gptq", "gptq_v2") or settings.get("is_marlin_format"):
        raise unsupported(f"GPTQ weights in the form of {kind if kind != 'gptq' else 'marlin'}")
    if text(settings, "pack_dtype", "int32") != "int32":
        raise unsupported(f"GPTQ weights packed in {settings['pack_dtype']}")
    usual = _gptq_layout(settings, kind)
    special = [
        (_pattern(layers.removeprefix("+:")), _gptq_layout({**settings, **changed}, kind))
        for layers, changed in table(settings, "dynamic").items()
        if not layers.startswith("-:") and isinstance(changed, Mapping)
    ]

    def layout_of(name: str, pieces: Collection[str]) -> Layout:
        return next((layout for layers, layout in special if layers.match(name)), usual)

    return layout_of


def _gptq_layout(settings: Config, kind: str) -> GptqLayout:
    bits = integer(settings, "bits", 4)
    if bits not in (4, 8):
        raise unsupported(f"GPTQ with {bits} bits", "Use a checkpoint of 4 or 8 bits.")
    return GptqLayout(
        bits=bits,
        group=_group_size(settings, 128),
        symmetric=flag(settings, "sym", True),
        act_order=flag(settings, "desc_act", False),
        zeros_less_one=kind == "gptq",
    )


def _fp8(settings: Config) -> LayoutOf:
    scheme = text(settings, "activation_scheme", "dynamic")
    if scheme not in ("static", "dynamic"):
        raise unsupported(f"fp8 with the activation_scheme {scheme!r}")
    if text(settings, "expert_dtype", "fp8") != "fp8":
        raise unsupported(f"fp8 with experts in {settings['expert_dtype']}")
    if text(settings, "fmt", "e4m3") != "e4m3":
        raise unsupported(f"fp8 weights in {settings['fmt']}", "Use a checkpoint of e4m3.")
    block = _block_shape(settings, "weight_block_size")

    def layout_of(name: str, pieces: Collection[str]) -> Layout:
        scale = "weight_scale_inv" if "weight_scale_inv" in pieces else "weight_scale"
        inputs = "activation_scale" if "activation_scale" in pieces else "input_scale"
        return ScaledLayout(True, scheme == "static", block, scale, inputs)

    return layout_of


def _compressed(settings: Config) -> LayoutOf:
    """Groups of layers, each with its own arguments."""
    sparsity = text(table(settings, "sparsity_config"), "format", "dense")
    if sparsity != "dense":
        raise unsupported(f"Weights with the sparsity {sparsity}")
    if settings.get("transform_config"):
        raise unsupported("Weights that want their activations rotated (transform_config)")
    groups = table(settings, "config_groups").items()
    targets = [target for name, group in groups for target in _targets(name, settings, group)]
    # The exact name of a layer, or a pattern, goes before a class of layers.
    targets.sort(key=lambda target: target[0] in _CLASS_NAMES)
    layers = [(_layers(target), layout) for target, layout in targets]

    def layout_of(name: str, pieces: Collection[str]) -> Layout:
        for pattern, layout in layers:
            if pattern.match(name):
                return layout
        raise LoadError(
            "BadCheckpoint",
            f"The layer {name} is quantized, and no group of config.json's quantization_config is for it.",
            hint="config.json and weights are of different models or versions: fetch both again.",
        )

    return layout_of


def _targets(name: str, settings: Config, group: object) -> list[tuple[str, Layout]]:
    """What a group of layers is for, each with its layout."""
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
    return [(target, layout) for target in texts(group, "targets")]


def _floats(weights: Config, inputs: Config) -> Layout:
    bits, strategy = integer(weights, "num_bits", 8), text(weights, "strategy", "tensor")
    if bits != 8:
        raise unsupported(f"compressed-tensors' floats of {bits} bits")
    if strategy in ("tensor", "channel"):
        return ScaledLayout(True, _static(inputs))
    if strategy == "block":
        return ScaledLayout(True, _static(inputs), _block_shape(weights, "block_structure"))
    if strategy == "group":
        return ScaledLayout(True, _static(inputs), (1, _group_size(weights, 128)))
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
    group = whole[strategy] if strategy in whole else _group_size(weights, 128)
    # Codes of fewer bits that are not packed lie in whole bytes.
    return PackedLayout(bits if packed else 8, group, symmetric, weights.get("actorder") == "group", packed)


def _static(inputs: Config) -> bool:
    """Whether activations have a symmetric scale that was measured; others are scaled token by token."""
    return bool(inputs) and not inputs.get("dynamic") and flag(inputs, "symmetric", True)


def _group_size(settings: Config, default: int, field: str = "group_size") -> int:
    """Weights that share a scale; -1 is the whole row. Raises LoadError for any other number below 1."""
    size = integer(settings, field, default)
    if size < 1 and size != -1:
        raise wrong(field, size, "a whole number above 0, or -1 for the whole row", _PLACE)
    return size


def _block_shape(settings: Config, field: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, or None where the field is missing. Raises LoadError."""
    block = integers(settings, field)
    if block and (len(block) != 2 or min(block) < 1):
        raise wrong(field, list(block), "two whole numbers above 0", _PLACE)
    return (block[0], block[1]) if block else None


def _layers(target: str) -> re.Pattern[str]:
    """Names of layers that a target of compressed-tensors is for: a class of them, a pattern or a name."""
    if target in _CLASS_NAMES:
        return re.compile("")
    return _pattern(target[3:] if target.startswith("re:") else re.escape(target) + r"\Z")


def _pattern(text: str) -> re.Pattern[str]:
    """A regular expression over layers' names. Raises LoadError where it is none."""
    try:
        return re.compile(text)
    except re.error as error:
        raise wrong("A pattern for layers", text, f"a regular expression ({error})", _PLACE) from None


_METHODS: Mapping[str, Callable[[Config], LayoutOf]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
}
