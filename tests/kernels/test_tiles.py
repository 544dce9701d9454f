"""Products in tiles, emulated where the processor has none: the bits of other sets, and of a row alone."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from packed_forms import finite_blocks
from slipway_kernels.build import AVX2, FLAGS, ISA_FLAGS, PACKAGE, compiler, run
from slipway_kernels.cpu import (
    BLOCK_TYPES,
    ExternalProgram,
    Packed,
    PackedBlocks,
    PackedCodes,
    PackedNarrow,
    PageMemory,
    Slots,
    Weight,
    isa,
    linear,
    page_bytes,
)

Product = Callable[[Weight, np.ndarray], np.ndarray]
N = 70
AMX = isa() == "amx"
"""Whether this processor's own tiles compute: then the emulation has their bits."""
ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 130)


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels of cpu/isa_amx.cpp on tiles in memory, compiled for AVX2."""
    if platform.machine() not in ("x86_64", "AMD64") or "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the emulation is compiled for AVX2")
    target = tmp_path_factory.mktemp("tiles") / "tiles.so"
    flags = [*FLAGS, *ISA_FLAGS, *AVX2, "-O1", f"-I{PACKAGE / 'cpu'}"]
    run([*compiler(), *flags, "-shared", str(Path(__file__).with_name("tiles.cpp")), "-o", str(target)])
    return ctypes.CDLL(str(target))


@pytest.fixture(scope="module")
def tiled(emulation: ctypes.CDLL) -> Product:
    def product(weight: Weight, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), weight.n), np.nan, np.float32)
        emulation.tiled_product(
            ctypes.byref(weight.struct),
            ctypes.c_void_p(x.ctypes.data),
            len(x),
            ctypes.c_void_p(out.ctypes.data),
        )
        return out

    return product


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[-1]).standard_normal(shape, np.float32)


def integers(bits: int, group: int, k: int, *, minimums: bool = False, wide: bool = False) -> PackedCodes:
    weight = PackedCodes(N, k, bits, group, minimums=minimums, wide_scales=wide)
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 16, (N, k), np.uint8) if bits == 4 else rng.integers(-128, 128, (N, k), np.int8)
    scales = rng.random((N, weight.groups), np.float32) / 100
    weight.load_rows(codes, scales, -scales * 7 if minimums else None)
    return weight


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_blocks_of_gguf_have_the_bits_of_other_instruction_sets(tiled: Product, name: str) -> None:
    k = 1280  # of several panels, the last of them cut
    weight = PackedBlocks(N, k, name)
    weight.load_rows(finite_blocks(name, N, k))
    x = drawn(max(ROWS), k)
    for rows in ROWS:
        assert tiled(weight, x[:rows]).tobytes() == linear(x[:rows], weight).tobytes(), rows


@pytest.mark.parametrize(
    ("bits", "group", "k", "options"),
    [
        (4, 32, 33, {}),
        (4, 128, 640, {"minimums": True}),
        (4, 96, 1152, {}),  # groups that panels part
        (4, 1100, 1100, {"minimums": True, "wide": True}),
        (8, 16, 592, {}),
        (4, 16, 592, {"minimums": True}),
        (8, 32, 64, {"minimums": True}),
        (8, 577, 577, {"wide": True}),
    ],
)
def test_integers_have_the_bits_of_other_instruction_sets(
    tiled: Product, bits: int, group: int, k: int, options: dict[str, bool]
) -> None:
    weight = integers(bits, group, k, **options)
    x = drawn(max(ROWS), k)
    for rows in ROWS:
        assert tiled(weight, x[:rows]).tobytes() == linear(x[:rows], weight).tobytes(), rows


@pytest.mark.parametrize("k", [2, 31, 32, 34, 64, 577, 1100])
def test_a_row_of_bf16_is_the_same_alone_and_in_a_batch(tiled: Product, k: int) -> None:
    weight = Packed(N, k, "bf16")
    values = drawn(N, k).astype(ml_dtypes.bfloat16)
    weight.load_rows(values)
    x = np.zeros(
        max(ROWS) * k + 1, ml_dtypes.bfloat16
    )  # the last row of an odd width is read to its pair's end
    rows = x[:-1].reshape(max(ROWS), k)
    rows[:] = drawn(max(ROWS), k)
    together = tiled(weight, rows)
    exact = rows.astype(np.float64) @ values.astype(np.float64).T
    scale = np.abs(rows.astype(np.float64)) @ np.abs(values.astype(np.float64)).T
    assert (np.abs(together - exact) <= 2.0**-22 * np.sqrt(k) * scale).all()
    for count in ROWS:
        assert tiled(weight, rows[:count]).tobytes() == together[:count].tobytes(), count
    for row in (0, 16, 40, 129):
        assert tiled(weight, rows[row : row + 1]).tobytes() == together[row].tobytes()
    assert not AMX or linear(rows, weight).tobytes() == together.tobytes()


@pytest.mark.parametrize(("k", "rows"), [(577, 530), (1100, 490), (2305, 290)])
def test_rows_in_parts_and_columns_in_panels_change_no_bit(tiled: Product, k: int, rows: int) -> None:
    weight = Packed(N, k, "bf16")
    values = drawn(N, k).astype(ml_dtypes.bfloat16)
    weight.load_rows(values)
    x = np.zeros(rows * k + 1, ml_dtypes.bfloat16)
    many = x[:-1].reshape(rows, k)
    many[:] = drawn(rows, k)
    together = tiled(weight, many)
    for first, count in ((0, 1), (rows // 2 - 3, 17), (rows - 40, 40)):
        few = tiled(weight, many[first : first + count])
        assert few.tobytes() == together[first : first + count].tobytes(), first
    assert not AMX or linear(many, weight).tobytes() == together.tobytes()


def test_a_few_rows_take_what_is_subnormal_as_tiles_do(tiled: Product) -> None:
    """Among operands, sums of a depth, and what is added up."""
    tiny = np.array([1e-39, 1.2e-38, 3e-38, 1e-20, 1e-25, 1], np.float32)
    rng = np.random.default_rng(7)
    weight = Packed(N, 96, "bf16")
    weight.load_rows((rng.choice(tiny, (N, 96)) * rng.choice([-1, 1], (N, 96))).astype(ml_dtypes.bfloat16))
    x = (rng.choice(tiny, (20, 96)) * rng.choice([-1, 1], (20, 96))).astype(ml_dtypes.bfloat16)
    together = tiled(weight, x)
    for row in range(20):
        assert tiled(weight, x[row : row + 1]).tobytes() == together[row].tobytes(), row
    assert not AMX or linear(x, weight).tobytes() == together.tobytes()


@pytest.mark.parametrize(("k", "group"), [(64, 64), (600, 128), (577, 577)])
def test_a_row_of_e4m3_is_the_same_alone_and_in_a_batch(tiled: Product, k: int, group: int) -> None:
    weight = PackedNarrow(N, k, group)
    values = drawn(N, k).astype(ml_dtypes.float8_e4m3fn)
    scales = np.random.default_rng(k).random((N, -(-k // group)), np.float32)
    weight.load_rows(values, scales)
    x = np.zeros(max(ROWS) * k + 1, ml_dtypes.bfloat16)
    rows = x[:-1].reshape(max(ROWS), k)
    rows[:] = drawn(max(ROWS), k)
    together = tiled(weight, rows)
    wide = values.astype(np.float64) * scales.repeat(group, axis=1)[:, :k]
    bound = np.abs(rows.astype(np.float64)) @ np.abs(wide).T
    assert (np.abs(together - rows.astype(np.float64) @ wide.T) <= 2.0**-22 * np.sqrt(k) * bound).all()
    for count in ROWS:
        assert tiled(weight, rows[:count]).tobytes() == together[:count].tobytes(), count
    assert not AMX or linear(rows, weight).tobytes() == together.tobytes()


def test_a_tile_of_bf16_sums_even_and_odd_columns_apart(tiled: Product) -> None:
    """1e8 + 1 - 1e8 is 0 in one sum and 1 in two; what is subnormal counts as 0."""
    weight = Packed(1, 32, "bf16")
    values = np.zeros((1, 32), np.float32)
    values[0, :4] = 1
    weight.load_rows(values.astype(ml_dtypes.bfloat16))
    x = np.zeros((3, 32), np.float32)
    x[0, :3] = 1e8, 1, -1e8
    x[1, :4] = 1, 1e8, 0, -1e8
    x[2, 0] = 1e-39
    assert tiled(weight, x.astype(ml_dtypes.bfloat16)).ravel().tolist() == [1, 1, 0]


Attend = Callable[..., np.ndarray]
HEADS, KV_HEADS = 6, 2


@pytest.fixture(scope="module")
def attend(emulation: ctypes.CDLL) -> Attend:
    def attention(
        q: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        block: int = 16,
        window: int = 0,
        together: int = 12,
    ) -> np.ndarray:
        out = np.empty_like(q)
        addresses = [ctypes.c_void_p(array.ctypes.data) for array in (q, keys, values)]
        emulation.tiled_attention(
            *(*addresses, HEADS, KV_HEADS, q.shape[-1] // HEADS, block, len(keys), len(q), window, together),
            ctypes.c_void_p(out.ctypes.data),
        )
        return out

    return attention


def attended(q: np.ndarray, keys: np.ndarray, values: np.ndarray, window: int) -> np.ndarray:
    """The same in float64, of what was rounded to bf16."""
    dim = q.shape[-1] // HEADS
    q, keys, values = (array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (q, keys, values))
    heads = HEADS // KV_HEADS
    scores = (
        np.einsum("qhgd,phd->qhgp", q.reshape(-1, KV_HEADS, heads, dim), keys.reshape(-1, KV_HEADS, dim)) / 8
    )
    behind = np.arange(len(keys) - len(q), len(keys))[:, None] - np.arange(len(keys))
    hidden = (behind < 0) | ((behind >= window) if window else False)
    scores = np.where(hidden[:, None, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("qhgp,phd->qhgd", weights, values.reshape(-1, KV_HEADS, dim)).reshape(len(q), -1)


@pytest.mark.parametrize(("dim", "block", "window"), [(16, 16, 0), (64, 16, 0), (80, 32, 40), (128, 24, 0)])
def test_a_query_is_the_same_alone_and_in_a_chunk(attend: Attend, dim: int, block: int, window: int) -> None:
    positions, rows = (
        601,
        37,
    )  # over the end of a split, and pages hold what is no number behind the last position
    q = drawn(rows, HEADS * dim).astype(ml_dtypes.bfloat16)
    keys, values = np.ascontiguousarray(drawn(2, positions, KV_HEADS * dim))
    whole = attend(q, keys, values, block, window)
    expected = attended(q, keys, values, window)
    assert np.abs(whole.astype(np.float64) - expected).max() < 0.02 * np.abs(expected).max()
    for together in (1, 5):
        assert attend(q, keys, values, block, window, together).tobytes() == whole.tobytes(), together
    for row in (0, 8, 36):
        seen = positions - rows + row + 1
        alone = attend(q[row : row + 1], keys[:seen], values[:seen], block, window)
        assert alone.tobytes() == whole[row].tobytes(), row


@pytest.mark.skipif(not AMX, reason="this processor has no tiles of its own")
@pytest.mark.parametrize("dim", [64, 80])
def test_the_processors_tiles_attend_to_the_bit_as_the_emulation(attend: Attend, dim: int) -> None:
    positions, rows = 601, 37
    q = drawn(rows, HEADS * dim).astype(ml_dtypes.bfloat16)
    keys, values = np.ascontiguousarray(drawn(2, positions, KV_HEADS * dim))
    blocks = -(-positions // 16)
    slots = Slots(1, positions, 1, blocks)
    slots.block_table[0, 0] = np.arange(blocks)
    slots.num_tokens[0] = slots.prompt_len[0] = positions
    pool = PageMemory(blocks, page_bytes(1, KV_HEADS, dim, 16, "bf16"))
    program = ExternalProgram(slots, positions, "bf16", 1, 8, 1, pool, 16)
    program.prepare(np.array([0]), np.array([positions]))
    rounded = [array.astype(ml_dtypes.bfloat16) for array in (keys, values)]
    program.store_kv((0, 0), *rounded, KV_HEADS, dim)
    slots.num_computed[0] = positions - rows
    program.prepare(np.array([0]), np.array([rows]))
    made = program.attention((0, 0), q, HEADS, KV_HEADS, dim, 0.125)
    assert made.astype(ml_dtypes.bfloat16).tobytes() == attend(q, keys, values).tobytes()
