"""RoPE on the device, together with what stands between the QKV product and attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import row_stride
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.rope.kernel import rope_and_store_kernel

# A thread holds eight numbers, sixteen bytes, of each half; `pairs` are half a head's, as a power of two.
TILES = (
    Tile(80, {"HEADS": 16}, num_warps=1, when={"pairs": 16}),
    Tile(80, {"HEADS": 16}, num_warps=2, when={"pairs": 32}),
    Tile(80, {"HEADS": 8}, num_warps=2, when={"pairs": 64}),
    Tile(80, {"HEADS": 8}, num_warps=4, when={"pairs": 128}),
    Tile(80, {"HEADS": 4}, num_warps=4, when={"pairs": 256}),
)

SATURATED = (torch.float8_e4m3fn, torch.float8_e5m2)


@prepared
def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor | None,
    values: Tensor | None,
    block_table: Tensor | None,
    row_slots: Tensor,
    positions: Tensor,
    *,
    rotation: Tensor | None = None,
    rotation_of: Tensor | None = None,
    interleaved: bool = False,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 1e-6,
    add_one: bool = False,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    keep_keys: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values to the cache, in one kernel.

    q             [rows, heads, head_dim]     bf16, fp16 or fp32; views of one product will do
    k, v          [rows, kv_heads, head_dim]
    keys, values  [pages, kv_heads, block, head_dim]  views of the pool: bf16, fp16, fp32, or fp8 e4m3 or
                  e5m2, which saturate. None, with the block table: keys are rotated in k and no more
    block_table   [num_slots, max_blocks]  int32: page of each block; where it is -1, nothing is stored
    row_slots     [rows]  int32; a row of slot -1 is padding: nothing of it is written
    positions     [rows]  int32, below max_len and within the block table; of padding, too
    rotation      [max_len, rotary_dim / 2, 2]  fp32: cosines and sines, scaling included; None: no rotation.
                  The pairs are (i, i + rotary_dim / 2), or (2i, 2i + 1) where `interleaved`; the rest stays.
                  Or several, [rotations, max_len, rotary_dim / 2, 2]
    rotation_of   [num_slots]  int32: which of several a slot's rows have; None: the first
    query_norm, key_norm    [head_dim]  RMS norm of each head first; its one is implied where `add_one`
    key_scale, value_scale  [1] or [kv_heads]  fp32, both or none: what is stored is divided by it
    keep_keys     leave the finished keys in k, too, for attention that reads them there
    out           [rows, heads, head_dim]  where queries go; None: in place. Returned.
    Each head is adjacent in memory. All is computed in fp32 and rounded once. Raises ValueError where shapes
    disagree. Source: Su et al. 2021.
    """
    queries, arch = q if out is None else out, arch_of(q.device)
    (rows, heads, head_dim), kv_heads = q.shape, k.shape[1]
    pairs = head_dim // 2 if rotation is None else rotation.shape[-2]
    for problem in (
        *_wrong_rows(q, k, v, queries, row_slots, positions),
        *_wrong_cache(k, keys, values, block_table),
        *_wrong_rotation(rotation, rotation_of),
        *_wrong_parameters(head_dim, kv_heads, pairs, query_norm, key_norm, key_scale, value_scale),
    ):
        raise ValueError(problem)
    limit = torch.finfo(keys.dtype).max if keys is not None and keys.dtype in SATURATED else 0.0
    keys, values = _as_known(keys, arch), _as_known(values, arch)
    padded, rest = _power(pairs), _power(head_dim - 2 * pairs)
    tile = pick(TILES, arch, pairs=max(padded, rest // 2))
    tiles = sum(-(-count // tile.constants["HEADS"]) for count in (heads, kv_heads))
    launch(
        rope_and_store_kernel,
        (rows * tiles,),
        tile=tile,
        q_ptr=q,
        k_ptr=k,
        v_ptr=v,
        out_ptr=queries,
        keys_ptr=keys,
        values_ptr=values,
        block_table_ptr=block_table,
        row_slots_ptr=row_slots,
        positions_ptr=positions,
        cos_sin_ptr=rotation,
        rotation_of_ptr=rotation_of,
        q_norm_ptr=query_norm,
        k_norm_ptr=key_norm,
        key_scale_ptr=key_scale,
        value_scale_ptr=value_scale,
        q_stride=q.stride(0),
        q_head_stride=q.stride(1),
        k_stride=k.stride(0),
        k_head_stride=k.stride(1),
        v_stride=v.stride(0),
        v_head_stride=v.stride(1),
        out_stride=queries.stride(0),
        out_head_stride=queries.stride(1),
        **_strides("key", keys),
        **_strides("value", values),
        block_table_stride=row_stride(block_table),
        rotation_stride=0 if rotation_of is None else row_stride(rotation),
        scale_stride=0 if key_scale is None or len(key_scale) == 1 else 1,
        heads=heads,
        kv_heads=kv_heads,
        block=1 if keys is None else keys.shape[2],
        eps=eps,
        KEEP_KEYS=keep_keys or keys is None,
        ADD_ONE=add_one,
        HEAD_DIM=head_dim,
        HALF=pairs,
        PADDED=padded,
        REST=rest,
        ADJACENT=interleaved,
        LIMIT=limit,
    )
    return queries


def _power(size: int) -> int:
    """The power of two that holds so many, at least 1."""
    return 1 << max(size - 1, 0).bit_length()


def _as_known(cache: Tensor | None, arch: int) -> Tensor | None:
    """The cache in a type that the device has: fp8 e4m3 as bytes before sm_89."""
    if cache is None or cache.dtype != torch.float8_e4m3fn or arch >= 89:
        return cache
    return cache.view(torch.uint8)


def _strides(name: str, cache: Tensor | None) -> dict[str, int]:
    """The kernel's arguments of that part of the cache."""
    page, head, offset = (0, 0, 0) if cache is None else cache.stride()[:3]
    return {f"{name}_page_stride": page, f"{name}_head_stride": head, f"{name}_offset_stride": offset}


def _wrong_rows(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, row_slots: Tensor, positions: Tensor
) -> Iterator[str]:
    rows, _, head_dim = q.shape
    if k.shape != v.shape or k.shape[::2] != (rows, head_dim) or out.shape != q.shape:
        yield (
            f"q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)} and out {list(out.shape)}: all have "
            "the same rows and head size, k and v the same heads, q and out the same heads."
        )
    for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out)):
        if tensor.stride(2) != 1:
            yield f"{name} has strides of {tensor.stride()}: the numbers of a head are adjacent."
    for name, tensor in (("row_slots", row_slots), ("positions", positions)):
        if tensor.shape != (rows,) or tensor.dtype != torch.int32:
            yield f"{name} is {tensor.dtype} {list(tensor.shape)}, for {rows} rows: give one int32 a row."


def _wrong_cache(
    k: Tensor, keys: Tensor | None, values: Tensor | None, block_table: Tensor | None
) -> Iterator[str]:
    if keys is None or values is None or block_table is None:
        if not keys is values is block_table is None:
            yield "keys, values and the block table go together: give all three, or none to rotate alone."
        return
    if keys.shape[1::2] != k.shape[1:] or keys.shape != values.shape or keys.dtype != values.dtype:
        yield (
            f"keys are {keys.dtype} {list(keys.shape)} and values {values.dtype} {list(values.shape)}: both "
            f"are [pages, {k.shape[1]}, block, {k.shape[2]}] of one type."
        )
    if (
        keys.stride(3) != 1
        or values.stride(3) != 1
        or block_table.stride(1) != 1
        or block_table.dtype != torch.int32
    ):
        yield (
            f"keys, values and the block table have strides of {keys.stride()}, {values.stride()} and "
            f"{block_table.stride()}, and the table is {block_table.dtype}: each is adjacent in its last "
            "dimension, and the table is int32."
        )


def _wrong_rotation(rotation: Tensor | None, rotation_of: Tensor | None) -> Iterator[str]:
    if rotation_of is None:
        return
    if rotation is None or rotation.dim() != 4 or rotation_of.dim() != 1 or rotation_of.dtype != torch.int32:
        shape = None if rotation is None else list(rotation.shape)
        yield (
            f"rotation is {shape} and rotation_of {rotation_of.dtype} {list(rotation_of.shape)}: slots "
            "choose among [rotations, max_len, pairs, 2], by one int32 each."
        )


def _wrong_parameters(
    head_dim: int,
    kv_heads: int,
    pairs: int,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> Iterator[str]:
    if not 0 < 2 * pairs <= head_dim:
        yield f"The rotation turns {pairs} pairs of a head of {head_dim}: it has {head_dim // 2}."
    for name, weight in (("query_norm", query_norm), ("key_norm", key_norm)):
        if weight is not None and weight.shape != (head_dim,):
            yield f"{name} is {list(weight.shape)}: it has a weight for each of a head's {head_dim} numbers."
    if (key_scale is None) != (value_scale is None):
        yield "key_scale and value_scale go together: give both, or none."
    if key_scale is None or value_scale is None:
        return
    if key_scale.shape != value_scale.shape or key_scale.shape not in ((1,), (kv_heads,)):
        yield (
            f"key_scale is {list(key_scale.shape)} and value_scale {list(value_scale.shape)}: give one each, "
            f"or one for each of {kv_heads} heads."
        )
