"""Tiles of kernels that treat a tensor row by row: those that hold a row, and those that go over it."""

from __future__ import annotations

from torch import Tensor

from slipway_kernels.cuda.tiles import Tile

# Wide rows take more warps, so that a thread holds at most 32 numbers of each operand.
ROW_TILES = (
    Tile(80, {"WIDTH": 256}, num_warps=1, when={"width": 256}),
    Tile(80, {"WIDTH": 1024}, num_warps=4, when={"width": 1024}),
    Tile(80, {"WIDTH": 2048}, num_warps=4, when={"width": 2048}),
    Tile(80, {"WIDTH": 4096}, num_warps=8, when={"width": 4096}),
    Tile(80, {"WIDTH": 8192}, num_warps=16, when={"width": 8192}),
    Tile(80, {"WIDTH": 16384}, num_warps=32, when={"width": 16384}),
    Tile(80, {"WIDTH": 32768}, num_warps=32, when={"width": 32768}),
)
"""A program holds a whole row, of `width` numbers or fewer."""

PIECE_TILES = (Tile(80, {"WIDTH": 1024}, num_warps=4),)
"""A program takes 1024 columns, eight numbers a thread: one row alone still spreads over the device."""


def row_stride(rows: Tensor | None) -> int:
    """From row to row, 0 where there are none."""
    return 0 if rows is None else rows.stride(0)
