from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from codes import Codes, Form
from products import linear
from toy import TORCH, Server, Toy

from slipway.load.torch_arrays import array
from slipway_kernels.cpu import PackedCodes, Threads
from slipway_kernels.linear import reference

FORMS = [
    Form(4, 32, minimums=False),
    Form(4, 32, minimums=True),
    Form(8, 32, minimums=False),
    Form(8, 32, minimums=True),
    Form(4, 128, minimums=True, wide=True),
    Form(8, 64, minimums=False),
    Form(4, 16, minimums=False),
    Form(4, 16, minimums=True, wide=True),
    Form(8, 16, minimums=False),
    Form(8, 16, minimums=False, wide=True),
    Form(8, 16, minimums=True),
    Form(4, 10_000, minimums=False, wide=True),
    Form(8, 10_000, minimums=False, wide=True),
]
SHAPES = [(1, 8), (31, 33), (70, 64), (40, 80), (96, 577)]
ROWS = [*range(1, 14), 24, 25, 37, 40, 256]


def drawn(n: int, k: int, form: Form) -> Codes:
    return Codes.of(torch.randn(n, k, generator=torch.Generator().manual_seed(n)), form)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_is_the_references_at_any_number_of_rows(n: int, k: int, form: Form, dtype: str) -> None:
    codes = drawn(n, k, form)
    bias = torch.randn(n)
    x = torch.randn(256, k).to(TORCH[dtype])
    expected = reference.linear_codes(x, codes.weight(), bias)
    packed = codes.packed()
    for rows in ROWS:
        result = linear(x[:rows], packed, bias)
        torch.testing.assert_close(result, expected[:rows], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_sixteen_bits_for_each_32_columns_lose_less_than_a_ten_thousandth(form: Form) -> None:
    codes = drawn(96, 577, form)
    x = torch.randn(40, 577)
    exact = reference.linear(x, codes.weight())
    assert (linear(x, codes.packed()) - exact).square().mean() < 1e-8 * exact.square().mean()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k"), [*SHAPES, (160, 4100)])
def test_a_row_does_not_depend_on_its_company(n: int, k: int, form: Form, threads: int) -> None:
    pool = Threads(threads)
    packed = drawn(n, k, form).packed()
    x = torch.randn(256, k)
    alone = torch.cat([linear(row[None], packed) for row in x[:40]])
    for rows in ROWS:
        together = linear(x[:rows], packed, threads=pool)
        assert torch.equal(together[:40], alone[:rows])


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_read_as_they_were_packed(form: Form) -> None:
    codes = drawn(70, 301, form)
    order = torch.randperm(70)
    result = codes.empty()
    for part in (order[:33], order[33:]):
        minimums = None if codes.minimums is None else array(codes.minimums[part])
        result.load_rows(array(codes.codes[part]), array(codes.scales[part]), minimums, part.numpy())
    read = torch.from_numpy(result.rows(np.arange(70)))
    assert torch.equal(read, codes.weight())


def test_threads_that_pack_rows_of_one_byte_do_not_lose_codes() -> None:
    codes = drawn(1000, 64, Form(4, 32, minimums=True))
    parts = [array(part) for part in (codes.codes, codes.scales, codes.minimums) if part is not None]
    pool = Threads(3)
    for shift in (0, 5, 16):
        result = PackedCodes(1032, 64, 4, 32, minimums=True)
        places = np.arange(shift, 1000 + shift, dtype=np.int32)
        result.load_rows(*parts, places, pool)
        assert torch.equal(torch.from_numpy(result.rows(places)), codes.weight())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_a_number_stays_in_its_row(value: float) -> None:
    packed = drawn(40, 96, Form(4, 32, minimums=True)).packed()
    x = torch.randn(9, 96)
    expected = linear(x, packed)
    x[4, 50] = value
    result = linear(x, packed)
    assert not result[4].isfinite().any()
    others = torch.arange(9) != 4
    assert torch.equal(result[others], expected[others])


def test_rows_of_zeros_and_of_the_smallest_numbers_give_zeros() -> None:
    packed = drawn(40, 96, Form(8, 32, minimums=True)).packed()
    x = torch.zeros(2, 96)
    x[1] = 1e-42
    assert torch.equal(linear(x, packed), torch.zeros(2, 40))


def test_a_form_that_products_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match="4 or 8 bits, not 3"):
        PackedCodes(4, 64, 3, 32)
    with pytest.raises(ValueError, match="group of 48 columns is neither a multiple of 32 nor 16 nor all 64"):
        PackedCodes(4, 64, 4, 48)


def test_a_source_that_does_not_fit_is_refused() -> None:
    drawn_codes = drawn(4, 64, Form(4, 32, minimums=True))
    packed = drawn_codes.empty()
    assert drawn_codes.minimums is not None
    codes, scales, minimums = map(array, (drawn_codes.codes, drawn_codes.scales, drawn_codes.minimums))
    with pytest.raises(ValueError, match=r"come as uint8, not as int8"):
        packed.load_rows(codes.astype(np.int8), scales, minimums)
    with pytest.raises(ValueError, match=r"shape \[4, 1\] do not fit 4 rows of 2 groups"):
        packed.load_rows(codes, scales[:, :1], minimums)
    with pytest.raises(ValueError, match="missing where it has some"):
        packed.load_rows(codes, scales)
    with pytest.raises(ValueError, match="do not fit a weight of 4 rows"):
        packed.load_rows(codes, scales, minimums, np.arange(30, 34, dtype=np.int32))


@dataclass
class QuantizedToy(Toy):
    """All matrices of the toy in one form, embedding, router and experts too."""

    form: Form = FORMS[0]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, weight in self.weights.items():
            if weight.ndim > 1:
                flat = weight.float().flatten(0, -2)
                self.weights[name] = Codes.of(flat, self.form).weight().view(weight.shape)

    def pack(self, name: str, weight: torch.Tensor | None = None) -> PackedCodes:  # type: ignore[override]
        # Weights that lie on a grid are on the same grid when they are rounded once more.
        return Codes.of(self.weights[name] if weight is None else weight, self.form).packed()


PROMPT = torch.randint(0, 101, (60,), generator=torch.Generator().manual_seed(5)).tolist()
TOYS = [Form(4, 32, minimums=True, wide=True), Form(8, 32, minimums=False, wide=True)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("form", TOYS)
def test_a_toy_model_of_integers_computes_what_torch_computes(form: Form, dtype: str) -> None:
    toy = QuantizedToy(dtype, form=form)
    tokens, logprobs = Server(toy).generate(0, PROMPT, 6, 100)
    expected = toy.logits(PROMPT + tokens)[59:-1].log_softmax(-1)
    chosen = expected.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs), chosen, atol=0.15, rtol=0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("form", TOYS)
def test_chunk_block_size_and_threads_change_no_bit(form: Form, dtype: str) -> None:
    toy = QuantizedToy(dtype, window=40, form=form)
    expected = Server(toy).generate(0, PROMPT, 5, 100)
    for block_size, threads in ((1, 1), (8, 2), (16, 3), (64, 1), (128, 2)):
        server = Server(toy, block_size, threads)
        for slot, chunk in enumerate((1, 4, 5, 7, 64)[: server.slots.num_slots]):
            assert server.generate(slot, PROMPT, 5, chunk) == expected, (block_size, threads, chunk)
