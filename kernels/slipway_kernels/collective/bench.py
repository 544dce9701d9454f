"""An all-reduce's cases: a decoding step's rows and a prompt's, of models that several devices share."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slipway_kernels.collective.op import PROGRAMS, ROOM, SIZES, Peers, all_reduce
from slipway_kernels.cuda.cases import Case, Size

FULL = [(1, 4096), (64, 8192), (256, 8192)]


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    """For the compiler alone: ranks are processes, which the tests of this operation start themselves."""
    if device.type != "meta":
        return
    for ranks in SIZES:
        for rows, width in FULL:
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                if rows * width * dtype.itemsize <= ROOM:
                    yield _case(device, ranks, rows, width, dtype)


def _case(device: torch.device, ranks: int, rows: int, width: int, dtype: torch.dtype) -> Case:
    addresses = torch.empty(ranks, dtype=torch.int64, device=device)
    peers = Peers(0, addresses, torch.empty(PROGRAMS, dtype=torch.int64, device=device))
    x = torch.empty(rows, width, dtype=dtype, device=device)
    return Case(
        f"{str(dtype).removeprefix('torch.')} {rows}x{width} of {ranks} ranks",
        lambda: all_reduce(x, peers, x),
        bytes=2 * rows * width * dtype.itemsize,
        written=rows * width * dtype.itemsize,
        always=("atom.global.sys.release", "atom.global.sys.acquire", "ld.global.cg.v4"),
    )
