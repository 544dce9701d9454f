from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import one_code, rounding, row_error


def test_an_error_is_measured_against_its_own_row() -> None:
    expected = torch.tensor([[100.0, 100.0], [0.03, 0.04]])
    result = expected + torch.tensor([[0.0, 0.0], [0.0, 0.005]])
    assert row_error(result, expected) == pytest.approx(0.125)  # of 0.04; 0.1 of 0.05


def test_one_wrong_number_of_a_wide_row_is_found() -> None:
    expected = torch.ones(3, 100_000)
    result = expected.clone()
    result[1, 77_777] = 1.01
    assert row_error(result, expected) == pytest.approx(0.01)


def test_a_row_of_zeros_has_no_tolerance() -> None:
    expected = torch.zeros(2, 4)
    assert row_error(expected, expected) == 0
    assert row_error(expected + 1e-30, expected) == torch.inf


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_finite_number_must_be_the_same(number: float) -> None:
    expected = torch.tensor([1.0, number, 2.0])
    assert row_error(expected, expected) == 0
    assert row_error(torch.tensor([1.0, 5.0, 2.0]), expected) == torch.inf
    assert row_error(expected, torch.tensor([1.0, 5.0, 2.0])) == torch.inf


def test_rows_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the result is \[2\], the reference's \[1\]"):
        row_error(torch.ones(2), torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_rounding_explains_a_rounded_row_and_hardly_more(dtype: torch.dtype) -> None:
    x = torch.rand(64, 64, dtype=torch.float64) + 1
    error = row_error(x.to(dtype), x)
    assert rounding(dtype) / 4 < error <= rounding(dtype)


@pytest.mark.parametrize("terms", [16, 1024, 16384])
def test_terms_explain_a_sum_in_fp32(terms: int) -> None:
    x = torch.randn(64, terms)
    ordered = x.cumsum(1)[:, -1]  # one after the other, the worst order
    assert row_error(ordered, x.double().sum(1)) <= rounding(terms=terms)


@pytest.mark.parametrize(
    ("dtype", "code"),
    [(torch.int8, 1 / 127), (torch.float8_e4m3fn, 32 / 448), (torch.float8_e5m2, 8192 / 57344)],
)
def test_one_code_is_the_distance_of_the_largest_two(dtype: torch.dtype, code: float) -> None:
    assert one_code(dtype) == code
