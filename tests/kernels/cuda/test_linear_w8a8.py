from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import fp8_sum, one_code, rounding, row_error
from slipway_kernels.linear_bf16.choose import Region
from slipway_kernels.linear_w8a8 import linear_w8a8, op, quantized_linear, reference
from slipway_kernels.quantize.reference import quantize

FP8, INT8 = torch.float8_e4m3fn, torch.int8


def bound(out: torch.dtype, dtype: torch.dtype, m: int, k: int, device: torch.device) -> float:
    """Many rows are multiplied by tensor cores, whose sums of fp8 are narrow."""
    narrow = dtype == FP8 and m > op.FEW and device.type == "cuda"
    return rounding(out, terms=k) + (fp8_sum(k) if narrow else 0.0)


def values(rows: int, k: int, dtype: torch.dtype, device: torch.device, apart: int = 0) -> torch.Tensor:
    """Random numbers of an 8-bit type, in rows that lie `apart` more numbers from each other."""
    if dtype == INT8:
        return torch.randint(-127, 128, (rows, k + apart), device=device, dtype=dtype)[:, :k]
    return torch.randn(rows, k + apart, device=device).to(dtype)[:, :k]


def scales(kind: str, m: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-k // 128)
    shapes = {
        "rows": ((m,), (n,)),
        "one": ((1,), (1,)),
        "one for w": ((m,), (1,)),
        "blocks": ((m, blocks), (-(-n // 128), blocks)),
    }
    x_scale, w_scale = (torch.rand(shape, device=device) + 0.5 for shape in shapes[kind])
    return x_scale, w_scale / k**0.5


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "kind", "out", "biased"),
    [
        # few rows
        (1, 16, 64, FP8, "rows", torch.bfloat16, False),
        (5, 33, 1056, INT8, "one", torch.float32, True),
        (16, 40, 320, FP8, "blocks", torch.float16, True),
        (3, 130, 144, INT8, "blocks", torch.bfloat16, False),
        (2, 88, 48, FP8, "one for w", torch.float32, False),
        # tiles
        (17, 40, 288, FP8, "rows", torch.bfloat16, True),
        (64, 33, 144, INT8, "one", torch.float16, False),
        (70, 72, 528, INT8, "rows", torch.float32, True),
        (70, 200, 272, FP8, "blocks", torch.bfloat16, False),
        (20, 136, 320, FP8, "blocks", torch.float32, True),
        (20, 8, 32, FP8, "rows", torch.bfloat16, False),
        # rows that do not start at multiples of 16 bytes
        (2, 19, 100, INT8, "rows", torch.float32, False),
        (40, 35, 150, FP8, "blocks", torch.bfloat16, True),
        (33, 7, 20, FP8, "one for w", torch.float16, False),
        (0, 16, 32, INT8, "rows", torch.bfloat16, False),
    ],
)
def test_a_product_of_8_bit_numbers_is_the_references(
    device: torch.device,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    kind: str,
    out: torch.dtype,
    biased: bool,
) -> None:
    x, w = values(m, k, dtype, device, apart=16), values(n, k, dtype, device)
    x_scale, w_scale = scales(kind, m, n, k, device)
    if dtype == INT8:
        w_scale /= 1000
    bias = torch.randn(n, device=device, dtype=torch.bfloat16) if biased else None
    wide = torch.full((m, n + 3), 7.0, device=device, dtype=out)
    y = linear_w8a8(x, x_scale, w, w_scale, wide[:, :n], bias=bias)
    expected = reference.linear_w8a8(x, x_scale, w, w_scale, bias)
    assert row_error(y, expected) <= bound(out, dtype, m, k, device)
    assert (wide[:, n:] == 7).all()


@pytest.mark.parametrize("kind", ["rows", "blocks"])
@pytest.mark.parametrize("m", [9, 20])
def test_weights_of_many_columns_take_wider_tiles_that_compute_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, m: int, kind: str
) -> None:
    """As if 40 columns were more than 8192."""
    monkeypatch.setattr(op, "FEW_TILES", [tile for tile in op.FEW_TILES if "n" not in tile.when])
    monkeypatch.setattr(op, "TILES", [tile for tile in op.TILES if "n" not in tile.when])
    x, w = values(m, 272, FP8, device), values(40, 272, FP8, device)
    x_scale, w_scale = scales(kind, m, 40, 272, device)
    y = linear_w8a8(x, x_scale, w, w_scale, torch.empty(m, 40, device=device))
    expected = reference.linear_w8a8(x, x_scale, w, w_scale)
    assert row_error(y, expected) <= bound(y.dtype, FP8, m, 272, device)


@pytest.mark.parametrize(("m", "n"), [(1100, 272), (650, 300)])
def test_the_largest_tiles_compute_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, m: int, n: int
) -> None:
    """As if the device had few multiprocessors: tiles of 128 by 256 in their grouped order."""
    small = [tile for tile in op.TILES if "squares" not in tile.when]
    monkeypatch.setattr(op, "TILES", small)
    x, w = values(m, 32, INT8, device), values(n, 32, INT8, device)
    x_scale, w_scale = scales("rows", m, n, 32, device)
    y = linear_w8a8(x, x_scale, w, w_scale, torch.empty(m, n, device=device))
    assert row_error(y, reference.linear_w8a8(x, x_scale, w, w_scale)) <= rounding(y.dtype)


