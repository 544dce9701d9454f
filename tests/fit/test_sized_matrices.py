"""Matrices that are counted take what a device's schemes allocate, by torch's own count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from planned_needs import configured
from quantize import quantize, recipe
from torch import Tensor

from packed_forms import as_gguf
from slipway.fit.describe import opened
from slipway.fit.sized import SizedSchemes
from slipway.load.arrays import DType
from slipway.model.shard import Sharded
from slipway.model.weights import Builder
from slipway.worker.device.feed_forward import with_stacked_experts
from slipway.worker.device.offload import move
from slipway.worker.device.products import move_matrices
from slipway.worker.device.schemes import DeviceSchemes, device_arch
from slipway.worker.device.transfer import Transfer
from slipway.worker.drafts.plan import plan_with_draft
from slipway.worker.native import Native

STORED = ("awq", "gptq", "w4a16", "w8a8", "fp8", "fp8-block")
CONVERTED = ("fp8", "int8", "int4", "experts_int8")
MODELS = pytest.mark.parametrize("model", ["llama", "qwen2_moe"])
MASKS = 2e-4
"""A word for each packed matrix, of which experts that are stacked have one together."""
NOWHERE = torch.device("meta")


def counted_and_allocated(model: Path, *arguments: str) -> tuple[int, int]:
    """Bytes of all matrices: what is counted, and what a device's schemes allocate for them."""
    config = configured(model, *arguments)
    _, plan = plan_with_draft(opened(config), config, lambda *_: None, arch=device_arch)
    assert isinstance(plan.route, Native)
    part = plan.route.part(plan)
    schemes = SizedSchemes(plan.element, device_arch)
    plan.route.unread(part, schemes)
    return sum(schemes.counted), allocated(part, plan.element)


def allocated(part: Sharded, dtype: DType) -> int:
    builder = Builder(part.spec, DeviceSchemes(dtype, Transfer(NOWHERE)), part.forms)
    weights = builder.build()
    builder.finish()
    sizes: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    for layer in weights.layers:
        move(layer, layer.mlp and with_stacked_experts(layer.mlp, NOWHERE), count)
    move_matrices({weights.embedding, weights.head}, count)
    return sum(sizes)


@MODELS
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_plain_ones(tiny_models: Callable[[str], Path], model: str, dtype: str) -> None:
    counted, made = counted_and_allocated(tiny_models(model), "--dtype", dtype)
    assert counted == made


@MODELS
@pytest.mark.parametrize("method", CONVERTED)
def test_those_that_a_start_quantizes(tiny_models: Callable[[str], Path], model: str, method: str) -> None:
    counted, made = counted_and_allocated(tiny_models(model), "--quantization", method)
    assert counted == pytest.approx(made, rel=MASKS)


@MODELS
@pytest.mark.parametrize("method", STORED)
def test_those_that_are_stored_quantized(
    tiny_models: Callable[[str], Path], tmp_path: Path, model: str, method: str
) -> None:
    folder = quantize(tiny_models(model), tmp_path / method, recipe(method, group=16))
    counted, made = counted_and_allocated(folder)
    assert counted == made


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q8_0"])
def test_those_of_gguf(tmp_path: Path, kind: str) -> None:
    counted, made = counted_and_allocated(as_gguf(tmp_path / "model.gguf", kind))
    assert counted == made
