from __future__ import annotations

import pytest
import torch

from slipway_kernels.kv_copy import (
    DIRECT_BYTES,
    copy_pages,
    gather_pages,
    reference,
    scatter_pages,
    swap_in,
    swap_out,
)
from slipway_kernels.kv_copy.op import runs


def pages_of(device: torch.device, count: int, size: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    raw = torch.randint(0, 255, (count, size * dtype.itemsize), device=device, dtype=torch.uint8)
    return raw.view(dtype)


def same(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(result.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(64, torch.uint8), (100, torch.bfloat16), (5000, torch.float32), (4, torch.float8_e4m3fn)],
)
def test_pages_of_any_type_are_copied_within_the_pool(
    device: torch.device, size: int, dtype: torch.dtype
) -> None:
    pool = pages_of(device, 9, size, dtype)
    expected = pool.clone()
    pairs = torch.tensor([[3, 1], [8, 0], [-1, 5], [4, -1], [3, 2]], device=device, dtype=torch.int32)
    reference.copy_rows(expected, pairs[:, 0].tolist(), expected, pairs[:, 1].tolist())
    copy_pages(pool, pairs)
    assert same(pool, expected)


def test_scattered_pages_are_gathered_and_scattered_again(device: torch.device) -> None:
    pool, buffer = pages_of(device, 9, 5000), pages_of(device, 4, 5000)
    expected = buffer.clone()
    pages = torch.tensor([7, -1, 0, 3], device=device, dtype=torch.int32)
    reference.copy_rows(pool, pages.tolist(), expected, [0, 1, 2, 3])
    assert gather_pages(pool, pages, buffer) is buffer
    assert same(buffer, expected)
    empty = torch.zeros_like(pool)
    scatter_pages(buffer, pages, empty)
    for page in range(9):
        assert same(empty[page], pool[page] if page in (7, 0, 3) else torch.zeros_like(empty[page]))


def test_a_pool_of_more_than_two_billion_words_is_reached(device: torch.device) -> None:
    words = torch.empty(2**31 + 256, device=device, dtype=torch.int32)
    pool = words.as_strided((3, 64), (2**30 + 64, 1))
    pool[0] = 5
    pool[2] = 0
    copy_pages(pool, torch.tensor([[0, 2]], device=device, dtype=torch.int32))
    assert (pool[2] == 5).all()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("pages", [[5, 0, 3, 7, 2], [1, 2, 3, 4, 5], []])
def test_pages_go_to_the_host_and_come_back(device: torch.device, staged: bool, pages: list[int]) -> None:
    pool = pages_of(device, 9, 256)
    host = torch.zeros(8, 256, dtype=torch.uint8, pin_memory=device.type == "cuda")
    staging = torch.zeros(2, 256, device=device, dtype=torch.uint8) if staged else None
    places = [6, 7, 0, 1, 2][: len(pages)]
    swap_out(pool, pages, host, places, staging)
    if device.type == "cuda":
        torch.cuda.synchronize()
    for page, place in zip(pages, places, strict=True):
        assert same(host[place], pool[page].cpu())
    other = torch.zeros_like(pool)
    swap_in(host, places, other, pages, staging)
    for page in range(9):
        assert same(other[page], pool[page] if page in pages else torch.zeros_like(pool[page]))


def test_long_runs_of_pages_need_no_staging(device: torch.device) -> None:
    pool = pages_of(device, 3, DIRECT_BYTES)
    host = torch.zeros(3, DIRECT_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    staging = torch.full((1, DIRECT_BYTES), 77, device=device, dtype=torch.uint8)
    swap_out(pool, [2, 0], host, [0, 1], staging)
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert same(host[:2], pool[[2, 0]].cpu())
    assert (staging == 77).all()


def test_runs_are_what_follows_in_both_lists() -> None:
    assert list(runs([4, 5, 6, 9, 1], [0, 1, 3, 4, 5])) == [(4, 0, 2), (6, 3, 1), (9, 4, 1), (1, 5, 1)]
    assert list(runs([], [])) == []


def test_what_cannot_be_copied_is_refused(device: torch.device) -> None:
    pool = pages_of(device, 4, 64)
    pairs = torch.zeros(2, 2, device=device, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"Pages are named by torch.int64 \[2\]"):
        copy_pages(pool, pairs)
    with pytest.raises(ValueError, match=r"from torch.uint8 \[4, 64\] to torch.uint8 \[4, 32\]"):
        gather_pages(pool, pairs[:, 0].int(), pages_of(device, 4, 32))
    with pytest.raises(ValueError, match="a multiple of four bytes"):
        copy_pages(pages_of(device, 4, 33), pairs.int())
    with pytest.raises(ValueError, match="2 pages stand beside 1 of the host"):
        swap_out(pool, [1, 2], pool, [1])
