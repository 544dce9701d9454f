"""What a model's `quantization_config` says: which layers are quantized, and how each is stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.load.config import Config, flag, integer, table, text
from slipway.load.folder import read_json
from slipway.load.quantized.awq import AwqLayout
from slipway.load.quantized.compressed_config import compressed
from slipway.load.quantized.fields import block_shape, group_size, pattern
from slipway.load.quantized.gptq import GptqLayout
from slipway.load.quantized.layout import Layout, unsupported
from slipway.load.quantized.scaled import ScaledLayout

_OWN_FILES = {"gptq": "quantize_config.json", "awq": "quant_config.json"}

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
    group = group_size(settings, group_size(settings, 128, "q_group_size"))
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
        (pattern(layers.removeprefix("+:")), _gptq_layout({**settings, **changed}, kind))
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
        group=group_size(settings, 128),
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
    block = block_shape(settings, "weight_block_size")

    def layout_of(name: str, pieces: Collection[str]) -> Layout:
        scale = "weight_scale_inv" if "weight_scale_inv" in pieces else "weight_scale"
        inputs = "activation_scale" if "activation_scale" in pieces else "input_scale"
        return ScaledLayout(True, scheme == "static", block, scale, inputs)

    return layout_of


_METHODS: Mapping[str, Callable[[Config], LayoutOf]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": compressed,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
}
