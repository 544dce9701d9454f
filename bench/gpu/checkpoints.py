"""Checkpoints of random weights, written where they are measured: nothing of that size travels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from slipway.model.registry import families
from slipway.model.roles import expected_shapes

SHARD_BYTES = 4 << 30
SPREAD = 0.02
"""Standard deviation of weights."""
CODES_SPREAD = 4.6
"""The same of four bits of which each is as likely as not."""


def write_plain(place: Path, device: torch.device) -> None:
    """Weights in bf16 for the `config.json` in `place`, as safetensors in shards, drawn on `device`."""
    torch.manual_seed(0)
    _write(place, ((name, _plain(shape, device)) for name, shape in _shapes(place).items()))


def write_awq(place: Path, device: torch.device) -> None:
    """The same with linear layers in AutoAWQ's four bits, and a `config.json` that says so."""
    torch.manual_seed(0)
    shapes = _shapes(place)
    group = awq_config(place)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, shape in shapes.items():
            if not _is_linear(name):
                yield name, _plain(shape, device)
                continue
            n, k = shape
            layer = name.removesuffix(".weight")
            yield f"{layer}.qweight", _words((k, n // 8), device)
            yield f"{layer}.qzeros", torch.full((k // group, n // 8), 0x77777777, dtype=torch.int32)
            scales = torch.full((k // group, n), SPREAD / CODES_SPREAD, dtype=torch.float16)
            yield f"{layer}.scales", scales

    _write(place, tensors())


def awq_config(place: Path) -> int:
    """Have `config.json` say so alone. Returns how many weights share a scale."""
    layers = [shape for name, shape in _shapes(place).items() if _is_linear(name)]
    group = 128 if all(k % 128 == 0 for _, k in layers) else 32
    config = json.loads((place / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
    }
    (place / "config.json").write_text(json.dumps(config, indent=1))
    return group


def _shapes(place: Path) -> dict[str, tuple[int, ...]]:
    config = json.loads((place / "config.json").read_text())
    family = families()[config["architectures"][0]]
    return expected_shapes(family.spec(config), family)


def _is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def _plain(shape: tuple[int, ...], device: torch.device) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.randn(shape, dtype=torch.bfloat16, device=device) * SPREAD


def _words(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device)


def _write(place: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    shard: dict[str, Tensor] = {}
    index: dict[str, str] = {}

    def flush() -> None:
        file = f"model-{len(set(index.values())) + 1:05}.safetensors"
        save_file(shard, place / file)
        index.update(dict.fromkeys(shard, file))
        shard.clear()

    for name, tensor in tensors:
        shard[name] = tensor.cpu()
        if sum(held.nbytes for held in shard.values()) > SHARD_BYTES:
            flush()
    flush()
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
