"""Pages copied on the device, and between it and the host.

Pages lie as rows: pools, buffers and host memory are [pages, size] of any type, a page adjacent in memory and
a multiple of four bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.kv_copy.kernel import copy_rows_kernel

# Sixteen words a thread are four loads under way.
COPY_TILES = (Tile(80, {"WIDTH": 2048}, num_warps=4),)

DIRECT_BYTES = 1 << 20
"""From such an average on, runs of pages go between device and host by themselves: the start of a copy counts
little beside what it moves, and gathering would move it once more."""


@prepared
def copy_pages(pool: Tensor, pairs: Tensor) -> None:
    """pool[target] = pool[source] for each pair.

    pairs  [n, 2]  int32 (source, target); -1 on either side is padding. No page is both source and target, or
                   the target of two
    Raises ValueError where shapes disagree.
    """
    if pairs.shape[1:] != (2,):
        raise ValueError(f"pairs are {list(pairs.shape)}: give [n, 2], source and target of each copy.")
    _copy_rows(pool, pairs[:, 0], pool, pairs[:, 1], len(pairs))


@prepared
def gather_pages(pool: Tensor, pages: Tensor, out: Tensor) -> Tensor:
    """out[i] = pool[pages[i]] for each of `pages` [n] int32; where it is -1, out stays. Returns out."""
    _copy_rows(pool, pages, out, None, len(pages))
    return out


@prepared
def scatter_pages(source: Tensor, pages: Tensor, pool: Tensor) -> None:
    """pool[pages[i]] = source[i] for each of `pages` [n] int32, all different or -1, which is padding."""
    _copy_rows(source, None, pool, pages, len(pages))


def swap_out(
    pool: Tensor, pages: Sequence[int], host: Tensor, host_pages: Sequence[int], staging: Tensor | None = None
) -> None:
    """host[host_pages[i]] = pool[pages[i]], on the current stream: the host waits for none of it.

    host     [host pages, size]  pinned, else each copy waits
    staging  [n, size]           on the device: scattered pages are gathered there and go in few large copies
    The pages may be written again by work that this stream is given later; host memory may be read once it
    has come this far. Raises ValueError where the lists disagree.
    """
    for part, host_part, buffer in _parts(pages, host_pages, _page_bytes(pool), staging):
        if buffer is None:
            for first, host_first, count in runs(part, host_part):
                host[host_first : host_first + count].copy_(pool[first : first + count], non_blocking=True)
            continue
        gather_pages(pool, _on_device(part, pool.device), buffer)
        for first, host_first, count in runs(range(len(part)), host_part):
            host[host_first : host_first + count].copy_(buffer[first : first + count], non_blocking=True)


def swap_in(
    host: Tensor, host_pages: Sequence[int], pool: Tensor, pages: Sequence[int], staging: Tensor | None = None
) -> None:
    """pool[pages[i]] = host[host_pages[i]]: the way back. The arguments are those of `swap_out`."""
    for part, host_part, buffer in _parts(pages, host_pages, _page_bytes(pool), staging):
        if buffer is None:
            for first, host_first, count in runs(part, host_part):
                pool[first : first + count].copy_(host[host_first : host_first + count], non_blocking=True)
            continue
        for first, host_first, count in runs(range(len(part)), host_part):
            buffer[first : first + count].copy_(host[host_first : host_first + count], non_blocking=True)
        scatter_pages(buffer, _on_device(part, pool.device), pool)


def runs(first: Sequence[int], second: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Pairs that follow each other in both lists, as (first, second, count)."""
    begin = 0
    for end in range(1, len(first) + 1):
        count = end - begin
        if end == len(first) or (first[end], second[end]) != (first[begin] + count, second[begin] + count):
            yield first[begin], second[begin], count
            begin = end


def _parts(
    pages: Sequence[int], host_pages: Sequence[int], page_bytes: int, staging: Tensor | None
) -> Iterator[tuple[Sequence[int], Sequence[int], Tensor | None]]:
    """What is copied at once: the pages of the device and the host, and the buffer that they go through."""
    if len(pages) != len(host_pages):
        raise ValueError(f"{len(pages)} pages stand beside {len(host_pages)} of the host: give as many.")
    if not pages:
        return
    average = page_bytes * len(pages) // sum(1 for _ in runs(pages, host_pages))
    if staging is None or average >= DIRECT_BYTES:
        yield pages, host_pages, None
        return
    for begin in range(0, len(pages), len(staging)):
        part = pages[begin : begin + len(staging)]
        yield part, host_pages[begin : begin + len(staging)], staging[: len(part)]


def _page_bytes(pool: Tensor) -> int:
    return pool.shape[1] * pool.element_size()


def _on_device(pages: Sequence[int], device: torch.device) -> Tensor:
    listed = torch.tensor(pages, dtype=torch.int32, pin_memory=device.type == "cuda")
    return listed.to(device, non_blocking=True)


def _copy_rows(
    source: Tensor, source_rows: Tensor | None, target: Tensor, target_rows: Tensor | None, count: int
) -> None:
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype or source.dim() != 2:
        raise ValueError(
            f"Pages go from {source.dtype} {list(source.shape)} to {target.dtype} {list(target.shape)}: both "
            "are [pages, size] of one type and size."
        )
    for rows in (source_rows, target_rows):
        if rows is not None and (rows.dtype != torch.int32 or rows.shape != (count,)):
            raise ValueError(f"Pages are named by {rows.dtype} {list(rows.shape)}: give one int32 a copy.")
    from_words, to_words = _words(source), _words(target)
    words, tile = from_words.shape[1], pick(COPY_TILES, arch_of(source.device))
    launch(
        copy_rows_kernel,
        (count, -(-words // tile.constants["WIDTH"])),
        tile=tile,
        source_ptr=from_words,
        source_rows_ptr=source_rows,
        target_ptr=to_words,
        target_rows_ptr=target_rows,
        source_stride=from_words.stride(0),
        source_rows_stride=1 if source_rows is None else source_rows.stride(0),
        target_stride=to_words.stride(0),
        target_rows_stride=1 if target_rows is None else target_rows.stride(0),
        words=words,
    )


def _words(pages: Tensor) -> Tensor:
    """The pages as int32, whatever they hold."""
    if pages.stride(1) != 1 or _page_bytes(pages) % 4 or pages.stride(0) * pages.element_size() % 4:
        raise ValueError(
            f"Pages are {pages.dtype} {list(pages.shape)} by strides of {pages.stride()}: a page is adjacent "
            "in memory and a multiple of four bytes."
        )
    return pages.view(torch.int32)
