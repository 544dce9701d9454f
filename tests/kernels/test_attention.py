from __future__ import annotations

import numpy as np
import pytest
import torch
from toy import TORCH

from slipway.load.torch_arrays import array, tensor
from slipway_kernels.attention import reference
from slipway_kernels.cpu import ExternalProgram, PageMemory, Slots, page_bytes

BLOCKS = [1, 8, 16, 32, 64, 128]


class Cache:
    """One request's keys and values in pages, in two layers of which the second is used."""

    def __init__(
        self, dtype: str, block: int, kv_heads: int, head_dim: int, threads: int, length: int
    ) -> None:
        blocks = -(-length // block)
        self.slots = Slots(1, length, 1, blocks)
        self.pool = PageMemory(blocks, page_bytes(2, kv_heads, head_dim, block, dtype))
        self.program = ExternalProgram(self.slots, length, dtype, threads, 8, 1, self.pool, block)
        self.slots.block_table[0, 0] = np.random.default_rng(1).permutation(blocks)
        self.slots.num_tokens[0] = length
        self.slots.prompt_len[0] = length
        self.kv_heads, self.head_dim, self.block = kv_heads, head_dim, block
        self.fill_with_nan()

    def fill_with_nan(self) -> None:
        import ctypes

        ctypes.memset(self.pool.memory.address, 0xFF, self.pool.num_pages * self.pool.page_bytes)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        chunk: int,
        window: int = 0,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """[rows, heads · head_dim], computed chunk by chunk; pages that leave the window are given back."""
        outs = []
        for begin in range(0, len(q), chunk):
            part = slice(begin, min(begin + chunk, len(q)))
            if window:
                gone = max(0, begin - window + 1) // self.block
                self.slots.block_table[0, 0, :gone] = -1
            self.program.prepare(np.array([0]), np.array([part.stop - part.start]))
            self.program.store_kv((0, 1), array(k[part]), array(v[part]), self.kv_heads, self.head_dim)
            heads = q.shape[1]
            queries = array(q[part].flatten(1))
            shape = (heads, self.kv_heads, self.head_dim)
            outs.append(tensor(self.program.attention((0, 1), queries, *shape, 0.3, window, softcap)))
            self.slots.num_computed[0] = part.stop
        return torch.cat(outs)


def inputs(rows: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(2)
    shapes = [(rows, heads, head_dim), (rows, kv_heads, head_dim), (rows, kv_heads, head_dim)]
    return tuple(torch.randn(shape, generator=draw).to(TORCH[dtype]) for shape in shapes)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(3, 1, 64), (4, 4, 8), (9, 3, 72), (8, 1, 256), (26, 2, 16)]
)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (20, 0.0), (0, 2.0), (1, 1.5)])
def test_attention_is_the_references(
    dtype: str, heads: int, kv_heads: int, head_dim: int, window: int, softcap: float
) -> None:
    q, k, v = inputs(100, heads, kv_heads, head_dim, dtype)
    cache = Cache(dtype, 16, kv_heads, head_dim, 1, 100)
    expected = reference.attention(q, k, v, 0.3, window, softcap)
    result = cache.attend(q, k, v, 100, window, softcap).float().view(expected.shape)
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("head_dim", [24, 64])
def test_a_row_does_not_depend_on_chunk_block_size_or_threads(dtype: str, window: int, head_dim: int) -> None:
    q, k, v = inputs(100, 6, 2, head_dim, dtype)
    expected = Cache(dtype, 16, 2, head_dim, 1, 100).attend(q, k, v, 100, window)
    assert not expected.isnan().any()
    for block in BLOCKS:
        for chunk in (1, 7, 64, 100):
            for threads in (1, 2, 3) if chunk == 7 else (1,):
                result = Cache(dtype, block, 2, head_dim, threads, 100).attend(q, k, v, chunk, window)
                assert torch.equal(result, expected), (block, chunk, threads)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [0, 700])
def test_splits_of_a_long_context_merge_to_the_same_bits(dtype: str, window: int) -> None:
    q, k, v = inputs(1200, 3, 1, 16, dtype)
    expected = Cache(dtype, 16, 1, 16, 1, 1200).attend(q, k, v, 1200, window)
    reference_rows = reference.attention(q, k, v, 0.3, window).flatten(1)
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(expected.float(), reference_rows, atol=tolerance, rtol=tolerance)
    for chunk, threads in ((3, 3), (5, 1), (300, 2)):
        result = Cache(dtype, 16, 1, 16, threads, 1200).attend(q, k, v, chunk, window)
        assert torch.equal(result, expected), (chunk, threads)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [0, 700])
