"""Writes quantized copies of a model's folder, by rounding to nearest, in the formats that others write.

    python bench/quantize.py MODEL_FOLDER OUTPUT_FOLDER gptq --bits 4 --group 32 --act-order

It shows what a format and a scheme cost, not how well a model can be quantized: nothing is calibrated.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

Array = np.ndarray
E4M3 = ml_dtypes.float8_e4m3fn
LARGEST = 448.0
BLOCK = 128
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The columns of a word, from the lowest bits up."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """w = scales · (codes - zeros), column by column in the group that `groups` gives it.

    codes   [n, k]           0 to 2^bits - 1
    scales  [n, k / group]   fp16
    zeros   [n, k / group]
    groups  [k]
    """

    bits: int
    codes: Array
    scales: Array
    zeros: Array
    groups: Array

    def weights(self) -> Array:
        """[n, k] fp32"""
        codes, zeros, scales = (one.astype(np.float32) for one in (self.codes, self.zeros, self.scales))
        return (codes - zeros[:, self.groups]) * scales[:, self.groups]


def rounded(
    matrix: Array, bits: int, group: int, *, symmetric: bool = False, act_order: bool = False
) -> Rounded:
    """matrix [n, k]; group -1 is the whole row. With act-order, columns are grouped by their norms."""
    n, k = matrix.shape
    size = k if group == -1 else group
    numbers = matrix.astype(np.float32)
    order = (-np.linalg.norm(numbers, axis=0)).argsort(kind="stable") if act_order else np.arange(k)
    groups = np.empty(k, np.int32)
    groups[order] = np.arange(k, dtype=np.int32) // size
    parts = numbers[:, order].reshape(n, -1, size)  # [n, k / size, size]
    top = 2**bits - 1
    if symmetric:
        scales = np.abs(parts).max(2) / (top // 2)
        zeros = np.full_like(scales, (top + 1) // 2)
    else:
        low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
        scales = (high - low) / top
        zeros = (-low / np.maximum(scales, 1e-8)).round()
    scales = np.maximum(scales, 1e-7).astype(np.float16)  # [n, k / size]
    codes = (parts / scales.astype(np.float32)[..., None] + zeros[..., None]).round().clip(0, top)
    restored = np.empty((n, k), np.int32)
    restored[:, order] = codes.reshape(n, k)
    return Rounded(bits, restored, scales, zeros.astype(np.int32), groups)


def words(codes: Array, bits: int) -> Array:
    """codes [rows, columns] → [rows, ⌈columns · bits / 32⌉] int32, the lowest bits first."""
    each = 32 // bits
    padded = np.pad(codes.astype(np.uint32), ((0, 0), (0, -codes.shape[1] % each)))
    shifted = padded.reshape(len(codes), -1, each) << (np.arange(each, dtype=np.uint32) * bits)
    return np.bitwise_or.reduce(shifted, axis=-1).view(np.int32)


def awq(quantized: Rounded) -> dict[str, Array]:
    """AutoAWQ's gemm: columns of the output in words, in its order."""

    def packed(codes: Array) -> Array:  # [rows, n]
        return words(codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER].reshape(codes.shape), 4)

    return {
        "qweight": packed(quantized.codes.T),
        "qzeros": packed(quantized.zeros.T),
        "scales": quantized.scales.T,
    }


def gptq(quantized: Rounded, *, v2: bool = False) -> dict[str, Array]:
    """AutoGPTQ's: rows of the input in words."""
    bits = quantized.bits
    zeros = quantized.zeros if v2 else (quantized.zeros - 1) % 2**bits
    return {
        "qweight": words(quantized.codes, bits).T,
        "qzeros": words(zeros.T, bits),
        "scales": quantized.scales.T,
        "g_idx": quantized.groups,
    }


def packed(quantized: Rounded, *, symmetric: bool, act_order: bool = False) -> dict[str, Array]:
    """compressed-tensors' pack-quantized."""
    pieces = {
        "weight_packed": words(quantized.codes, quantized.bits),
        "weight_scale": quantized.scales,
        "weight_shape": np.array(quantized.codes.shape),
    }
    if not symmetric:
        pieces["weight_zero_point"] = words(quantized.zeros.T, quantized.bits).T
    if act_order:
        pieces["weight_g_idx"] = quantized.groups
    return pieces


