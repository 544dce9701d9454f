from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import TensorHandle

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.cuda.launch import arch_of
from slipway_kernels.cuda.tiles import Tile
from slipway_kernels.linear_w4a16 import (
    Packed,
    Workspace,
    dequantize,
    layout,
    linear_w4a16,
    op,
    pack,
    reference,
    rows,
    unpack,
)
from slipway_kernels.linear_w4a16.bench import packed as random_weights


def product(x: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    out = torch.full((len(x), packed.n), float("nan"), dtype=x.dtype, device=x.device)
    return linear_w4a16(x, packed, out, bias=bias, workspace=Workspace(x.device))


def assert_is_the_references(x: Tensor, packed: Packed, bias: Tensor | None = None) -> None:
    expected = reference.linear_w4a16(x, packed, bias)
    # Weights are rounded, and the result.
    assert row_error(product(x, packed, bias), expected) <= rounding(x.dtype, x.dtype, terms=packed.k)


# Rows of x take every tile; k is no multiple of a block, n none of a tile.
@pytest.mark.parametrize(
    ("m", "n", "k", "group", "dtype", "asymmetric", "halves", "ordered", "bias"),
    [
        (1, 72, 256, 32, torch.bfloat16, False, False, False, False),
        (5, 64, 160, 32, torch.float16, True, False, True, True),
        (16, 8, 192, 64, torch.bfloat16, True, True, False, True),
        (17, 136, 320, 64, torch.float16, False, False, True, False),
        (33, 264, 128, 128, torch.bfloat16, True, False, False, False),
        (65, 24, 384, 128, torch.float16, True, True, False, True),
        (3, 40, 96, 96, torch.bfloat16, True, False, True, False),
        (129, 136, 200, 200, torch.bfloat16, False, False, False, False),
        (2, 24, 512, 256, torch.bfloat16, True, False, False, True),
    ],
)
def test_a_product_is_the_references(
    device: torch.device,
    m: int,
    n: int,
    k: int,
    group: int,
    dtype: torch.dtype,
    asymmetric: bool,
    halves: bool,
    ordered: bool,
    bias: bool,
) -> None:
    packed = random_weights(device, n, k, group, 4, dtype, asymmetric, halves, ordered)
    x = torch.randn(m, 2 * k, device=device, dtype=dtype)[:, :k]  # rows apart in memory
    assert_is_the_references(x, packed, torch.randn(n, device=device, dtype=dtype) if bias else None)


@pytest.mark.parametrize(
    ("m", "n", "k", "group", "dtype", "asymmetric", "halves", "ordered"),
    [
        (3, 72, 160, 32, torch.bfloat16, False, False, True),
        (18, 24, 128, 64, torch.float16, True, False, False),
        (65, 40, 256, 128, torch.bfloat16, True, True, False),
        (2, 8, 72, 72, torch.float16, False, False, False),
    ],
)
def test_eight_bits_are_multiplied_likewise(
    device: torch.device,
    m: int,
    n: int,
    k: int,
    group: int,
    dtype: torch.dtype,
    asymmetric: bool,
    halves: bool,
    ordered: bool,
) -> None:
    packed = random_weights(device, n, k, group, 8, dtype, asymmetric, halves, ordered)
    assert_is_the_references(torch.randn(m, k, device=device, dtype=dtype), packed)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("k", "group"), [(96, 32), (192, 64), (384, 128), (72, 72)])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_unpacking_gives_back_what_was_packed(
    device: torch.device, bits: int, dtype: torch.dtype, k: int, group: int, asymmetric: bool
) -> None:
    n = 24
    low, high, kind = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    codes = torch.randint(low, high, (n, k), device=device, dtype=kind)
    scales = torch.rand(n, k // group, device=device).to(dtype).float()
    zeros = torch.randint(low, high, scales.shape, device=device)
    minimums = -scales * zeros if asymmetric else None
    packed = pack(codes, scales, minimums, bits=bits, dtype=dtype)
    assert packed.shifted
    again, same_scales, same_minimums = unpack(packed)
    assert torch.equal(again, codes)
    assert again.dtype == codes.dtype
    assert torch.equal(same_scales, scales)
    assert (same_minimums is None) == (minimums is None)
    if minimums is not None:
        assert torch.equal(same_minimums, minimums)


def test_minimums_of_no_integer_zero_are_kept_as_numbers(device: torch.device) -> None:
    codes = torch.randint(0, 16, (8, 64), device=device, dtype=torch.uint8)
    scales, minimums = torch.rand(2, 8, 2, device=device).bfloat16().float()
    packed = pack(codes, scales, minimums)
    assert not packed.shifted
    assert torch.equal(unpack(packed)[2], minimums)


def test_a_scale_of_zero_makes_rows_of_zeros(device: torch.device) -> None:
    codes = torch.randint(0, 16, (8, 64), device=device, dtype=torch.uint8)
    zero = torch.zeros(8, 2, device=device)
    packed = pack(codes, zero, zero)
    assert packed.shifted
    assert not product(torch.randn(3, 64, device=device, dtype=torch.bfloat16), packed).any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("dtype", "ordered"), [(torch.bfloat16, True), (torch.float16, False)])
