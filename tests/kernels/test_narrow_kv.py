"""Keys and values in eight bits: how they are rounded, and what attention makes of them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from test_attention import BLOCKS, Cache, inputs
from toy import TORCH

from slipway_kernels.attention import reference
from slipway_kernels.cpu import ExternalProgram, PageMemory, page_bytes

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
KINDS = (*TYPES, "int8")
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def rounded(x: torch.Tensor, kind: str, scale: float = 1.0) -> torch.Tensor:
    """fp32, as the cache gives it back. int8 has scales of its own, one for each row of a head."""
    if kind == "int8":
        own = x.float().abs().amax(-1, keepdim=True) / 127
        return (x.float() / own.where(own > 0, 1)).round() * own
    narrow = (x.float() / scale).clamp(-LARGEST[kind], LARGEST[kind]).to(TYPES[kind])
    return narrow.float() * scale


class NarrowCache(Cache):
    """Pages of eight bits under a program of `dtype`."""

    def __init__(
        self, kind: str, dtype: str, block: int, kv_heads: int, head_dim: int, threads: int, length: int
    ) -> None:
        super().__init__(dtype, block, kv_heads, head_dim, threads, length)
        pages = page_bytes(2, kv_heads, head_dim, block, kind)
        self.pool = PageMemory(-(-length // block), pages)
        self.program = ExternalProgram(
            self.slots, length, dtype, threads, 8, 1, self.pool, block, kv_dtype=kind
        )
        self.fill_with_nan()


def extremes(kind: str) -> torch.Tensor:
    """Numbers of every exponent, ties of both parities, those that overflow or vanish, infinities and NaN."""
    codes = torch.arange(256, dtype=torch.uint8).view(TYPES[kind]).float()
    exact = codes[codes.isfinite()]
    ties = (exact.sort().values[1:] + exact.sort().values[:-1]) / 2
    draw = torch.Generator().manual_seed(0)
    near = ties * (1 + torch.randn(len(ties), generator=draw) * 1e-3)
    wild = torch.randn(2000, generator=draw) * 10.0 ** torch.randint(-12, 9, (2000,), generator=draw)
    return torch.cat([exact, ties, near, wild, torch.tensor([torch.inf, -torch.inf, 1e38, torch.nan, -0.0])])


@pytest.mark.parametrize("kind", TYPES)
def test_values_are_rounded_to_nearest_even_and_saturate(kind: str) -> None:
    values = extremes(kind)
    rows = torch.nn.functional.pad(values, (0, -len(values) % 256)).view(-1, 1, 256)
    cache = NarrowCache(kind, "fp32", 16, 1, 256, 1, len(rows))
    cache.attend(torch.zeros_like(rows), torch.zeros_like(rows), rows, len(rows))
    found = []
    for row in range(len(rows)):
        page = int(cache.slots.block_table[0, 0, row // 16])
        layer = page * cache.pool.page_bytes + cache.pool.page_bytes // 2
        at = cache.pool.memory.address + layer + 256 * 16 + row % 16 * 256
        found.append(np.ctypeslib.as_array((ctypes.c_uint8 * 256).from_address(at)).copy())
    codes = torch.from_numpy(np.concatenate(found))[: len(values)]
    expected = values.clamp(-LARGEST[kind], LARGEST[kind]).to(TYPES[kind]).view(torch.uint8)
    nan = values.isnan()
    assert torch.equal(codes[~nan], expected[~nan])
    assert (codes[nan] & 0x7F == 0x7F).all()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", TYPES)
def test_every_code_is_widened_exactly(kind: str, dtype: str) -> None:
    """What a position that sees only itself attends to is its own value."""
    codes = torch.arange(256, dtype=torch.uint8).view(TYPES[kind]).float()
    codes = codes.where(codes.isfinite(), 0).view(1, 1, 256)
    for block in (8, 16):
        cache = NarrowCache(kind, dtype, block, 1, 256, 1, 1)
        values = codes.to(TORCH[dtype])
        found = cache.attend(torch.zeros_like(values), torch.zeros_like(values), values, 1)
        assert torch.equal(found.float().flatten(), codes.flatten())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 1, 64), (4, 4, 8), (9, 3, 72), (8, 1, 256)])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (20, 2.0)])
def test_attention_is_the_references_on_rounded_keys_and_values(
    kind: str, dtype: str, heads: int, kv_heads: int, head_dim: int, window: int, softcap: float
) -> None:
    q, k, v = inputs(100, heads, kv_heads, head_dim, dtype)
    cache = NarrowCache(kind, dtype, 16, kv_heads, head_dim, 1, 100)
    expected = reference.attention(q, rounded(k, kind), rounded(v, kind), 0.3, window, softcap)
    found = cache.attend(q, k, v, 100, window, softcap).float().view(expected.shape)
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_scales_bring_what_is_too_large_or_small_into_range(dtype: str) -> None:
    q, k, v = inputs(60, 4, 2, 32, dtype)
    q, k, v = q / 1024, k * 1024, v / 4096
    cache = NarrowCache("e4m3", dtype, 16, 2, 32, 1, 60)
    cache.program.scale_kv((0, 0), 3.0, 5.0)  # another layer's
    cache.program.scale_kv((0, 1), 8.0, 2.0**-14)
    expected = reference.attention(q, rounded(k, "e4m3", 8.0), rounded(v, "e4m3", 2.0**-14), 0.3)
    found = cache.attend(q, k, v, 60).float().view(expected.shape)
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(found * 4096, expected * 4096, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_finds_the_scales_that_later_ones_keep(dtype: str, threads: int) -> None:
    q, k, v = inputs(60, 4, 2, 32, dtype)
    q, k, v = q / 4096, k * 4096, v * 2.0**20
    k[40:], v[40:] = k[40:] * 2, v[40:] * 4  # of later steps; the divisors leave them room
    cache = NarrowCache("e4m3", dtype, 16, 2, 32, threads, 60)
    cache.program.find_kv_scales(200.0, 100.0)
    begun = cache.attend(q[:40], k[:40], v[:40], 40)
    cache.program.finish(np.zeros((0, 8), np.float32))
    cache.slots.num_computed[0] = 0
    again = cache.attend(q, k, v, 40)
    assert torch.equal(again[:40], begun)
    key, value = (float(x[:40].float().abs().max()) for x in (k, v))
    keys, values = rounded(k, "e4m3", key / 200), rounded(v, "e4m3", value / 100)
    expected = reference.attention(q, keys, values, 0.3)
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    found = again.float().view(expected.shape)
    torch.testing.assert_close(found / 2.0**20, expected / 2.0**20, atol=tolerance, rtol=tolerance)


def test_a_scale_is_not_made_of_zeros_infinities_or_nan() -> None:
    q, k, v = inputs(16, 2, 1, 32, "fp32")
    cache = NarrowCache("e4m3", "fp32", 16, 1, 32, 1, 16)
    cache.program.find_kv_scales(448.0, 448.0)
    wild = v.clone()
    wild[3, 0, :2] = torch.tensor([torch.inf, torch.nan])
    cache.attend(q, torch.zeros_like(k), wild, 16)
    cache.program.finish(np.zeros((1, 8), np.float32))
    cache.slots.num_computed[0] = 0
    largest = float(wild.nan_to_num(0.0, posinf=0.0).abs().max())
    expected = reference.attention(q, rounded(k, "e4m3"), rounded(v, "e4m3", largest / 448), 0.3)
    found = cache.attend(q, k, v, 16).view(expected.shape)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_divisors_that_are_not_above_zero_are_refused() -> None:
    cache = NarrowCache("e4m3", "fp32", 16, 1, 32, 1, 16)
    with pytest.raises(ValueError, match=r"divisors of 200.0 and 0.0: both must be above 0"):
        cache.program.find_kv_scales(200.0, 0.0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_each_position_and_head_has_its_own_scale(dtype: str) -> None:
    """Rows 2^40 times as large as others lose nothing, nor do these."""
    q, k, v = inputs(60, 4, 2, 32, dtype)
    factor = 2.0 ** torch.randint(-20, 20, (60, 2, 1), generator=torch.Generator().manual_seed(0))
    k, v = k * factor.to(k.dtype), v * factor.to(v.dtype)
    found = NarrowCache("int8", dtype, 16, 2, 32, 1, 60).attend(q / 2**20, k, v, 60).float()
    expected = reference.attention(q / 2**20, rounded(k, "int8"), rounded(v, "int8"), 0.3)
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    largest = expected.abs().amax(-1, keepdim=True)
    torch.testing.assert_close(
        found.view(expected.shape) / largest, expected / largest, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("wild", [torch.nan, torch.inf])
@pytest.mark.parametrize("block", [8, 16])
def test_what_is_no_number_reaches_those_alone_who_see_it(wild: float, block: int) -> None:
    q, k, v = inputs(40, 2, 1, 32, "bf16")
    expected = NarrowCache("int8", "bf16", block, 1, 32, 1, 40).attend(q, k, v, 40)
    k[20, 0, 3] = v[20, 0, 5] = wild
    found = NarrowCache("int8", "bf16", block, 1, 32, 1, 40).attend(q, k, v, 40)
    assert torch.equal(found[:20], expected[:20])
    assert found[20:].isnan().all()


def test_a_row_of_zeros_is_one() -> None:
    q, k, v = inputs(16, 2, 1, 32, "bf16")
    found = NarrowCache("int8", "bf16", 16, 1, 32, 1, 16).attend(q, k * 0, v * 0, 16)
    assert torch.equal(found, torch.zeros_like(found))


def test_layers_give_no_scales_to_integers() -> None:
    program = NarrowCache("int8", "bf16", 16, 1, 32, 1, 16).program
    with pytest.raises(ValueError, match="a scale for each position"):
        program.scale_kv((0, 0), 2.0, 2.0)
    with pytest.raises(ValueError, match="a scale for each position"):
        program.find_kv_scales(200.0, 100.0)


@pytest.mark.parametrize("kind", ["e4m3", "int8"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [0, 20])
def test_a_row_does_not_depend_on_chunk_block_size_or_threads(kind: str, dtype: str, window: int) -> None:
    q, k, v = inputs(100, 6, 2, 24, dtype)
    expected = NarrowCache(kind, dtype, 16, 2, 24, 1, 100).attend(q, k, v, 100, window)
    assert not expected.isnan().any()
    for block in BLOCKS:
        for chunk in (1, 7, 100):
            found = NarrowCache(kind, dtype, block, 2, 24, 2, 100).attend(q, k, v, chunk, window)
            assert torch.equal(found, expected), (block, chunk)


@pytest.mark.parametrize("kind", ["e5m2", "int8"])
def test_splits_of_a_long_context_merge_to_the_same_bits(kind: str) -> None:
    q, k, v = inputs(1200, 3, 1, 16, "bf16")
    expected = NarrowCache(kind, "bf16", 16, 1, 16, 1, 1200).attend(q, k, v, 1200)
    for chunk, threads in ((3, 3), (300, 2)):
        found = NarrowCache(kind, "bf16", 16, 1, 16, threads, 1200).attend(q, k, v, chunk)
        assert torch.equal(found, expected), (chunk, threads)


def test_a_page_takes_half_the_bytes() -> None:
    for kind in TYPES:
        assert page_bytes(2, 3, 64, 16, kind) * 2 == page_bytes(2, 3, 64, 16, "bf16")
    scales = 2 * 2 * 3 * 16 * 4  # layers, keys and values, heads, positions, fp32
    assert page_bytes(2, 3, 64, 16, "int8") == page_bytes(2, 3, 64, 16, "e4m3") + scales
