"""The scales of an fp8 KV cache, found in the first step where a checkpoint has none."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway.worker.device.batch import Batch
from slipway.worker.device.pages import LayerCache


def find_scales(cache: LayerCache, keys: Tensor, values: Tensor, batch: Batch) -> None:
    """A layer's scales become the largest finite magnitude of the step's keys and values over their divisors.

    keys, values  [rows, kv_heads, head_dim]  as they are stored: keys rotated. Padding does not count
    A scale stays where all numbers are 0. The host does not wait for any of it. Does nothing where the batch
    has no divisors, or the cache no scales.
    """
    if batch.kv_divisors is None or cache.key_scale is None or cache.value_scale is None:
        return
    pairs = (cache.key_scale, keys), (cache.value_scale, values)
    for (scale, rows), divisor in zip(pairs, batch.kv_divisors, strict=True):
        # Infinities and NaN would spoil all that is ever stored; what lies in padding may be anything.
        largest = rows.abs().nan_to_num(0.0, posinf=0.0).amax((1, 2))  # [rows]
        found = largest.masked_fill(batch.row_slots < 0, 0.0).amax().float() / divisor
        scale.copy_(torch.where(found >= torch.finfo(torch.float32).tiny, found, scale))
