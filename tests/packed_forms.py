"""Models of counted weights in every stored form, and what their packed bytes hash to."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from quantize import quantize, recipe

from model.stepping import plan
from slipway.load.gguf.types import TYPES
from slipway.model.weights import Vector
from slipway.schemes.choice import Schemes
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import Threads
from tensor_files import save

STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
QUANTIZED: dict[str, dict[str, Any]] = {
    "awq": {},
    "gptq": {},
    "gptq-asym": {},
    "gptq-8bit": {"bits": 8},
    "gptq-act-order": {"act_order": True},
    "w4a16": {},
    "w8a8": {},
    "fp8": {},
    "fp8-block": {},
}
CONVERTED = ("fp8", "int8", "int4", "experts_int8")
BY_NAME = {kind.name: kind for kind in TYPES.values()}
SCALES = {
    **{key: {"d": 0} for key in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS")},
    **{key: {"d": 0} for key in ("IQ1_S", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ3_S", "IQ3_XXS")},
    **{key: {"d": 0, "m": 2} for key in ("Q4_1", "Q5_1")},
    **{key: {"d": 0, "dmin": 2} for key in ("Q4_K", "Q5_K")},
    "Q2_K": {"d": 80, "dmin": 82},
    "Q3_K": {"d": 108},
    "Q6_K": {"d": 208},
    "TQ1_0": {"d": 52},
    "TQ2_0": {"d": 64},
    **{key: {} for key in ("IQ1_M", "MXFP4", "NVFP4")},
}
"""Of GGUF's block types, where a block's fp16 scales begin, by ggml's name for them."""
EXPONENTS = {"MXFP4": 1, "NVFP4": 4}
"""Bytes at the beginning of a block that are nothing but exponents."""
GGUF = tuple(sorted({"F32", "F16", "BF16"} | set(SCALES)))
DENSE = {"architectures": ["LlamaForCausalLM"], "attention_bias": True}
MOE = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}


MOE_OF_GROUPS = {**MOE, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 128}
"""Whole groups of 32 columns."""


def counted(shape: tuple[int, ...], name: str) -> np.ndarray:
    """Numbers in fp32 between -0.25 and 0.25 that no release of any library will ever draw differently."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    place = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed) * np.uint64(2654435761)
    mixed = (place ^ (place >> np.uint64(15))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (((mixed >> np.uint64(40)).astype(np.float32) / np.float32(2**24) - 0.5) / 2).reshape(shape)


def shapes(kind: dict[str, Any], size: int) -> dict[str, tuple[int, ...]]:
    """Of every tensor: two layers, unless it says so four heads over two of keys, 128 tokens."""
    heads, kv_heads = kind.get("num_attention_heads", 4), kind.get("num_key_value_heads", 2)
    keys = size // heads * kv_heads
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (128, size),
        "model.norm.weight": (size,),
        "lm_head.weight": (128, size),
    }
    for number in range(2):
        layer = f"model.layers.{number}"
        for role, rows in (("q", size), ("k", keys), ("v", keys)):
            found[f"{layer}.self_attn.{role}_proj.weight"] = (rows, size)
            found[f"{layer}.self_attn.{role}_proj.bias"] = (rows,)
        found[f"{layer}.self_attn.o_proj.weight"] = (size, size)
        if "attention_bias" in kind:
            found[f"{layer}.self_attn.o_proj.bias"] = (size,)
        found[f"{layer}.input_layernorm.weight"] = found[f"{layer}.post_attention_layernorm.weight"] = (size,)
        mlps = {f"{layer}.mlp": inner(kind, size)}
        if "num_experts" in kind:
            experts, width = kind["num_experts"], kind["moe_intermediate_size"]
            found[f"{layer}.mlp.gate.weight"] = (experts, size)
            found[f"{layer}.mlp.shared_expert_gate.weight"] = (1, size)
            mlps = {f"{layer}.mlp.experts.{expert}": width for expert in range(experts)}
            mlps[f"{layer}.mlp.shared_expert"] = kind["shared_expert_intermediate_size"]
        for mlp, width in mlps.items():
            found[f"{mlp}.gate_proj.weight"] = found[f"{mlp}.up_proj.weight"] = (width, size)
            found[f"{mlp}.down_proj.weight"] = (size, width)
    return found


def inner(kind: dict[str, Any], size: int) -> int:
    return size if size > 64 else 96


def plain(folder: Path, stored: str, kind: dict[str, Any] = DENSE, size: int = 64) -> Path:
    """A checkpoint in safetensors."""
    folder.mkdir()
    config = {
        "hidden_size": size,
        "intermediate_size": inner(kind, size),
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": size // kind.get("num_attention_heads", 4),
        "vocab_size": 128,
        "max_position_embeddings": 256,
        **kind,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        name: counted(shape, name).astype(STORED[stored]) for name, shape in shapes(kind, size).items()
    }
    save(tensors, folder / "model.safetensors")
    return folder


def as_gguf(path: Path, name: str, model: dict[str, Any] = DENSE, *, near_one: bool = False) -> Path:
    """A file whose matrices are of one type: bytes that count, with finite scales.

    near_one  scales that are nothing but exponents are 1 or 2, so that sums are finite, too
    """
    kind = BY_NAME[name]
    architecture = gguf.MODEL_ARCH.QWEN2MOE if "num_experts" in model else gguf.MODEL_ARCH.LLAMA
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(128)
    if "num_experts" in model:
        writer.add_expert_count(model["num_experts"])
        writer.add_expert_used_count(model["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(model["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(model["shared_expert_intermediate_size"])
    names = gguf.get_tensor_name_map(architecture, 2)
    for full, shape in _of_all_experts(shapes(model, 256)).items():
        stem, _, suffix = full.rpartition(".")
        target = f"{names.get_name(stem)}.{suffix}"
        if len(shape) == 1:
            writer.add_tensor(target, counted(shape, full))
            continue
        if stem.endswith(("mlp.gate", "mlp.shared_expert_gate")):
            writer.add_tensor(target, counted(shape if shape[0] > 1 else shape[1:], full))
            continue
        raw = blocks(name, shape, full)
        if near_one and name in EXPONENTS:
            exponents = raw.reshape(-1, kind.block_bytes)[:, : EXPONENTS[name]]
            exponents[:] = exponents & 1 | 128
        writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _of_all_experts(found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """With the matrices of a layer's experts as one, [experts, n, k]."""
    stacked: dict[str, tuple[int, ...]] = {}
    for name, shape in found.items():
        together = re.sub(r"(experts)\.\d+", r"\1", name)
        stacked[together] = shape if together == name else (stacked.get(together, (0,))[0] + 1, *shape)
    return stacked