@pytest.mark.parametrize("halves", [False, True])
def test_rows_are_the_dequantized_ones_and_those_of_minus_one_stay(
    device: torch.device, bits: int, dtype: torch.dtype, ordered: bool, halves: bool
) -> None:
    packed = random_weights(device, 40, 160, 32, bits, dtype, True, halves, ordered)
    ids = torch.tensor([39, -1, 0, 7, 7, *range(20)], device=device)
    out = torch.full((len(ids), 160), 5.0, device=device, dtype=dtype)
    rows(packed, ids, out)
    expected = reference.dequantized(packed)[ids]
    expected[1] = 5.0
    assert torch.equal(out, expected)


def test_dequantized_weights_are_rounded_once(device: torch.device) -> None:
    packed = random_weights(device, 40, 160, 32, 4, torch.bfloat16, True, True)
    out = torch.empty(20, 160, device=device, dtype=torch.bfloat16)
    assert torch.equal(dequantize(packed, 15, out), reference.dequantized(packed)[15:35])


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device runs the instructions themselves")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("halves", [False, True])
def test_the_assembly_computes_what_the_interpreter_does(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, halves: bool
) -> None:
    packed = random_weights(device, 40, 256, 128, 4, dtype, True, halves)
    weights, expected_weights = torch.empty(2, 40, 256, dtype=dtype)
    x = torch.randn(3, 256, dtype=dtype)
    dequantize(packed, 0, expected_weights)
    expected = product(x, packed)
    monkeypatch.setattr(op, "_PTX", True)
    monkeypatch.setattr(tl, "inline_asm_elementwise", run_assembly)
    assert torch.equal(dequantize(packed, 0, weights), expected_weights)
    assert torch.equal(product(x, packed), expected)


def run_assembly(
    text: str, constraints: str, arguments: list[Any], dtype: Any, is_pure: bool, pack: int
) -> Any:
    """What the few instructions that the kernel has in assembly compute, on numbers of 16 bits in pairs."""
    text = getattr(text, "value", text)
    kind = torch.bfloat16 if dtype == tl.bfloat16 else torch.float16
    suffix = "bf16x2" if kind == torch.bfloat16 else "f16x2"
    assert (constraints, is_pure, pack) == ("=r" + ",r" * len(arguments), True, 2)
    known = {
        f"${place}": torch.from_numpy(argument.handle.data.view(np.int16).copy()).view(kind).double()
        for place, argument in enumerate(arguments, 1)
    }
    for line in text.strip("{} ").rstrip("; ").split(";"):
        name, *operands = line.replace(",", " ").split()
        if name == ".reg":
            continue
        target, *sources = operands
        if name == "mov.b32":
            word = int(sources[0], 16)
            assert word >> 16 == word & 0xFFFF
            known[target] = torch.tensor([word & 0xFFFF], dtype=torch.uint16).view(kind).double()
            continue
        operation = {f"fma.rn.{suffix}": torch.addcmul, f"add.rn.{suffix}": torch.add}
        operation |= {f"mul.rn.{suffix}": torch.mul}
        values = [known[source] for source in sources]
        if name.startswith("fma"):
            values = [values[2], values[0], values[1]]
        known[target] = operation[name](*values).to(kind).double()
    result = known["$0"].to(kind).view(torch.int16).numpy()
    data = result.view(np.uint16) if kind == torch.bfloat16 else result.view(np.float16)
    return tl.tensor(TensorHandle(data, dtype), arguments[0].type)