@pytest.mark.parametrize("threads", [2, 4, 9])
def test_requests_beside_each_other_get_what_each_gets_alone(dtype: str, window: int, threads: int) -> None:
    """However a step is cut: splits of the long ones go to several threads, one each or some together."""
    lengths, last = (2600, 40, 513, 1100, 7), 3
    heads, kv_heads, head_dim, block = 4, 2, 16, 16
    draw = torch.Generator().manual_seed(0)

    def drawn(length: int, heads: int) -> torch.Tensor:
        return torch.randn(length, heads, head_dim, generator=draw).to(TORCH[dtype])

    every = [[drawn(length, count) for count in (heads, kv_heads, kv_heads)] for length in lengths]
    blocks = -(-max(lengths) // block)
    slots = Slots(len(lengths), max(lengths), 1, blocks)
    pool = PageMemory(len(lengths) * blocks, page_bytes(2, kv_heads, head_dim, block, dtype))
    program = ExternalProgram(slots, sum(lengths), dtype, threads, 8, 1, pool, block)
    slots.block_table[0] = np.arange(len(lengths) * blocks).reshape(len(lengths), blocks)
    slots.num_tokens[:] = slots.prompt_len[:] = lengths
    shape = heads, kv_heads, head_dim

    def step(first: list[int], end: list[int]) -> list[torch.Tensor]:
        counts = np.array(end) - first
        rows = [[part[a:b] for part in one] for one, a, b in zip(every, first, end, strict=True)]
        q, k, v = (torch.cat(parts) for parts in zip(*rows, strict=True))
        program.prepare(np.arange(len(lengths)), counts)
        program.store_kv((0, 1), array(k), array(v), kv_heads, head_dim)
        out = tensor(program.attention((0, 1), array(q.flatten(1)), *shape, 0.3, window, 0.0))
        slots.num_computed[:] = end
        return list(out.split(counts.tolist()))

    before = [length - last for length in lengths]
    step([0] * len(lengths), before)
    for (q, k, v), found in zip(every, step(before, list(lengths)), strict=True):
        alone = Cache(dtype, block, kv_heads, head_dim, 1, len(q)).attend(q, k, v, len(q), window)
        assert torch.equal(found, alone[-last:])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_groups_share_pages_of_their_own_shapes_and_numbers_of_positions(dtype: str) -> None:
    """Two groups deal one pool between them; each gives what it gives alone."""
    length, blocks, shapes = 100, (16, 64), ((4, 24), (1, 16))
    tables = [-(-length // block) for block in blocks]
    slots = Slots(1, length, 2, max(tables))
    largest = max(page_bytes(2, *shape, block, dtype) for shape, block in zip(shapes, blocks, strict=True))
    pool = PageMemory(sum(tables), largest)
    pages = np.random.default_rng(3).permutation(sum(tables))
    program = ExternalProgram(slots, length, dtype, 2, 8, 1, pool, blocks)
    slots.block_table[0, 0, : tables[0]] = pages[: tables[0]]
    slots.block_table[1, 0, : tables[1]] = pages[tables[0] :]
    slots.num_tokens[0] = slots.prompt_len[0] = length
    given = [inputs(length, 2 * kv_heads, kv_heads, head_dim, dtype) for kv_heads, head_dim in shapes]
    outs: list[list[torch.Tensor]] = [[], []]
    for begin in range(0, length, 30):
        part = slice(begin, min(begin + 30, length))
        program.prepare(np.array([0]), np.array([part.stop - begin]))
        for group, ((q, k, v), shape) in enumerate(zip(given, shapes, strict=True)):
            program.store_kv((group, 1), array(k[part]), array(v[part]), *shape)
            queries = array(q[part].flatten(1))
            outs[group].append(tensor(program.attention((group, 1), queries, q.shape[1], *shape, 0.3)))
        slots.num_computed[0] = part.stop
    for out, (q, k, v), shape in zip(outs, given, shapes, strict=True):
        assert torch.equal(torch.cat(out), Cache(dtype, 16, *shape, 1, length).attend(q, k, v, length))


def test_every_groups_table_must_have_pages_for_what_is_computed() -> None:
    slots = Slots(1, 40, 2, 5)
    program = ExternalProgram(slots, 40, "fp32", 1, 8, 1, PageMemory(8, 1 << 12), (8, 16))
    slots.num_tokens[0] = slots.prompt_len[0] = 40
    slots.block_table[0, 0, :5] = range(5)
    slots.block_table[1, 0, :2] = (5, 6)
    program.prepare(np.array([0]), np.array([32]))
    with pytest.raises(ValueError, match="page"):
        program.prepare(np.array([0]), np.array([33]))
