from __future__ import annotations

import numpy as np
import pytest
import torch
from products import linear
from toy import TORCH

from slipway.load.torch_arrays import array
from slipway_kernels.cpu import Packed, Threads
from slipway_kernels.cpu.arrays import BF16, FP32, DType
from slipway_kernels.linear import reference

SHAPES = [(1, 8), (31, 33), (70, 64), (96, 577)]
ROWS = [*range(1, 14), 24, 25, 37, 40, 256]


def packed(weight: torch.Tensor, dtype: str) -> Packed:
    result = Packed(*weight.shape, dtype)
    result.load_rows(array(weight))
    return result


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_is_the_references_at_any_number_of_rows(n: int, k: int, dtype: str) -> None:
    weight = torch.randn(n, k).to(TORCH[dtype])
    bias = torch.randn(n)
    x = torch.randn(256, k).to(TORCH[dtype])
    expected = reference.linear(x, weight, bias)
    for rows in ROWS:
        result = linear(x[:rows], packed(weight, dtype), bias)
        torch.testing.assert_close(result, expected[:rows], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("n", "k"), [*SHAPES, (160, 4100)])
def test_a_row_does_not_depend_on_its_company(n: int, k: int, dtype: str, threads: int) -> None:
    pool = Threads(threads)
    weight = packed(torch.randn(n, k), dtype)
    x = torch.randn(256, k)
    alone = torch.cat([linear(row[None], weight) for row in x[:40]])
    for rows in ROWS:
        together = linear(x[:rows], weight, threads=pool)
        assert torch.equal(together[:40], alone[:rows])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_read_as_they_were_packed(dtype: str, source: torch.dtype) -> None:
    weight = torch.randn(70, 301).to(source)
    weight[0, :4] = torch.tensor([0.0, -0.0, 6e-8, 65504.0]).to(source)
    order = torch.randperm(70)
    result = Packed(70, 301, dtype)
    result.load_rows(array(weight[:33]), order[:33].numpy())
    result.load_rows(array(weight[33:]), order[33:].numpy())
    read = torch.from_numpy(result.rows(order.numpy()))
    assert torch.equal(read, weight.to(TORCH[dtype]).float())


@pytest.mark.parametrize("k", [16, 31, 32, 100, 256, 577, 832])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("source", [FP32, BF16])
def test_rows_beside_each_other_and_rows_apart_are_packed_alike(k: int, dtype: str, source: DType) -> None:
    draw = np.random.default_rng(k)
    beside, shifted = np.arange(16, 64), np.arange(72, 136)  # sixteen at a time, and from half of sixteen on
    apart = draw.permutation(np.arange(136, 200)), np.arange(200, 256)[::-1]
    places = np.concatenate([beside, shifted, *apart, np.arange(16), np.arange(64, 72)]).astype(np.int32)
    wide = draw.standard_normal((len(places), k + 5), np.float32).astype(source)
    result = Packed(256, k, dtype)
    result.load_rows(wide[:, 5:], places)
    expected = wide[:, 5:].astype(FP32 if dtype == "fp32" else BF16).astype(FP32)
    assert np.array_equal(result.rows(places), expected)


def test_numpy_rows_are_packed_too() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float16)
    result = Packed(5, 7, "fp32")
    result.load_rows(weight)
    assert np.array_equal(result.rows(np.arange(5)), weight.astype(np.float32))


def test_a_source_that_does_not_fit_is_refused() -> None:
    weight = Packed(4, 8, "fp32")
    with pytest.raises(ValueError, match="9 columns, the packed weight 8"):
        weight.load_rows(np.zeros((4, 9), np.float32))
    with pytest.raises(ValueError, match="do not fit a weight of 4 rows"):
        weight.load_rows(np.zeros((1, 8), np.float32), np.array([32], np.int32))
    with pytest.raises(ValueError, match=r"not all in \[0, 4\)"):
        weight.rows(np.array([4]))
