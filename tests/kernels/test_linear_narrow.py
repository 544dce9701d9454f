"""Products of e4m3 weights with a scale for each row, or each group of a row's columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from products import linear

from slipway.load.arrays import E4M3, FP32
from slipway.load.torch_arrays import array
from slipway_kernels.cpu import PackedNarrow, Threads
from slipway_kernels.linear import reference

SHAPES = [(1, 7), (31, 33), (70, 64), (40, 258), (96, 577), (160, 1100)]
GROUPS = [32, 128, 512, 10_000]
ROWS = [*range(1, 14), 24, 25, 37, 40, 100, 256]


class Narrow:
    """Numbers of every code but NaN, and scales of several magnitudes."""

    def __init__(self, n: int, k: int, group: int) -> None:
        draw = torch.Generator().manual_seed(n + k)
        codes = torch.randint(0, 254, (n, k), generator=draw, dtype=torch.uint8)
        self.codes = (codes + (codes >= 127)).view(torch.float8_e4m3fn)
        self.scales = torch.exp(torch.randn(n, -(-k // min(group, k)), generator=draw) * 3)
        self.group = min(group, k)

    def weight(self) -> torch.Tensor:
        """[n, k] in fp32"""
        return self.codes.float() * self.scales.repeat_interleave(self.group, 1)[:, : self.codes.shape[1]]

    def packed(self) -> PackedNarrow:
        made = PackedNarrow(*self.codes.shape, self.group)
        made.load_rows(array(self.codes), array(self.scales))
        return made


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_is_the_references_at_any_number_of_rows(n: int, k: int, group: int) -> None:
    narrow = Narrow(n, k, group)
    bias = torch.randn(n)
    x = torch.randn(256, k).bfloat16()
    expected = reference.linear(x.float(), narrow.weight(), bias)
    largest = expected.abs().amax()
    packed = narrow.packed()
    for rows in ROWS:
        result = linear(x[:rows], packed, bias)
        torch.testing.assert_close(result / largest, expected[:rows] / largest, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_does_not_depend_on_its_company(n: int, k: int, group: int, threads: int) -> None:
    pool = Threads(threads)
    packed = Narrow(n, k, group).packed()
    x = torch.randn(256, k).bfloat16()
    alone = torch.cat([linear(row[None], packed) for row in x[:40]])
    for rows in ROWS:
        together = linear(x[:rows], packed, threads=pool)
        assert torch.equal(together[:40], alone[:rows])


@pytest.mark.parametrize("group", GROUPS)
def test_rows_are_read_as_they_were_packed(group: int) -> None:
    narrow = Narrow(70, 301, group)
    order = torch.randperm(70)
    result = PackedNarrow(70, 301, group)
    for part in (order[:33], order[33:]):
        result.load_rows(array(narrow.codes[part]), array(narrow.scales[part]), part.numpy(), Threads(2))
    assert torch.equal(torch.from_numpy(result.rows(np.arange(70))), narrow.weight())


def test_it_takes_a_byte_for_each_number_and_four_for_each_scale() -> None:
    assert PackedNarrow(64, 256, 128).nbytes == 64 * 256 + 64 * 2 * 4
    assert PackedNarrow(64, 256, 256).nbytes == 64 * 256 + 64 * 4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="A group of 33 columns is neither even nor all 64"):
        PackedNarrow(4, 64, 33)
    weight = PackedNarrow(4, 64, 32)
    with pytest.raises(ValueError, match="do not come as float32"):
        weight.load_rows(np.zeros((4, 64), FP32), np.ones((4, 2), FP32))
    with pytest.raises(ValueError, match=r"shape \[4, 1\] do not fit 4 rows of 2 groups"):
        weight.load_rows(np.zeros((4, 64), E4M3), np.ones((4, 1), FP32))
    with pytest.raises(ValueError, match="has 32 columns, the packed weight 64"):
        weight.load_rows(np.zeros((4, 32), E4M3), np.ones((4, 2), FP32))
