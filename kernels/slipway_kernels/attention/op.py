"""Attention on the device: over pages, or over the keys and values of this step alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.attention.kernel import decode_kernel, merge_kernel, prefill_kernel
from slipway_kernels.attention.tiles import DECODE, MERGE, PREFILL, SPAN
from slipway_kernels.cuda.lasting import lasting
from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import row_stride
from slipway_kernels.cuda.tiles import pick

LOG2E = 1.4426950408889634
LONGEST = 8192
"""A split has no more positions than this, until the splits of one request occupy the device: a long request
among many short ones must not keep a single processor busy when all others are done."""

FP8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@lasting
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Workspace:
    """What the splits of decode (split-KV) leave for their merge; it means nothing between calls.

    partial      [entries, head_dim] fp32: the output of each split, for every request and head of a step
    log_sum_exp  [entries] fp32: log 2 of the sum of 2^score over the split's positions
    """

    partial: Tensor
    log_sum_exp: Tensor


def workspace(
    max_requests: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    max_length: int,
    device: torch.device,
    sms: int = 132,
    queries: int = 1,
) -> Workspace:
    """For any step of at most `max_requests` requests of up to `queries`, on a device of `sms` processors."""
    rows = heads // kv_heads * queries
    entries = max(
        requests * queries * heads * split_count(requests, kv_heads, rows, max_length, sms)
        for requests in range(1, max_requests + 1)
    )
    return Workspace(
        torch.empty(entries, head_dim, dtype=torch.float32, device=device),
        torch.empty(entries, dtype=torch.float32, device=device),
    )


def split_count(requests: int, kv_heads: int, rows: int, max_length: int, sms: int) -> int:
    """How many programs share the positions of one request and key head, at most.

    rows  heads of the group, of each of its queries

    Enough to give every processor four programs, of which two or three run at once. More would make the last
    turn, which is seldom full, a smaller part, but the merge of their splits costs more than that: with eight
    64 requests of 1024 positions took 106 µs instead of 77 on an H200. A split is never less than SPAN
    positions. However long contexts are, the count stays bounded, and the workspace with it.
    """
    programs = kv_heads * -(-rows // 16)  # of each split of a request
    wanted = max(4 * sms // (requests * programs), min(-(-max_length // LONGEST), -(-sms // programs)), 1)
    return max(1, min(wanted, -(-max_length // SPAN)))


@prepared
def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    slots: Tensor,
    query_start: Tensor,
    lengths: Tensor,
    out: Tensor,
    *,
    scale: float,
    window: int = 0,
    first: int = 0,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    num_decodes: int,
    decode_queries: int = 1,
    max_query: int,
    max_length: int,
    workspace: Workspace,
    sms: int = 132,
) -> Tensor:
    """out = softmax(scale · q · Kᵀ + mask) · V for the newest queries of several requests.

    q, out       [tokens, heads, head_dim]; the numbers of a head are adjacent
    keys, values [pages, kv_heads, block, head_dim] by equal strides: bf16, fp16, fp32, fp8 e4m3 or e5m2
    block_table  [num_slots, max_blocks] int32: page of each block; −1 where it left the window
    slots        [requests] int32: row of the block table; −1 for padding, whose rows of out stay as they are
    query_start  [requests + 1] int32: request r's queries are the rows query_start[r] .. query_start[r + 1]
    lengths      [requests] int32: positions known after this step; the queries are the last of them
    slopes       [heads] fp32: a score falls by this for every position that its key is behind (ALiBi)
    sinks        [heads] fp32: a score that takes its part of the softmax and has no value
    key_scale, value_scale  [1] or [kv_heads] fp32: what stored keys and values are multiplied by
    num_decodes  the first so many requests have up to `decode_queries` each, and share the device by splits
    max_query, max_length, sms  queries and positions that no request exceeds; processors of the device

    A query sees the positions up to its own, the last `window` of them where that is not 0, and none before
    `first` where it is not itself; with `first`, decodes have room for 2 queries or more. Scores become
    softcap · tanh(score / softcap) where that is not 0, then slopes are added. Returns out. What a request
    gets depends on its company by rounding alone: splits follow the number of requests, tiles the longest
    chunk. Raises ValueError where shapes, types or strides disagree. Sources: Dao et al. 2022; Press et al.
    2022; Xiao et al. 2023.
    """
    call = _Call(
        q=q,
        keys=keys,
        values=values,
        block_table=block_table,
        slots=slots,
        query_start=query_start,
        lengths=lengths,
        slopes=slopes,
        sinks=sinks,
        key_scale=key_scale,
        value_scale=value_scale,
        out=out,
        scale=scale,
        softcap=softcap or None,
        window=window or None,
        first=first,
    )
    call.check()
    if num_decodes and first and decode_queries < 2:
        raise ValueError(f"keys before {first} are hidden in tiles of several queries: make room for 2.")
    if num_decodes:
        _decode(call, num_decodes, decode_queries, max_length, workspace, sms)
    if num_decodes < len(slots):
        _prefill(call, num_decodes, len(slots) - num_decodes, max_query)
    return out


@prepared
def contiguous_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    out: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    max_query: int,
    first_request: int = 0,
    causal: bool = True,
) -> Tensor:
    """The same for requests whose every position is in this step: no pages are read.

    q, out       [tokens, heads, head_dim]; the numbers of a head are adjacent
    k, v         [tokens, kv_heads, head_dim] by equal strides: parts of the product that q is of, or others
    query_start  [requests + 1] int32: each request's rows, those before `first_request` left out, so that one
                 array serves a whole step and what `paged_attention` takes of it comes first
    causal       False: queries see later positions, too, all or `window` to each side, their own included
    """
    call = _Call(
        q=q,
        keys=k[None].transpose(1, 2),
        values=v[None].transpose(1, 2),
        query_start=query_start,
        slopes=slopes,
        sinks=sinks,
        out=out,
        scale=scale,
        softcap=softcap or None,
        window=window or None,
        causal=causal,
    )
    call.check()
    _prefill(call, first_request, len(query_start) - 1 - first_request, max_query)
    return out


@dataclass(frozen=True, slots=True)
class _Call:
    """What the kernels have in common. Without a block table, keys and values are one page of all rows."""

    q: Tensor
    keys: Tensor
    values: Tensor
    query_start: Tensor
    slopes: Tensor | None
    sinks: Tensor | None
    out: Tensor
    scale: float
    softcap: float | None
    window: int | None
    block_table: Tensor | None = None
    slots: Tensor | None = None
    lengths: Tensor | None = None
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None
    first: int = 0
    causal: bool = True

    @property
    def arch(self) -> int:
        return arch_of(self.q.device)

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.q.shape[1] // self.keys.shape[1]

    @property
    def head(self) -> int:
        """Numbers of a head, filled up to what the tensor cores take."""
        return max(16, 1 << (self.q.shape[2] - 1).bit_length())

    @property
    def kind(self) -> str:
        """What keys are: fp32, 16 bits, which the product takes as they are, or 8, which it does not."""
        return {1: "fp8", 2: "half", 4: "fp32"}[self.keys.element_size()]

    @property
    def form(self) -> str:
        """How keys are found: by pages, by TMA (16-bit rows, 16 bytes apart), or by address."""
        if self.block_table is not None:
            return "pages"
        size = self.keys.element_size()
        strides = (stride * size for stride in self.keys.stride()[1:3])
        lines = (*strides, self.keys.data_ptr(), self.values.data_ptr())
        tma = self.arch >= 90 and size == 2 and not any(line % 16 for line in lines)
        return "tma" if tma else "rows"

    @property
    def as_bytes(self) -> str:
        """The format of keys that the device can only load as bytes: there is no fp8 before sm_89."""
        return FP8.get(self.keys.dtype, "") if self.arch < 89 else ""

    def arguments(self) -> dict[str, object]:
        """What decode and prefill have in common, by the kernels' names.

        Of constants nothing that differs from step to step, or each would wait for a kernel of its own.
        """
        keys, values, table = self.keys, self.values, self.block_table
        if self.as_bytes:
            keys, values = keys.view(torch.uint8), values.view(torch.uint8)
        scales = [scale for scale in (self.key_scale, self.value_scale) if scale is not None]
        return {
            "q_ptr": self.q,
            "keys_ptr": keys,
            "values_ptr": values,
            "block_table_ptr": table,
            "slots_ptr": self.slots,
            "query_start_ptr": self.query_start,
            "lengths_ptr": self.lengths,
            "slopes_ptr": self.slopes,
            "sinks_ptr": self.sinks,
            "key_scale_ptr": self.key_scale,
            "value_scale_ptr": self.value_scale,
            "out_ptr": self.out,
            "q_token_stride": self.q.stride(0),
            "q_head_stride": self.q.stride(1),
            "page_stride": 0 if table is None else keys.stride(0),
            "kv_head_stride": keys.stride(1),
            "token_stride": keys.stride(2),
            "block_table_stride": row_stride(table),
            "out_token_stride": self.out.stride(0),
            "out_head_stride": self.out.stride(1),
            "scale": self.scale * LOG2E,
            "softcap": self.softcap,
            "window": self.window,
            "GROUP": self.group,
            "SCALE_STRIDE": int(any(scale.numel() > 1 for scale in scales)),
            "BLOCK": 0 if table is None else keys.shape[2],
            "HEAD_DIM": self.q.shape[2],
            "HEAD": self.head,
            "BYTES": self.as_bytes,
            "FIRST": self.first,
        }

    def check(self) -> None:
        """Raises ValueError with what is wrong."""
        q, keys, values = self.q, self.keys, self.values
        _, heads, head_dim = q.shape
        _, kv_heads, block, _ = keys.shape
        if self.out.shape != q.shape or values.shape != keys.shape or keys.shape[3] != head_dim:
            raise ValueError(
                f"q is {list(q.shape)}, out {list(self.out.shape)}, keys {list(keys.shape)} and values "
                f"{list(values.shape)}: q and out are equal, keys and values are, and all have one head size."
            )
        if heads % kv_heads or head_dim > 256:
            raise ValueError(
                f"{heads} heads of {head_dim} over {kv_heads} key heads: every key head serves equally many "
                "heads, of at most 256 numbers."
            )
        if keys.stride() != values.stride() or {q.stride(2), keys.stride(3), self.out.stride(2)} != {1}:
            raise ValueError(
                f"the strides of keys are {keys.stride()}, of values {values.stride()}, q {q.stride()} and "
                f"out {self.out.stride()}: keys and values lie alike, and a head's numbers are adjacent."
            )
        if q.dtype not in DTYPES or values.dtype != keys.dtype or keys.dtype not in (*DTYPES, *FP8):
            raise ValueError(
                f"q is {q.dtype}, keys {keys.dtype} and values {values.dtype}: q is bf16, fp16 or fp32, keys "
                "and values that or fp8 e4m3fn or e5m2, and both the same."
            )
        if self.block_table is not None and block & (block - 1):
            raise ValueError(f"pages hold {block} positions: take a power of two.")
        if self.scale <= 0:
            raise ValueError(f"the scale is {self.scale}: it must be positive.")
        self._check_scales(kv_heads)

    def _check_scales(self, kv_heads: int) -> None:
        sizes = {scale.numel() for scale in (self.key_scale, self.value_scale) if scale is not None}
        if not sizes <= {1, kv_heads} or len(sizes) > 1:
            raise ValueError(
                f"the scales of keys and values have {' and '.join(map(str, sorted(sizes)))} numbers, there "
                f"are {kv_heads} key heads: give both one number, or both one for every head."
            )


def _decode(call: _Call, requests: int, queries: int, max_length: int, space: Workspace, sms: int) -> None:
    heads, head_dim = call.q.shape[1:]
    kv_heads, rows = call.keys.shape[1], call.group * queries
    tile = pick(DECODE, call.arch, keys=call.kind, row=call.head * call.keys.element_size())
    wanted = split_count(requests, kv_heads, rows, max_length, sms)
    splits = max(1, min(wanted, len(space.log_sum_exp) // (requests * queries * heads)))
    if splits > 1 and space.partial.shape[1] != head_dim:
        raise ValueError(
            f"the workspace is for heads of {space.partial.shape[1]}, these have {head_dim}: make one for "
            "them."
        )
    launch(
        decode_kernel,
        (kv_heads * -(-rows // tile.constants["ROWS"]), requests, splits),
        tile=tile,
        partial_ptr=space.partial if splits > 1 else None,
        lse_ptr=space.log_sum_exp if splits > 1 else None,
        splits=splits,
        queries=queries,
        SPAN=SPAN,
        SEVERAL=queries > 1,
        **call.arguments(),
    )
    if splits > 1:
        launch(
            merge_kernel,
            (requests * queries, heads),
            tile=pick(MERGE, call.arch),
            partial_ptr=space.partial,
            lse_ptr=space.log_sum_exp,
            slots_ptr=call.slots,
            query_start_ptr=call.query_start,
            lengths_ptr=call.lengths,
            out_ptr=call.out,
            out_token_stride=call.out.stride(0),
            out_head_stride=call.out.stride(1),
            window=call.window,
            splits=splits,
            queries=queries,
            HEAD_DIM=head_dim,
            HEAD=call.head,
            SPAN=SPAN,
            SEVERAL=queries > 1,
        )


def _prefill(call: _Call, first: int, requests: int, max_query: int) -> None:
    kv_heads, group = call.keys.shape[1], call.group
    sees = "a window both ways" if call.window and not call.causal else ""
    rows = max_query * group
    tile = pick(PREFILL, call.arch, keys=call.kind, form=call.form, head=call.head, rows=rows, sees=sees)
    heads = min(group, tile.constants["ROWS"])
    queries = tile.constants["ROWS"] // heads
    # Of all rows: requests before `first` have none where they are padding.
    tiles = call.q.shape[0] // queries + requests
    launch(
        prefill_kernel,
        (kv_heads * -(-group // heads) * tiles,),
        tile=tile,
        first_request=first,
        requests=requests,
        kv_heads=kv_heads,
        CAUSAL=call.causal,
        **call.arguments(),
    )
