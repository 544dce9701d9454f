"""Weight-only quantized products on the device, and rows of quantized embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import follow, prepared
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.linear_bf16.op import by_torch
from slipway_kernels.linear_w4a16.kernel import dequantize_kernel, linear_w4a16_kernel, permute_kernel
from slipway_kernels.linear_w4a16.layout import Packed

# Up to 8 rows: two warps, so that Triton takes mma.sync, whose sums can be scaled at once; with wgmma that
# would be a wait. Beyond, wgmma where there is one: on an H200 the best tile of 16 rows with it took 77 µs
# for the four weights of an 8B model's layer, and the best without 80. Tiles of W become taller with the
# rows: each of them reads all of x from the second-level cache, which is the bound, and not the memory, from
# 16 to 64 rows.
TILES = (
    Tile(80, {"BLOCK_N": 64, "BLOCK_M": 8}, num_warps=2, num_stages=4, when={"rows": 8}),
    Tile(80, {"BLOCK_N": 64, "BLOCK_M": 16}, num_warps=2, num_stages=4, when={"rows": 16}),
    Tile(80, {"BLOCK_N": 64, "BLOCK_M": 64}, num_warps=4, num_stages=4, when={"rows": 64}),
    Tile(80, {"BLOCK_N": 128, "BLOCK_M": 128}, num_warps=8, num_stages=3),
    Tile(90, {"BLOCK_N": 64, "BLOCK_M": 8}, num_warps=2, num_stages=4, when={"rows": 8}),
    Tile(90, {"BLOCK_N": 128, "BLOCK_M": 16}, num_warps=4, num_stages=4, when={"rows": 16}),
    Tile(90, {"BLOCK_N": 64, "BLOCK_M": 32}, num_warps=4, num_stages=4, when={"rows": 32}),
    Tile(90, {"BLOCK_N": 128, "BLOCK_M": 64}, num_warps=8, num_stages=4, when={"rows": 64}),
    Tile(90, {"BLOCK_N": 128, "BLOCK_M": 128}, num_warps=8, num_stages=4),
    Tile(100, {"BLOCK_N": 64, "BLOCK_M": 8}, num_warps=2, num_stages=4, when={"rows": 8}),
    Tile(100, {"BLOCK_N": 64, "BLOCK_M": 16}, num_warps=2, num_stages=4, when={"rows": 16}),
    Tile(100, {"BLOCK_N": 128, "BLOCK_M": 64}, num_warps=8, num_stages=4, when={"rows": 64}),
    Tile(100, {"BLOCK_N": 128, "BLOCK_M": 128}, num_warps=8, num_stages=3),
)

ROWS = (
    Tile(80, {"BLOCK_N": 16}, num_warps=4, num_stages=1, when={"rows": 64}),
    Tile(80, {"BLOCK_N": 64}, num_warps=4, num_stages=1),
)

PERMUTATION = (Tile(80, {"WIDTH": 1024}, num_warps=4, num_stages=1),)

RESIDENT = {
    80: {8: 6, 16: 6, 64: 2, 128: 1},
    90: {8: 7, 16: 4, 32: 4, 64: 2, 128: 1},
    100: {8: 7, 16: 7, 64: 2, 128: 1},
}
"""Programs that a multiprocessor is given at a time, by a tile's architecture and BLOCK_M: what registers and
shared memory allow. The narrow ones have 80 KiB of weights on their way together; more of them would
only be more sums to add up."""

PREFILL_ROWS = {80: 256, 90: 512, 100: 256}
"""Rows above which a product writes W out in 16 bits, a slab at a time, and leaves the slabs to cuBLAS."""

SLAB = 32 << 20
"""Bytes of a slab: it stays in the second-level cache between the two."""

ARRIVALS = 4096
"""Counts that a workspace begins with: one for each tile that several programs sum."""

_PTX = isinstance(linear_w4a16_kernel, triton.runtime.JITFunction)
"""Whether kernels are compiled: the interpreter has no inline assembly."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a product is dealt to programs; splits sum over `blocks` blocks of columns each."""

    tile: Tile
    across: int
    down: int
    splits: int
    blocks: int


