"""Sizes of the experts' kernels, by architecture. None was timed yet: they follow from what bounds each."""

from __future__ import annotations

from slipway_kernels.cuda.tiles import Tile

BLOCK_M = ((8, 16), (16, 32), (64, 64))
"""(Mean rows an expert at most, rows of a block), the most that a table has beyond: some more, for uneven
routing, so that few experts need two blocks and read their weights twice."""

ROUTE = (Tile(80, {}, num_warps=1),)  # one warp: a choice is a few shuffles

# Up to SCANNED pairs each expert's program scans them all; more are counted by chunks first.
SCANNED = 4096
CHUNK = 1024
ARRANGE = (
    Tile(80, {"CHUNK": 1024}, num_warps=4, when={"pairs": 1024}),
    Tile(80, {"CHUNK": 4096}, num_warps=8),
)
COUNT = (Tile(80, {"CHUNK": CHUNK}, num_warps=4),)
SCATTER = (Tile(80, {"CHUNK": CHUNK, "PART": 128}, num_warps=4),)

# A warp has 16 bytes a lane of each of a row's results under way.
COMBINE = (Tile(80, {"COLUMNS": 256}, num_warps=1),)


def _product(arch: int, block_m: int, n: int, k: int, warps: int, stages: int, **when: str) -> Tile:
    sizes = {"BLOCK_M": block_m, "BLOCK_N": n, "BLOCK_K": k, "TOGETHER": 8}
    return Tile(arch, sizes, warps, stages, when={"block_m": str(block_m), **when})


# Few rows: narrow blocks make enough programs for all multiprocessors, and two or three of them share one,
# each with 3 stages of 16 KiB of weights on their way. 64 rows and more: wgmma on Hopper.
HALF = (
    _product(80, 16, 64, 128, 4, 4),
    _product(80, 32, 64, 128, 4, 4),
    _product(80, 64, 128, 64, 4, 4),
    _product(80, 128, 128, 64, 8, 4),
    _product(90, 16, 64, 128, 4, 4),
    _product(90, 32, 64, 128, 4, 4),
    _product(90, 64, 128, 64, 4, 4),
    _product(90, 128, 256, 64, 8, 4),
)
EIGHT_BITS = (  # sm_80: int8 alone
    _product(80, 16, 64, 256, 4, 4),
    _product(80, 32, 64, 256, 4, 4),
    _product(80, 64, 128, 128, 4, 4),
    _product(80, 128, 128, 128, 8, 3),
    _product(90, 16, 64, 256, 4, 4),
    _product(90, 32, 64, 256, 4, 4),
    _product(90, 64, 128, 128, 4, 4),
    _product(90, 128, 256, 128, 8, 4, dtype="torch.float8_e4m3fn"),
    _product(90, 128, 128, 128, 8, 4),  # Blackwell multiplies int8 in registers
)
# Each step ends with an addition in fp32, beside which a second program on the multiprocessor multiplies.
BLOCKS = (
    _product(80, 16, 64, 128, 4, 4),
    _product(80, 32, 64, 128, 4, 4),
    _product(80, 64, 128, 128, 4, 4),
    _product(80, 128, 128, 128, 8, 3),
)
FLOAT = (  # no tensor cores
    _product(80, 16, 64, 32, 4, 3),
    _product(80, 64, 32, 32, 4, 3),
)


def _packed_product(arch: int, block_m: int, n: int, warps: int, stages: int) -> Tile:
    sizes = {"BLOCK_M": block_m, "BLOCK_N": n, "TOGETHER": 8}
    return Tile(arch, sizes, warps, stages, when={"block_m": str(block_m)})


# outᵀ = W · xᵀ. Two warps up to 32 rows: four would make it wgmma, which on Blackwell takes the unpacked
# weights through tensor memory. 128 rows: two programs share a multiprocessor, one unpacks while the other
# multiplies.
W4A16 = (
    _packed_product(80, 16, 64, 2, 5),
    _packed_product(80, 32, 64, 2, 4),
    _packed_product(80, 64, 64, 4, 3),
    _packed_product(80, 128, 64, 4, 2),
    _packed_product(90, 16, 64, 2, 5),
    _packed_product(90, 32, 64, 2, 4),
    _packed_product(90, 64, 128, 4, 4),
    _packed_product(90, 128, 128, 4, 2),
)

TORCH_FROM: dict[int, int] = {}
"""Mean rows an expert from which torch._grouped_mm is faster for bf16, by architecture: none timed yet."""
