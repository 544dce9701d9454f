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
from slipway_kernels.cpu import BLOCK_TYPES, Packed, PackedBlocks, PackedCodes, Weight, linear

Product = Callable[[Weight, np.ndarray], np.ndarray]
N = 70
ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 130)


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Product:
    """The kernels of cpu/isa_amx.cpp on tiles in memory, compiled for AVX2."""
    if platform.machine() not in ("x86_64", "AMD64") or "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the emulation is compiled for AVX2")
    target = tmp_path_factory.mktemp("tiles") / "tiles.so"
    flags = [*FLAGS, *ISA_FLAGS, *AVX2, "-O1", f"-I{PACKAGE / 'cpu'}"]
    run([*compiler(), *flags, "-shared", str(Path(__file__).with_name("tiles.cpp")), "-o", str(target)])
    library = ctypes.CDLL(str(target))

    def product(weight: Weight, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), weight.n), np.nan, np.float32)
        library.tiled_product(
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
