"""What attention libraries are told; they themselves need a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from slipway.model.spec import Attention
from slipway.worker.device.batch import Batch
from slipway.worker.device.libraries import FlashInferAttention
from slipway.worker.device.pages import LayerCache

CPU = torch.device("cpu")
LAYER = Attention(heads=2, kv_heads=1, head_dim=8, rope=None, scale=0.5)
TABLE = torch.tensor([[3, 5]], dtype=torch.int32)


class Noted:
    """Notes what FlashInfer's wrapper would be asked."""

    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        self.plans: list[list[int]] = []
        self.scales: list[dict[str, float]] = []

    def plan(self, query_start: object, starts: object, pages: torch.Tensor, *rest: object, **more) -> None:
        self.plans.append(pages.tolist())

    def run(self, q: torch.Tensor, cache: object, *, out: torch.Tensor, **scales: float) -> None:
        self.scales.append(scales)


def batch(length: int) -> Batch:
    one = torch.zeros(1, dtype=torch.int32)
    start, tables = torch.tensor([0, 1]), TABLE[None]
    return Batch(one, one, one, one, start, one + length, *[one[None]] * 3, tables, one, 1, 1, length)


def cache(*scales: float) -> LayerCache:
    pages = torch.zeros(6, 1, 4, 8)
    return LayerCache(pages, pages, 0, *(torch.tensor([scale]) for scale in scales))


def asked(batches: list[int], layers: int = 1, *scales: float) -> Noted:
    """After steps of these lengths, each of which goes when the next one comes."""
    attention = FlashInferAttention(SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Noted), CPU)
    q = torch.zeros(1, 2, 8)
    for length in batches:
        step = batch(length)
        for _ in range(layers):
            attention.attend(q, cache(*scales), step, torch.empty_like(q), LAYER, None)
        del step
    return attention._wrapper


def test_each_step_is_planned_once_for_all_layers_that_are_alike() -> None:
    assert asked([4, 5, 8, 3], layers=3).plans == [[3], [3, 5], [3, 5], [3]]


def test_the_scales_of_a_narrow_cache_reach_flashinfer() -> None:
    assert asked([4], 1, 0.5, 0.25).scales == [{"k_scale": 0.5, "v_scale": 0.25}]
    assert asked([4]).scales == [{}]