def test_splits_of_k_add_up_to_the_same_from_run_to_run(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = random_weights(device, 72, 1664, 128)
    plan = op._plan(packed, 5, arch_of(device), device)
    assert plan.splits == 4
    x = torch.randn(5, 1664, device=device, dtype=torch.bfloat16)
    space = Workspace(device)
    first, second = torch.empty(2, 5, 72, device=device, dtype=torch.bfloat16)
    linear_w4a16(x, packed, first, workspace=space)
    assert not space.of(packed, 5)[: 4 * op.ARRIVALS].any()
    linear_w4a16(x, packed, second, workspace=space)
    assert torch.equal(first, second)
    assert_is_the_references(x, packed)
    monkeypatch.setitem(op.RESIDENT[plan.tile.arch], plan.tile.constants["BLOCK_M"], 0)
    assert op._plan(packed, 5, arch_of(device), device).splits == 1
    # Each of the two is rounded, from sums in another order.
    assert row_error(product(x, packed), first) <= rounding(x.dtype, x.dtype, terms=packed.k)


def test_a_row_does_not_depend_on_its_company_in_a_tile(device: torch.device) -> None:
    packed = random_weights(device, 72, 1024, 64)
    x = torch.randn(16, 1024, device=device, dtype=torch.bfloat16)
    assert torch.equal(product(x, packed)[:9], product(x[:9], packed))
    assert torch.equal(product(x[:8], packed)[3:4], product(x[3:4], packed))


@pytest.mark.parametrize("ordered", [False, True])
def test_many_rows_are_multiplied_by_slabs_of_dequantized_weights(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    for arch in op.PREFILL_ROWS:
        monkeypatch.setitem(op.PREFILL_ROWS, arch, 4)
    monkeypatch.setattr(op, "SLAB", 1)
    packed = random_weights(device, 300, 64, 32, ordered=ordered)
    x = torch.randn(5, 64, device=device, dtype=torch.bfloat16)
    for bias in (None, torch.randn(300, device=device, dtype=torch.bfloat16)):
        assert_is_the_references(x, packed, bias)


def test_no_rows_are_no_work(device: torch.device) -> None:
    packed = random_weights(device, 8, 32, 32)
    assert product(torch.empty(0, 32, device=device, dtype=torch.bfloat16), packed).shape == (0, 8)


def test_offsets_beyond_int32_are_reached(device: torch.device) -> None:
    packed = random_weights(device, 8, 32, 32)
    stride = 2**30
    far = torch.empty(3 * stride + 64, device=device, dtype=torch.bfloat16)  # untouched but for four rows
    x, out = far.as_strided((4, 32), (stride, 1)), far.as_strided((4, 8), (stride, 1), 32)
    x.copy_(torch.randn(4, 32))
    linear_w4a16(x, packed, out, workspace=Workspace(device))
    expected = reference.linear_w4a16(x, packed)
    assert row_error(out, expected) <= rounding(x.dtype, x.dtype, terms=32)


def test_rows_beyond_int32_are_reached(device: torch.device) -> None:
    packed = random_weights(device, 16, 32, 32)
    n = 2**27 + 16
    many = replace(
        packed,
        words=torch.empty(1, n, layout.WORDS, device=device, dtype=torch.int32),
        params=torch.empty(4, n, device=device, dtype=torch.int32),
        n=n,
    )
    many.words[:, -16:], many.params[:, -16:] = packed.words, packed.params
    out = torch.empty(2, 32, device=device, dtype=torch.bfloat16)
    rows(many, torch.tensor([n - 1, n - 16], device=device), out)
    assert torch.equal(out, reference.dequantized(packed)[[15, 0]])


def test_every_tile_is_one_wave_of_counts() -> None:
    for tile in op.TILES:
        assert isinstance(tile, Tile)
        assert 148 * op.RESIDENT[tile.arch][tile.constants["BLOCK_M"]] <= op.ARRIVALS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 32)}, r"x is torch\.float32 and out torch\.bfloat16"),
        ({"x": torch.zeros(2, 64, dtype=torch.bfloat16)}, r"x is \[2, 64\] .* matrix \[8, 32\]"),
        ({"out": torch.zeros(8, 2, dtype=torch.bfloat16).t()}, r"columns are adjacent"),
    ],
)
def test_what_does_not_fit_is_refused(device: torch.device, change: dict[str, Tensor], message: str) -> None:
    packed = random_weights(device, 8, 32, 32)
    given = {
        "x": torch.zeros(2, 32, dtype=torch.bfloat16),
        "out": torch.zeros(2, 8, dtype=torch.bfloat16),
        **change,
    }
    given = {name: value.to(device) for name, value in given.items()}
    with pytest.raises(ValueError, match=message):
        linear_w4a16(given["x"], packed, given["out"], workspace=Workspace(device))


def test_a_product_asks_once_how_large_its_workspace_must_be(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    needed = op._bytes
    monkeypatch.setattr(op, "_bytes", lambda *of: asked.append(of) or needed(*of))
    packed = random_weights(device, 8, 32, 32)
    product(torch.zeros(2, 32, device=device, dtype=torch.bfloat16), packed)
    assert len(asked) == 1


def test_a_workspace_grows_and_serves_what_is_smaller_from_one_address(device: torch.device) -> None:
    space = Workspace(device)
    large, small = (random_weights(device, 300, k, 32, ordered=True) for k in (256, 64))
    before = space.of(small, 2).numel()
    address = space.of(large, 4000).data_ptr()
    assert space.of(large, 4000).numel() > before
    assert space.of(small, 2).data_ptr() == address


@pytest.mark.parametrize(
    ("codes", "scales", "minimums", "bits", "message"),
    [
        (torch.zeros(8, 64, dtype=torch.int8), torch.ones(8, 2), None, 4, "4 bits in torch.int8"),
        (torch.zeros(8, 48, dtype=torch.uint8), torch.ones(8, 3), None, 4, "groups of 16 columns"),
        (torch.zeros(8, 64, dtype=torch.uint8), torch.ones(8, 3), None, 4, r"scales are \[8, 3\]"),
        (torch.zeros(8, 64, dtype=torch.uint8), torch.ones(8, 2), torch.ones(8, 1), 4, r"\[8, 1\]"),
    ],
)
def test_a_matrix_that_cannot_be_packed_is_refused(
    codes: Tensor, scales: Tensor, minimums: Tensor | None, bits: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pack(codes, scales, minimums, bits=bits)
