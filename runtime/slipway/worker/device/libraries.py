"""Attention by libraries that may be installed beside us: flash-attn and FlashInfer."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slipway.model.spec import Attention
from slipway.worker.attention_libraries import LIBRARIES
from slipway.worker.device.attention import refused, unscaled
from slipway.worker.device.batch import Batch
from slipway.worker.device.pages import LayerCache

_WORKSPACE_BYTES = 256 << 20


class FlashAttention:
    """flash-attn's kernel over keys gathered from their pages: its own pages must hold 256 tokens or more."""

    graphs = False

    def __init__(self, library: Any) -> None:
        self._call = library.flash_attn_varlen_func

    def attend(
        self, q: Tensor, cache: LayerCache, batch: Batch, out: Tensor, spec: Attention, sinks: Tensor | None
    ) -> None:
        ends = torch.cumsum(batch.lengths, 0, dtype=torch.int32)
        keys, values = (
            _gathered(part, batch.tables[cache.group], batch, q.dtype, scale)
            for part, scale in ((cache.keys, cache.key_scale), (cache.values, cache.value_scale))
        )
        out.copy_(
            self._call(
                q,
                keys,
                values,
                cu_seqlens_q=batch.query_start,
                cu_seqlens_k=torch.nn.functional.pad(ends, (1, 0)),
                max_seqlen_q=batch.max_query,
                max_seqlen_k=batch.max_length,
                softmax_scale=spec.scale,
                causal=True,
                window_size=(spec.window - 1, 0) if spec.window else (-1, -1),
                softcap=spec.softcap,
            )
        )


class FlashInferAttention:
    """FlashInfer's prefill kernel, which takes requests of one query too, over our pages as they are."""

    graphs = False

    def __init__(self, library: Any, device: torch.device) -> None:
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        self._planned: tuple[Batch, int, Attention] | None = None

    def attend(
        self, q: Tensor, cache: LayerCache, batch: Batch, out: Tensor, spec: Attention, sinks: Tensor | None
    ) -> None:
        planned = self._planned
        # The batch itself is kept: once it has gone, the next one may have its id.
        if planned is None or planned[0] is not batch or planned[1:] != (cache.group, spec):
            self._plan(q, cache, batch, spec)
            self._planned = batch, cache.group, spec
        scales = {}
        if cache.key_scale is not None and cache.value_scale is not None:
            scales = {"k_scale": float(cache.key_scale), "v_scale": float(cache.value_scale)}
        self._wrapper.run(q, (cache.keys, cache.values), out=out, **scales)

    def _plan(self, q: Tensor, cache: LayerCache, batch: Batch, spec: Attention) -> None:
        block, table = cache.keys.shape[2], batch.tables[cache.group]
        blocks = (batch.lengths + block - 1) // block  # [requests]
        number = torch.arange(table.shape[1], device=table.device)
        pages = table[batch.slots.long()]  # [requests, max_blocks]
        used = number < blocks[:, None]
        # Blocks that left the window have no page; the kernel masks what it reads of any other instead.
        indices = pages[used].clamp(min=0)
        starts = torch.nn.functional.pad(torch.cumsum(blocks, 0, dtype=torch.int32), (1, 0))
        self._wrapper.plan(
            batch.query_start,
            starts,
            indices,
            (batch.lengths - 1) % block + 1,
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            block,
            causal=True,
            sm_scale=spec.scale,
            window_left=spec.window - 1 if spec.window else -1,
            logits_soft_cap=spec.softcap or None,
            q_data_type=q.dtype,
            kv_data_type=cache.keys.dtype,
        )


def library_backend(
    name: str, layers: Sequence[Attention], device: torch.device
) -> FlashAttention | FlashInferAttention:
    """FLASH_ATTN or FLASHINFER. Raises LoadError where the library does not work, or lacks what is needed."""
    module, package = LIBRARIES[name]
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        raise refused(
            name,
            f"needs the package {package}, which cannot be imported: {error}.",
            f"Mend or remove {package}, or use TRITON, which needs nothing more.",
        ) from None
    if any(layer.sinks or layer.alibi for layer in layers):
        raise refused(name, "is not told of attention sinks and ALiBi, and the model has some.")
    largest = max(layer.head_dim for layer in layers)
    if largest > 256:
        raise refused(name, f"computes heads of up to 256 numbers; the model's have {largest}.")
    return FlashAttention(library) if name == "FLASH_ATTN" else FlashInferAttention(library, device)


def _gathered(part: Tensor, table: Tensor, batch: Batch, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Keys or values of all requests, one after another: [positions, kv_heads, head_dim]."""
    block = part.shape[2]
    pages = table[batch.slots.long()].clamp(min=0).long()  # [requests, max_blocks]
    position = torch.arange(batch.max_length, device=table.device)
    known = position < batch.lengths[:, None]
    request = torch.arange(len(pages), device=table.device)[:, None].expand_as(known)[known]
    at = position.expand_as(known)[known]
    return unscaled(part[pages[request, at // block], :, at % block], scale, dtype)
