"""RoPE's cases: heads of models, decode and prefill, caches in 16 and 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.rms_norm.reference import rms_norm
from slipway_kernels.rope import reference
from slipway_kernels.rope.op import rope_and_store


@dataclass(frozen=True, slots=True)
class Model:
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    normed: bool = False
    interleaved: bool = False


LLAMA = Model(32, 8, 128, 128)
MODELS = {
    "llama": LLAMA,
    "qwen3": Model(32, 8, 128, 128, normed=True),
    "smol": Model(9, 3, 64, 64),
    "gemma": Model(8, 4, 256, 256, normed=True),
    "phi": Model(32, 32, 80, 32),
    "command": Model(64, 8, 128, 128, interleaved=True),
    "tiny": Model(4, 2, 32, 32),
    "wide": Model(16, 2, 512, 512),
}
BLOCK, MAX_LEN, SLOTS = 16, 4096, 64


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for name, model in MODELS.items():
        for rows in (1, 64, 2048) if size == "full" else (3,):
            yield _case(device, name, model, rows, torch.bfloat16)
    for rows in (64, 2048) if size == "full" else (3,):
        yield _case(device, "llama", LLAMA, rows, torch.float8_e4m3fn)
        yield _case(device, "llama", LLAMA, rows, torch.float8_e5m2)
        yield _keys_alone(device, rows)
        yield _case(device, "llama", LLAMA, rows, torch.bfloat16, rotations=3)


def _case(
    device: torch.device, name: str, model: Model, rows: int, cache: torch.dtype, rotations: int = 1
) -> Case:
    """rotations: among which slots choose in turns."""
    heads, kv_heads, head_dim = model.heads, model.kv_heads, model.head_dim
    shape = (rows, heads + 2 * kv_heads, head_dim)
    qkv = torch.randn(shape, device=device, dtype=torch.bfloat16)
    q, k, v = qkv[:, :heads], qkv[:, heads:-kv_heads], qkv[:, -kv_heads:]
    blocks = max(rows // SLOTS, 1) // BLOCK + 1
    pool = torch.zeros(SLOTS * blocks, 2, kv_heads, BLOCK, head_dim, device=device, dtype=cache)
    table = torch.arange(SLOTS * blocks, device=device, dtype=torch.int32).view(SLOTS, blocks)
    row = torch.arange(rows, device=device, dtype=torch.int32)
    where = (table, row % SLOTS, row // SLOTS)
    angles = [reference.angles(MAX_LEN, model.rotary_dim, 10000.0 * 2**one) for one in range(rotations)]
    rotation = torch.stack(angles).to(device)
    chosen = torch.arange(SLOTS, device=device, dtype=torch.int32) % rotations
    weight = torch.randn(head_dim, device=device) if model.normed else None
    scale = torch.ones(1, device=device) if cache.itemsize == 1 else None
    out = torch.empty_like(q)

    def run() -> Tensor:
        return rope_and_store(
            *(q, k, v, pool[:, 0], pool[:, 1], *where),
            rotation=rotation if rotations > 1 else rotation[0],
            rotation_of=chosen if rotations > 1 else None,
            interleaved=model.interleaved,
            query_norm=weight,
            key_norm=weight,
            key_scale=scale,
            value_scale=scale,
            out=out,
        )

    def expected() -> Tensor:
        queries = q.float() if weight is None else rms_norm(q, weight, 1e-6)
        return reference.rope(queries, turned(), model.interleaved)

    def turned() -> Tensor:
        return rotation[chosen[where[1].long()].long(), where[2].long()]

    def peer() -> None:
        reference.rope(q, turned(), model.interleaved)
        slots, positions = where[1].long(), where[2].long()
        pages, offsets = table[slots, positions // BLOCK].long(), positions % BLOCK
        pool[pages, 0, :, offsets] = reference.rope(k, turned(), model.interleaved).to(cache)
        pool[pages, 1, :, offsets] = v.to(cache)

    kv = rows * kv_heads * head_dim * 2
    return Case(
        f"{name} {rows}x{heads}+{kv_heads}x{head_dim} {str(cache).removeprefix('torch.')}"
        f"{f', {rotations} rotations' if rotations > 1 else ''}",
        run,
        expected,
        bytes=rows * heads * head_dim * 4 + kv * (2 + cache.itemsize) + rows * model.rotary_dim * 4,
        written=rows * heads * head_dim * 2 + kv * cache.itemsize,
        peers={"torch": peer},
    )


def _keys_alone(device: torch.device, rows: int) -> Case:
    """A copy of the keys, rotated and kept: what the scales of an fp8 cache are found from."""
    kv_heads, head_dim = LLAMA.kv_heads, LLAMA.head_dim
    keys, values = torch.randn(2, rows, kv_heads, head_dim, device=device, dtype=torch.bfloat16).unbind()
    row = torch.arange(rows, device=device, dtype=torch.int32)
    where = (row % SLOTS, row // SLOTS)
    rotation = reference.angles(MAX_LEN, LLAMA.rotary_dim).to(device)

    def run() -> Tensor:
        rotated = keys.clone()
        rope_and_store(rotated[:, :0], rotated, values, None, None, None, *where, rotation=rotation)
        return rotated

    def expected() -> Tensor:
        return reference.rope(keys.float(), rotation[where[1].long()], False)

    return Case(
        f"llama {rows}x0+{kv_heads}x{head_dim} keys alone",
        run,
        expected,
        bytes=4 * keys.nbytes,
        written=2 * keys.nbytes,
    )
