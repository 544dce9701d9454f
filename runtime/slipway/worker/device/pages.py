"""The pool of KV pages on the device."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.quantized.kv_scales import KVScales
from slipway.model.kv import KVLayout
from slipway.model.spec import Attention
from slipway.worker.device.batch import Batch


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

    def find_scales(self, keys: Tensor, values: Tensor, batch: Batch) -> None:
        """The scales become the largest finite magnitude of the step's keys and values over their divisors.

        keys, values  [rows, kv_heads, head_dim]  as they are stored: keys rotated. Padding does not count
        A scale stays where all numbers are 0. The host does not wait for any of it. Does nothing where the
        batch has no divisors, or the cache no scales.
        """
        if batch.kv_divisors is None or self.key_scale is None or self.value_scale is None:
            return
        pairs = (self.key_scale, keys), (self.value_scale, values)
        for (scale, rows), divisor in zip(pairs, batch.kv_divisors, strict=True):
            # Infinities and NaN would spoil all that is ever stored; what lies in padding may be anything.
            largest = rows.abs().nan_to_num(0.0, posinf=0.0).amax((1, 2))  # [rows]
            found = largest.masked_fill(batch.row_slots < 0, 0.0).amax().float() / divisor
            scale.copy_(torch.where(found >= torch.finfo(torch.float32).tiny, found, scale))


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
        self._kept: dict[int, Tensor] = {}
        self.pool = torch.zeros(num_pages * layout.page_bytes, dtype=torch.uint8, device=device)

    def sharing(self, layout: KVLayout) -> DevicePages:
        """The same pages as the layers of another model see them, to which this layout deals its own part."""
        other = copy(self)
        other._layout, other._scales, other._kept = layout, {}, {}
        return other

    def release(self) -> None:
        """Give back their memory; views of it stay, and may not be used until it is taken again."""
        self.pool.untyped_storage().resize_(0)

    def take(self) -> None:
        """Have the memory again, all of it 0. Raises torch.OutOfMemoryError."""
        self.pool.untyped_storage().resize_(self.pool.nbytes)
        self.pool.zero_()

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
        if number not in self._kept:  # a decoder that is read again goes on with what a step has found
            self._kept[number] = torch.tensor(self._scales[number], device=pool.device)
        scales = self._kept[number]
        return LayerCache(keys, values, group, scales[:1], scales[1:])
