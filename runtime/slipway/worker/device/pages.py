"""The pool of KV pages on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.quantized.kv_scales import KVScales
from slipway.model.kv import KVLayout
from slipway.model.spec import Attention


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, in every page of its group.

    keys, values  [pages, kv_heads, block, head_dim]  views of the pool
    group         whose block table names the pages
    key_scale, value_scale  [1] fp32: what stored numbers are multiplied by, or None for 1; graphs read them
                            where they lie, so that a step may find them
    """

    keys: Tensor
    values: Tensor
    group: int
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None


class DevicePages:
    """Equal pages; within a page each layer has its keys, then its values, head by head."""

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
        scales: KVScales,
    ) -> None:
        self.num_pages = num_pages
        self._layout = layout
        self._dtype = dtype
        self._scales = scales
        self.pool = torch.zeros(num_pages * layout.page_bytes, dtype=torch.uint8, device=device)

    @property
    def rows(self) -> Tensor:
        """[pages, page_bytes] uint8"""
        return self.pool.view(self.num_pages, self._layout.page_bytes)

    def layers(self, attentions: Sequence[Attention]) -> list[LayerCache]:
        return [self._layer(number, one.kv_heads, one.head_dim) for number, one in enumerate(attentions)]

    def _layer(self, number: int, kv_heads: int, head_dim: int) -> LayerCache:
        group, index = self._layout.layer_place[number]
        block = self._layout.groups[group].block_size
        page = self._layout.page_bytes // self._dtype.itemsize
        half = kv_heads * block * head_dim
        start = index * 2 * half
        pool = self.pool.view(self._dtype)
        shape = (self.num_pages, kv_heads, block, head_dim)
        strides = (page, block * head_dim, head_dim, 1)
        keys, values = (pool.as_strided(shape, strides, start + offset) for offset in (0, half))
        if number not in self._scales:
            return LayerCache(keys, values, group)
        scales = torch.tensor(self._scales[number], device=pool.device)
        return LayerCache(keys, values, group, scales[:1], scales[1:])