def test_sums_of_int8_products_are_exact(device: torch.device) -> None:
    """Sums beyond 2²⁴, where fp32 would no longer tell neighbours apart."""
    x = torch.full((2, 2048), 127, device=device, dtype=INT8)
    w = torch.full((3, 2048), 127, device=device, dtype=INT8)
    w[1, 0], w[2, 0] = 126, -127
    one = torch.ones(1, device=device)
    y = linear_w8a8(x, one, w, one, torch.empty(2, 3, device=device))
    assert torch.equal(y.double(), (x.double() @ w.double().T).float().double())


def test_scales_of_blocks_may_lie_block_by_block(device: torch.device) -> None:
    x, w = values(6, 300, INT8, device), values(8, 300, INT8, device)
    x_scale, w_scale = scales("blocks", 6, 8, 300, device)
    outs = [
        linear_w8a8(x, scale, w, w_scale, torch.empty(6, 8, device=device))
        for scale in (x_scale, x_scale.T.contiguous().T)
    ]
    assert torch.equal(*outs)


def test_a_row_among_few_does_not_depend_on_the_others(device: torch.device) -> None:
    x, w = values(9, 320, FP8, device), values(40, 320, FP8, device)
    x_scale, w_scale = scales("rows", 9, 40, 320, device)
    together = linear_w8a8(x, x_scale, w, w_scale, torch.empty(9, 40, device=device))
    alone = linear_w8a8(x[3:4], x_scale[3:4], w, w_scale, torch.empty(1, 40, device=device))
    assert torch.equal(together[3:4], alone)