def int8(matrix: Array) -> dict[str, Array]:
    """compressed-tensors' int-quantized, a scale for each row."""
    numbers = matrix.astype(np.float32)
    scales = np.maximum(np.abs(numbers).max(1, keepdims=True), 1e-7) / 127
    return {"weight": (numbers / scales).round().astype(np.int8), "weight_scale": scales}


def fp8(matrix: Array, by: str) -> dict[str, Array]:
    """A scale for the whole `tensor`, each `row`, or each `block` of 128 × 128."""
    n, k = matrix.shape
    rows, columns = {"tensor": (n, k), "row": (1, k), "block": (BLOCK, BLOCK)}[by]
    padded = np.pad(matrix.astype(np.float32), ((0, -n % rows), (0, -k % columns)))
    parts = padded.reshape(-(-n // rows), rows, -(-k // columns), columns)
    scales = np.maximum(np.abs(parts).max((1, 3)), 1e-7) / LARGEST  # [⌈n / rows⌉, ⌈k / columns⌉]
    values = (parts / scales[:, None, :, None]).reshape(padded.shape)[:n, :k]
    pieces = {"weight": values.clip(-LARGEST, LARGEST).astype(E4M3)}
    if by == "block":
        return {**pieces, "weight_scale_inv": scales}
    return {**pieces, "weight_scale": scales.reshape(()) if by == "tensor" else scales}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A way to quantize: what becomes of a matrix, and what config.json says of it."""

    pack: Callable[[Array], dict[str, Array]]
    config: Mapping[str, object]


def recipe(method: str, bits: int = 4, group: int = 128, *, act_order: bool = False) -> Recipe:
    """method: awq, gptq, gptq-asym, w4a16, w8a8, fp8, fp8-block."""
    match method:
        case "awq":
            config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
            return Recipe(lambda m: awq(rounded(m, 4, group)), {**config, "version": "gemm"})
        case "gptq" | "gptq-asym":
            symmetric = method == "gptq"
            config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric}
            return Recipe(
                lambda m: gptq(rounded(m, bits, group, symmetric=symmetric, act_order=act_order)),
                {**config, "desc_act": act_order, "checkpoint_format": "gptq"},
            )
        case "w4a16":
            weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group}
            return Recipe(
                lambda m: packed(rounded(m, bits, group, symmetric=True), symmetric=True),
                _compressed("pack-quantized", {**weights, "symmetric": True}, None),
            )
        case "w8a8":
            weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
            inputs = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
            return Recipe(int8, _compressed("int-quantized", weights, inputs))
        case "fp8":
            return Recipe(lambda m: fp8(m, "tensor"), {"quant_method": "fp8", "activation_scheme": "dynamic"})
        case "fp8-block":
            config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
            return Recipe(lambda m: fp8(m, "block"), {**config, "weight_block_size": [BLOCK, BLOCK]})
    raise SystemExit(f"{method} is none of awq, gptq, gptq-asym, w4a16, w8a8, fp8 and fp8-block.")


def _compressed(
    form: str, weights: Mapping[str, object], inputs: Mapping[str, object] | None
) -> Mapping[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def quantize(source: Path, target: Path, how: Recipe) -> Path:
    """Write `source`, a folder with safetensors, to `target` with its linear layers quantized."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".model", ".txt") and not file.name.endswith("index.json"):
            shutil.copy(file, target)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = how.config
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for file in sorted(source.glob("*.safetensors")):
        tensors = dict(_quantized(load_file(file), how))
        save_file(tensors, target / file.name, metadata={"format": "pt"})
    return target


def _quantized(tensors: Mapping[str, Array], how: Recipe) -> Iterator[tuple[str, Array]]:
    for name, weights in tensors.items():
        layer = name.removesuffix(".weight")
        if weights.ndim == 2 and layer.endswith(("_proj", "fc1", "fc2")):
            for piece, stored in how.pack(weights).items():
                yield f"{layer}.{piece}", np.asarray(stored, order="C")  # the file is written as memory lies
        else:
            yield name, weights


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("method")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--act-order", action="store_true")
    arguments = parser.parse_args()
    how = recipe(arguments.method, arguments.bits, arguments.group, act_order=arguments.act_order)
    print(quantize(arguments.source, arguments.target, how))


if __name__ == "__main__":
    main()