class Workspace:
    """One buffer for the products of all layers of a stream, as large as the largest of them needs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffer = torch.zeros(0, dtype=torch.uint8, device=device)

    @property
    def operands(self) -> tuple[Tensor]:
        """What a product reads and writes of it."""
        return (self._buffer,)

    def of(self, packed: Packed, rows: int) -> Tensor:
        """The buffer, grown for a product of so many rows; then it has another address, which CUDA graphs do
        not know. Its zeros matter: every product leaves the counts at 0."""
        needed = _bytes(packed, rows, self.device)
        if self._buffer.numel() < needed:
            self._buffer = torch.zeros(needed, dtype=torch.uint8, device=self.device)
        return self._buffer


@prepared
def linear_w4a16(
    x: Tensor,
    packed: Packed,
    out: Tensor,
    *,
    workspace: Workspace,
    bias: Tensor | None = None,
) -> Tensor:
    """out = x · Wᵀ + bias, where W's integers become numbers of x's type in registers; sums are in fp32.

    x          [m, k]  bf16 or fp16, the type that W was packed for; columns adjacent, in the original order
    out        [m, n]  the type of x; columns adjacent
    bias       [n]     the type of x
    workspace  of the stream: products that share it follow each other
    Returns out. The result is the same from run to run: splits of K are summed in their order. Up to 16
    rows it is bound by reading W, whose bytes are `Packed.nbytes`; above PREFILL_ROWS it is cuBLAS's product
    of weights that are rounded likewise. Raises ValueError where shapes or types do not fit.
    Source of the bit tricks: Kim et al. 2022 (arXiv 2211.10017); of the split: arXiv 2402.00025.
    """
    _check(x, packed, out, bias)
    m = x.shape[0]
    if not m:
        return out
    arch = arch_of(x.device)
    buffer = workspace.of(packed, m)
    rest = buffer[4 * ARRIVALS :]
    if packed.order is not None:
        permuted = rest[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)
        x = _permuted(x, packed.order, permuted)
        rest = rest[_padded(permuted.nbytes) :]
    if m > _prefill_rows(arch):
        return _by_slabs(x, packed, out, bias, rest)
    plan = _plan(packed, m, arch, x.device)
    several = plan.splits > 1
    launch(
        linear_w4a16_kernel,
        (plan.across, plan.down, plan.splits),
        tile=plan.tile,
        x_ptr=x,
        words_ptr=packed.words,
        params_ptr=packed.params,
        mask_ptr=packed.mask,
        bias_ptr=bias,
        out_ptr=out,
        partial_ptr=rest[: 4 * plan.splits * m * packed.n].view(torch.float32) if several else None,
        arrived_ptr=buffer[: 4 * ARRIVALS].view(torch.int32) if several else None,
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        m=m,
        n=packed.n,
        k=packed.k,
        blocks=plan.blocks,
        PTX=_PTX,
        **packed.constants(),
    )
    return out


@prepared
def rows(packed: Packed, ids: Tensor, out: Tensor) -> Tensor:
    """out[i] = row ids[i] of W, in the original order of its columns: an embedding.

    ids  [rows]     int32 or int64; -1 leaves its row of out as it is
    out  [rows, k]  the type that W was packed for; columns adjacent
    """
    if out.shape != (len(ids), packed.k) or out.dtype != packed.dtype or out.stride(1) != 1:
        raise ValueError(
            f"out is {list(out.shape)} in {out.dtype} for {len(ids)} rows of {packed.k} columns packed for "
            f"{packed.dtype}: it must be {[len(ids), packed.k]}, its columns adjacent."
        )
    return _dequantized(packed, ids, packed.order, out, 0)


@prepared
def dequantize(packed: Packed, first: int, out: Tensor) -> Tensor:
    """out [rows, k] = rows first, first + 1, … of W, with the columns in stored order."""
    return _dequantized(packed, None, None, out, first)


def _check(x: Tensor, packed: Packed, out: Tensor, bias: Tensor | None) -> None:
    n, k = packed.shape
    if x.ndim != 2 or x.shape[1] != k or out.shape != (x.shape[0], n):
        raise ValueError(
            f"x is {list(x.shape)} and out {list(out.shape)} for a matrix {[n, k]}: x has the columns of the "
            "matrix, out its rows."
        )
    if x.dtype != packed.dtype or out.dtype != packed.dtype or (bias is not None and bias.dtype != x.dtype):
        raise ValueError(
            f"x is {x.dtype} and out {out.dtype}, weights were packed for {packed.dtype}: all are of one "
            "type, with the bias."
        )
    if x.stride(1) != 1 or out.stride(1) != 1 or (bias is not None and bias.shape != (n,)):
        raise ValueError(
            f"strides of x are {x.stride()}, of out {out.stride()}, the bias is "
            f"{None if bias is None else list(bias.shape)}: columns are adjacent, a bias has {n} numbers."
        )


def _bytes(packed: Packed, rows: int, device: torch.device) -> int:
    """What a product of so many rows needs of a workspace: counts, x in the matrix's order, and a slab of
    weights or the sums of its splits."""
    permuted = 0 if packed.order is None else _padded(2 * rows * packed.k)
    slab = 2 * packed.k * _slab_rows(packed) if rows > _prefill_rows(arch_of(device)) else 0
    # One wave of programs, each with a tile of sums in fp32, whatever the split.
    wave = max(_resident(t) * t.constants["BLOCK_M"] * t.constants["BLOCK_N"] for t in TILES)
    return 4 * ARRIVALS + permuted + max(slab, 4 * wave * _processors(device))


def _plan(packed: Packed, m: int, arch: int, device: torch.device) -> _Plan:
    """One wave of programs, but none with less than it loads ahead: a further split would add nothing."""
    tile = pick(TILES, arch, rows=m)
    height, width = tile.constants["BLOCK_M"], tile.constants["BLOCK_N"]
    across, down, blocks = triton.cdiv(m, height), triton.cdiv(packed.n, width), packed.words.shape[0]
    programs = _processors(device) * _resident(tile) // (across * down)
    splits = max(1, min(programs, blocks // (tile.num_stages - 1)))
    each = triton.cdiv(blocks, splits)
    return _Plan(tile, across, down, triton.cdiv(blocks, each), each)


def _by_slabs(x: Tensor, packed: Packed, out: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    step = _slab_rows(packed)
    for first in range(0, packed.n, step):
        last = min(first + step, packed.n)
        slab = buffer[: 2 * packed.k * (last - first)].view(x.dtype).view(last - first, packed.k)
        dequantize(packed, first, slab)
        follow(by_torch, x, slab, out[:, first:last], None if bias is None else bias[first:last])
    return out


def _dequantized(packed: Packed, ids: Tensor | None, order: Tensor | None, out: Tensor, first: int) -> Tensor:
    tile = pick(ROWS, arch_of(out.device), rows=len(out))
    launch(
        dequantize_kernel,
        (packed.words.shape[0], triton.cdiv(len(out), tile.constants["BLOCK_N"])),
        tile=tile,
        ids_ptr=ids,
        words_ptr=packed.words,
        params_ptr=packed.params,
        mask_ptr=packed.mask,
        order_ptr=order,
        out_ptr=out,
        out_stride=out.stride(0),
        first=first,
        rows=len(out),
        n=packed.n,
        k=packed.k,
        PTX=_PTX,
        **packed.constants(),
    )
    return out


def _permuted(x: Tensor, order: Tensor, out: Tensor) -> Tensor:
    """Once for all programs: columns out of order would be fetched two bytes at a time by each of them."""
    tile = pick(PERMUTATION, arch_of(x.device))
    grid = (x.shape[0], triton.cdiv(x.shape[1], tile.constants["WIDTH"]))
    launch(
        permute_kernel,
        grid,
        tile=tile,
        x_ptr=x,
        order_ptr=order,
        out_ptr=out,
        x_stride=x.stride(0),
        k=x.shape[1],
    )
    return out


def _resident(tile: Tile) -> int:
    return RESIDENT[tile.arch][tile.constants["BLOCK_M"]]


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _prefill_rows(arch: int) -> int:
    return PREFILL_ROWS[max(known for known in PREFILL_ROWS if known <= arch)]


def _slab_rows(packed: Packed) -> int:
    return min(packed.n, max(128, SLAB // (2 * packed.k) // 128 * 128))


def _padded(size: int) -> int:
    return -(-size // 256) * 256