@pytest.mark.parametrize("kind", ["rows", "one", "one for w"])
def test_torch_multiplies_where_it_was_measured_to_be_faster(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 begins at compute capability 8.9")
    x, w = values(32, 64, FP8, device), values(48, 64, FP8, device)
    x_scale, w_scale = scales(kind, 32, 48, 64, device)
    arch = op.arch_of(device)
    monkeypatch.setattr(op, "TORCH", (Region(arch, FP8, (17, 64), (1, 64), (1, 64), "a test"),))
    monkeypatch.setattr(op, "TILES", ())  # ours would find no tile
    y = linear_w8a8(x, x_scale, w, w_scale, torch.empty(32, 48, device=device, dtype=torch.bfloat16))
    expected = reference.linear_w8a8(x, x_scale, w, w_scale)
    assert row_error(y, expected) <= bound(y.dtype, FP8, 32, 64, device)


def test_offsets_beyond_two_to_the_31_are_reached(device: torch.device) -> None:
    """Two rows that lie 2³¹ numbers apart, on either side: the memory between them is never touched."""
    far = 2**31 + 64
    storage = torch.empty(far + 64, device=device, dtype=INT8)
    rows = storage.as_strided((2, 64), (far, 1))
    rows.copy_(values(2, 64, INT8, device))
    other, one = values(2, 64, INT8, device), torch.ones(1, device=device)
    for x, w in ((rows, other), (other, rows), (rows.repeat(9, 1), rows)):
        y = linear_w8a8(x, one, w, one, torch.empty(len(x), 2, device=device))
        assert torch.equal(y, reference.linear_w8a8(x, one, w, one))


def test_operands_that_do_not_belong_together_are_refused(device: torch.device) -> None:
    x, w, one = (
        torch.zeros(2, 32, dtype=INT8, device=device),
        torch.zeros(4, 32, dtype=INT8, device=device),
        torch.ones(1, device=device),
    )
    out = torch.empty(2, 4, device=device)
    with pytest.raises(ValueError, match=r"x is \[2, 32\], w \[4, 31\], out \[2, 4\]"):
        linear_w8a8(x, one, w[:, :31], one, out)
    with pytest.raises(ValueError, match=r"x is torch\.int8 and w torch\.float8_e4m3fn: both are"):
        linear_w8a8(x, one, w.to(FP8), one, out)
    with pytest.raises(ValueError, match=r"the scales of x are torch\.float32 \[3\], those of w"):
        linear_w8a8(x, torch.ones(3, device=device), w, one, out)
    with pytest.raises(ValueError, match="or by blocks"):
        linear_w8a8(x, torch.ones(2, 1, device=device), w, one, out)
    with pytest.raises(ValueError, match="the columns of a row are adjacent"):
        linear_w8a8(x, one, w, one, torch.empty(4, 2, device=device).T)


def test_fp8_is_refused_where_there_is_no_fp8_arithmetic(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "arch_of", lambda device: 80)
    x, one = torch.zeros(2, 32, device=device).to(FP8), torch.ones(1, device=device)
    with pytest.raises(ValueError, match=r"compute capability 8\.0 has no fp8 arithmetic"):
        linear_w8a8(x, one, x, one, torch.empty(2, 2, device=device))


@pytest.mark.parametrize("m", [20, 70])
def test_ampere_s_tiles_compute_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, m: int
) -> None:
    monkeypatch.setattr(op, "arch_of", lambda device: 80)
    x, w = values(m, 144, INT8, device), values(72, 144, INT8, device)
    x_scale, w_scale = scales("rows", m, 72, 144, device)
    y = linear_w8a8(x, x_scale, w, w_scale, torch.empty(m, 72, device=device))
    assert row_error(y, reference.linear_w8a8(x, x_scale, w, w_scale)) <= rounding(y.dtype)


@pytest.mark.parametrize("dtype", [FP8, INT8])
@pytest.mark.parametrize("kind", ["rows", "one for w", "blocks"])
@pytest.mark.parametrize("m", [3, 21])
def test_wide_activations_are_quantized_as_the_weight_wants_them(
    device: torch.device, dtype: torch.dtype, kind: str, m: int
) -> None:
    n, k = 24, 288
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = values(n, k, dtype, device)
    w_scale = scales(kind, m, n, k, device)[1]
    y = quantized_linear(x, w, w_scale, torch.empty(m, n, device=device))
    x8, x_scale = quantize(x, dtype, 128 if kind == "blocks" else 0)
    expected = reference.linear_w8a8(x8, x_scale if kind == "blocks" else x_scale[:, 0], w, w_scale)
    # A few numbers of a row may be the neighbours of the reference's.
    largest = (x.float().abs().amax(1) / x.float().norm(dim=1)).max()
    assert row_error(y, expected) <= 3 * one_code(dtype) * largest + rounding(terms=k)
    exact = x.float() @ reference.widened(w, w_scale).T
    assert row_error(y, exact) <= rounding(FP8)  # the coarser of the two types
