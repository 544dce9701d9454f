"""Attention over pages on the device, by what `--attention-backend` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from slipway.load.errors import LoadError
from slipway.model.spec import Attention
from slipway.worker.attention_libraries import missing_package
from slipway.worker.device.batch import Batch
from slipway.worker.device.pages import LayerCache
from slipway_kernels.attention import paged_attention, workspace


class AttentionBackend(Protocol):
    """Reads the keys and values that `rope_and_store` has written."""

    graphs: bool
    """Whether its calls can be captured in a CUDA graph."""

    def attend(
        self, q: Tensor, cache: LayerCache, batch: Batch, out: Tensor, spec: Attention, sinks: Tensor | None
    ) -> None:
        """out = softmax(scale · q · Kᵀ) · V for every row.

        q, out  [rows, heads, head_dim]   sinks  [heads] fp32, of layers that have them
        """


class TritonAttention:
    """Our kernels: split over keys where requests have few queries, large tiles where they have many."""

    graphs = True

    def __init__(
        self,
        layers: Sequence[Attention],
        max_requests: int,
        each: int,
        max_length: int,
        device: torch.device,
    ) -> None:
        """As of `backend`."""
        self._processors = 132
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        shapes = {(one.heads, one.kv_heads, one.head_dim) for one in layers}
        self._slopes = {one.heads: torch.tensor(one.slopes, device=device) for one in layers if one.alibi}
        self._workspaces = {
            shape: workspace(max_requests, *shape, max_length, device, self._processors, each)
            for shape in shapes
        }

    def attend(
        self,
        q: Tensor,
        cache: LayerCache,
        batch: Batch,
        out: Tensor,
        spec: Attention,
        sinks: Tensor | None,
        first: int = 0,
    ) -> None:
        """first: position of the first key that others than its own query see"""
        paged_attention(
            q,
            cache.keys,
            cache.values,
            batch.tables[cache.group],
            batch.slots,
            batch.query_start,
            batch.lengths,
            out,
            scale=spec.scale,
            window=spec.window,
            first=first,
            softcap=spec.softcap,
            slopes=self._slopes[spec.heads] if spec.alibi else None,
            sinks=sinks,
            key_scale=cache.key_scale,
            value_scale=cache.value_scale,
            num_decodes=batch.num_decodes,
            decode_queries=batch.draw_rows.shape[1],
            max_query=batch.max_query,
            max_length=batch.max_length,
            workspace=self._workspaces[spec.heads, spec.kv_heads, spec.head_dim],
            sms=self._processors,
        )


class SdpaAttention:
    """torch's scaled_dot_product_attention, request by request on gathered keys: slow, and easy to trust."""

    graphs = False

    def attend(
        self, q: Tensor, cache: LayerCache, batch: Batch, out: Tensor, spec: Attention, sinks: Tensor | None
    ) -> None:
        starts, slots, lengths = batch.query_start.tolist(), batch.slots.tolist(), batch.lengths.tolist()
        for slot, length, begin, end in zip(slots, lengths, starts, starts[1:], strict=False):
            if slot < 0 or begin == end:
                continue
            first = max(0, length - (end - begin) - spec.window + 1) if spec.window else 0
            pages = batch.tables[cache.group, slot]
            out[begin:end] = self._one(q[begin:end], cache, pages, first, length, spec, sinks)

    def _one(
        self,
        q: Tensor,
        cache: LayerCache,
        pages: Tensor,
        first: int,
        length: int,
        spec: Attention,
        sinks: Tensor | None,
    ) -> Tensor:
        """q [queries, heads, head_dim], the last positions of [first, length)"""
        block = cache.keys.shape[2]
        begin, end = first // block, -(-length // block)
        which = pages[begin:end].long()
        known = slice(first - begin * block, length - begin * block)
        keys, values = (
            unscaled(part[which].transpose(0, 1).flatten(1, 2)[:, known], scale, q.dtype)
            for part, scale in ((cache.keys, cache.key_scale), (cache.values, cache.value_scale))
        )  # [kv_heads, positions, head_dim]
        query = torch.arange(length - len(q), length, device=q.device)[:, None]
        distance = query - torch.arange(first, length, device=q.device)  # [queries, positions]
        seen = distance >= 0
        if spec.window:
            seen &= distance < spec.window
        if spec.softcap or spec.alibi or sinks is not None:
            return _written_out(q, keys, values, distance, seen, spec, sinks)
        y = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), keys, values, attn_mask=seen, scale=spec.scale, enable_gqa=True
        )
        return y.transpose(0, 1)


NewBackend = Callable[[Sequence[Attention]], AttentionBackend]
"""Makes the backend for layers that ask this of attention."""


def unscaled(stored: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Keys or values of a cache as they were before a `scale` [1] divided them."""
    return stored.to(dtype) if scale is None else (stored.to(dtype).float() * scale).to(dtype)


def _written_out(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    distance: Tensor,
    seen: Tensor,
    spec: Attention,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with what torch's function lacks: soft-capped scores, slopes, sinks."""
    group = spec.heads // spec.kv_heads
    keys, values = (part.repeat_interleave(group, 0).float() for part in (keys, values))
    scores = torch.einsum("qhd,hkd->hqk", q.float(), keys) * spec.scale
    if spec.softcap:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if spec.alibi:
        scores = scores - torch.tensor(spec.slopes, device=q.device)[:, None, None] * distance
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, len(q), 1)), -1)
    chances = scores.softmax(-1)[..., : keys.shape[1]]
    return torch.einsum("hqk,hkd->qhd", chances, values).to(q.dtype)


def refused(name: str, why: str, hint: str = "Use TRITON.") -> LoadError:
    message = f"--attention-backend {name} {why}"
    return LoadError("UnsupportedFormat", message, hint=hint, argument="attention_backend")


def backend(
    name: str,
    layers: Sequence[Attention],
    max_requests: int,
    each: int,
    max_length: int,
    device: torch.device,
) -> AttentionBackend:
    """What `--attention-backend` names. Raises LoadError where it cannot serve here.

    layers        of the model
    max_requests  of a step, and `each` the rows of one that computes no prompt
    max_length    longest context
    """
    if name in ("auto", "TRITON") or missing_package(name):
        return TritonAttention(layers, max_requests, each, max_length, device)
    if name == "TORCH_SDPA":
        return SdpaAttention()
    if name == "CPU":
        raise refused(name, "computes on a CPU, and --device is cuda.", "Use TRITON, or --device cpu.")
    from slipway.worker.device.libraries import library_backend

    return library_backend(name, layers, device)