def blocks(name: str, shape: tuple[int, ...], seed: str) -> np.ndarray:
    """A matrix [n, bytes of a row] uint8."""
    kind, values = BY_NAME[name], counted(shape, seed)
    if name in ("F32", "F16"):
        return values.astype(np.float32 if name == "F32" else np.float16).view(np.uint8)
    if name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    count = math.prod(shape) // kind.block_size
    octets = (counted((count, kind.block_bytes), seed) * 1024).astype(np.int32).astype(np.uint8)
    for field, at in SCALES[name].items():
        scales = counted((count, 1), seed + field).astype(np.float16)
        octets[:, at : at + 2] = scales.view(np.uint8)
    if name == "IQ1_M":  # its scale lies in the top bits of four words
        octets.view("<u2")[:, -4:] &= np.uint16(0x3FFF)
    return octets.reshape(*shape[:-1], -1)


def finite_blocks(name: str, n: int, k: int) -> np.ndarray:
    """[n, bytes of a row] uint8, whose numbers are all finite, the smallest exponents among them."""
    rows = blocks(name, (n, k), name)
    if name == "MXFP4":
        rows.reshape(-1, 17)[:, 0] %= 250
    return rows


def sources() -> Iterator[tuple[str, Callable[[Path], Path], dict[str, Any]]]:
    """Each case: its name, what makes its model in a folder, and how that is served."""
    for stored in STORED:
        yield stored, lambda place, stored=stored: plain(place / "plain", stored), {}
    for method, options in QUANTIZED.items():
        kind = method.removesuffix("-8bit").removesuffix("-act-order")

        def make(place: Path, kind: str = kind, options: dict[str, Any] = options) -> Path:
            how = recipe(kind, **{"group": 32, **options})
            size = 192 if "block" in kind else 64  # of several blocks, the last of them cut
            return quantize(plain(place / "plain", "bfloat16", size=size), place / "quantized", how)

        yield method, make, {}
    for name in CONVERTED:
        for stored in STORED:

            def moe(place: Path, stored: str = stored) -> Path:
                return plain(place / "plain", stored, MOE)

            yield f"{stored} made {name}", moe, {"quantization": name}
    for name in GGUF:
        yield f"GGUF {name}", lambda place, name=name: as_gguf(place / "model.gguf", name), {}


CASES = {
    f"{name} in {dtype}": (make, {**settings, "dtype": dtype})
    for name, make, settings in sources()
    for dtype in ("bfloat16", "float32")
}


def digest(model: Path, settings: dict[str, Any], threads: int = 2) -> str:
    """Of all that is held of the weights, in order."""
    found = plan(model, **settings)
    pool = Threads(threads)
    weights = found.route.weights(found, Schemes(found.element, pool))
    hashed = hashlib.sha256()
    for held in _held(weights):
        hashed.update(held)
    return hashed.hexdigest()[:32]


def _held(weights: object) -> Iterator[bytes]:
    if isinstance(weights, Vector):
        yield bytes(np.asarray(weights.values))
    elif isinstance(weights, FusedLinear):
        if weights.bias is not None:
            yield bytes(np.asarray(weights.bias))
        for part in weights.parts:
            yield ctypes.string_at(part.packed.memory.address, part.packed.nbytes)
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from _held(getattr(weights, field.name))
    elif isinstance(weights, dict):
        for name in sorted(weights):
            yield from _held(weights[name])
    elif isinstance(weights, tuple):
        for part in weights:
            yield from _held(part)
