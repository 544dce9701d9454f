"""Which tiles the attention kernels take."""

from __future__ import annotations

from dataclasses import replace

from slipway_kernels.cuda.tiles import Tile

SPAN = 128
"""Positions of a split are a multiple of this."""

# Pages are looked up as many stages before keys and values are asked for as those are before their use: of
# five stages, two tiles of each are under way where products read registers, and a third is in use where
# they read shared memory.

# Rows for 80 fit into the 99 KiB of shared memory that 8.6 and 8.9 have, where 8.0 has 163.


def _decode(arch: int, tile: int, /, *, stages: int = 5, **when: int | str) -> Tile:
    return Tile(arch, {"ROWS": 16, "TILE": tile}, num_warps=4, num_stages=stages, when=when)


# By bytes of one position's key. Two tiles of keys and values are 64 KiB, of which three programs share a
# processor: together they keep more under way than memory answers in its latency. What has 8 bits is in
# shared memory a second time, as 16. On an H200 keys of 16 bits were read faster with one tile less under way
# and more programs at a time, 64 requests of 4096 positions in 256 µs instead of 307; fp8 was read slower so.
DECODE = (
    _decode(80, 16, stages=2, keys="fp32", row=1024),
    _decode(80, 64, keys="fp8", row=128),
    _decode(80, 32, keys="fp8", row=256),
    _decode(80, 128, row=128),
    _decode(80, 64, row=256),
    _decode(80, 32, row=512),
    _decode(90, 16, stages=2, keys="fp32", row=1024),
    _decode(90, 128, keys="fp8", row=128),
    _decode(90, 64, keys="fp8", row=256),
    _decode(90, 128, stages=4, row=128),
    _decode(90, 64, stages=4, row=256),
    _decode(90, 32, stages=4, row=512),
)

# As many splits at a time as a long request has on an idle device in a turn or two.
MERGE = (Tile(80, {"SPLITS": 64}, num_warps=8, num_stages=2),)


FASTER = "a few bytes, and by a sixth or more faster on an H200 than keys by 32 at a time, which spill none"


def _tile(arch: int, rows: int, tile: int, warps: int, stages: int, /, **when: int | str) -> Tile:
    tma = int(when.get("form") == "tma")
    return Tile(arch, {"ROWS": rows, "TILE": tile, "TMA": tma}, warps, stages, when)


# By what keys are, how they are found, the padded head, and the rows that the longest chunk fills: fp32 has
# no tensor cores here, wgmma wants 64 rows, and wide heads leave registers for fewer keys at a time.
# TMA keeps the addresses out of registers, and what is freed holds twice the keys on 10.0; a window to both
# sides has two bounds more for each row. Of about eight tiles tried for each on an H200, by long prompts,
# Hopper's rows for heads of 128 and 256 were the fastest, and those for 64 within 3 % of it: two small
# programs on a processor hide each other's softmax, where TMA leaves room for them.
PREFILL = (
    _tile(80, 16, 16, 4, 2, keys="fp32", head=256),
    _tile(80, 16, 64, 4, 5, head=128, rows=16),
    _tile(80, 128, 64, 8, 5, head=64),
    _tile(80, 128, 32, 8, 4, form="rows", head=128),
    _tile(80, 128, 32, 8, 5, head=128),
    _tile(80, 64, 32, 8, 2, form="rows", head=256),
    _tile(80, 64, 32, 8, 4, head=256),
    _tile(90, 16, 16, 8, 2, keys="fp32", head=256),
    _tile(90, 16, 64, 8, 5, head=128, rows=16),
    _tile(90, 64, 64, 4, 5, head=128, rows=64),
    _tile(90, 64, 64, 4, 2, form="tma", head=64),
    _tile(90, 64, 64, 4, 3, form="tma", head=128),
    _tile(90, 128, 64, 8, 2, form="tma", head=256),
    _tile(90, 128, 128, 8, 5, keys="fp8", head=64),
    _tile(90, 128, 64, 8, 5, head=64),
    _tile(90, 128, 128, 8, 3, head=128),
    replace(_tile(90, 64, 64, 4, 3, keys="fp8", head=256), spills=FASTER),
    replace(_tile(90, 128, 64, 8, 3, head=256), spills=FASTER),
    _tile(100, 16, 16, 8, 2, keys="fp32", head=256),
    _tile(100, 16, 64, 8, 5, head=128, rows=16),
    _tile(100, 64, 64, 4, 5, head=128, rows=64),
    _tile(100, 128, 64, 8, 3, form="tma", head=64, sees="a window both ways"),
    _tile(100, 128, 128, 8, 3, form="tma", head=64),
    _tile(100, 128, 64, 8, 3, form="tma", head=128),
    _tile(100, 128, 32, 8, 3, form="tma", head=256),
    _tile(100, 128, 128, 8, 5, head=64),
    _tile(100, 128, 64, 8, 5, head=128),
    _tile(100, 128, 32, 8, 5, head=256),
)
