"""Operations alone: the rows of a table go through them, and the result is read from its buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from toy import GREEDY, TORCH

from slipway.load.torch_arrays import array
from slipway_kernels.cpu import Buffer, Packed, PageMemory, Program, Slots
from slipway_kernels.embedding.reference import embed
from slipway_kernels.linear.reference import interleave, linear, linear_gated
from slipway_kernels.moe.reference import moe
from slipway_kernels.rms_norm.reference import rms_norm

WIDTH = 75
ROWS = [1, 5, 40, 130]


def packed(weight: torch.Tensor, dtype: str) -> Packed:
    result = Packed(*weight.shape, dtype)
    result.load_rows(array(weight))
    return result


def computed(
    table: torch.Tensor, rows: int, dtype: str, build: Callable[[Program, Buffer, Buffer], Buffer]
) -> torch.Tensor:
    """What `build` computes from the table's first rows (x) and their norm (fp32 and act buffers)."""
    slots = Slots(1, 256, 1, 1)
    slots.block_table[:] = 0
    program = Program(slots, 256, dtype, 2, 8, 1, PageMemory(1, 64), 256)
    x, normed = program.buffer(WIDTH), program.buffer(WIDTH, "act")
    program.embed(packed(table, dtype), x)
    program.rms_norm(x, np.ones(WIDTH, np.float32), normed, 1e-5)
    out = build(program, x, normed)
    program.finish()
    slots.tokens[0, :rows] = np.arange(rows)
    slots.num_tokens[0] = rows + 1
    slots.set_sampling(0, GREEDY)
    program.step(np.array([0]), np.array([rows]))
    at = program._c.sw_buffer_at(program._pointer, out.index)
    stride = program._c.sw_buffer_stride(program._pointer, out.index)
    view = np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_float)), (rows, stride))
    return torch.from_numpy(view[:, : out.width].copy())


def table(dtype: str) -> torch.Tensor:
    return torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(4)).to(TORCH[dtype])


def unit_norm(x: torch.Tensor, dtype: str) -> torch.Tensor:
    return rms_norm(x, torch.ones(WIDTH), 1e-5).to(TORCH[dtype])


def close(result: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    tolerance = 2e-5 if dtype == "fp32" else 3e-2
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", ROWS)
def test_embedding_scales_the_tables_rows(rows: int, dtype: str) -> None:
    rows_of = table(dtype)

    def build(program: Program, x: Buffer, _: Buffer) -> Buffer:
        program.embed(packed(rows_of, dtype), x, 3.0)
        return x

    result = computed(rows_of, rows, dtype, build)
    assert torch.equal(result, embed(rows_of, torch.arange(rows), 3.0))


@pytest.mark.parametrize("add_one", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_a_sandwich_norm_adds_to_the_stream(rows: int, add_one: bool) -> None:
    weight = torch.randn(WIDTH)

    def build(program: Program, x: Buffer, _: Buffer) -> Buffer:
        out = program.buffer(WIDTH)
        program.embed(packed(table("fp32"), "fp32"), out)
        program.rms_norm(x, weight.numpy(), out, 1e-5, add_one, accumulate=True)
        return out

    x = table("fp32")[:rows]
    close(computed(x, rows, "fp32", build), x + rms_norm(x, weight, 1e-5, add_one), "fp32")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", ROWS)
def test_two_products_fill_the_columns_of_one_buffer(rows: int, dtype: str) -> None:
    first, second, bias = torch.randn(20, WIDTH), torch.randn(37, WIDTH), torch.randn(37)
    first, second = first.to(TORCH[dtype]), second.to(TORCH[dtype])

    def build(program: Program, _: Buffer, normed: Buffer) -> Buffer:
        out = program.buffer(57)
        program.linear(normed, packed(first, dtype), out)
        program.linear(normed, packed(second, dtype), out, bias.numpy(), column=20)
        program.linear(normed, packed(second, dtype), out, accumulate=True, column=20)
        return out

    x = unit_norm(table(dtype)[:rows], dtype)
    expected = torch.cat((linear(x, first), linear(x, second, bias) + linear(x, second)), 1)
    close(computed(table(dtype), rows, dtype, build), expected, dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_gated_product_activates_the_gate(rows: int, activation: str, dtype: str) -> None:
    gate, up = torch.randn(2, 45, WIDTH).to(TORCH[dtype])
    down = torch.randn(30, 45).to(TORCH[dtype])

    def build(program: Program, _: Buffer, normed: Buffer) -> Buffer:
        hidden, out = program.buffer(45, "act"), program.buffer(30)
        program.linear_gated(normed, packed(interleave(gate, up), dtype), hidden, activation)
        program.linear(hidden, packed(down, dtype), out)
        return out

    x = unit_norm(table(dtype)[:rows], dtype)
    hidden = linear_gated(x, gate, up, activation).to(TORCH[dtype])
    expected = linear(hidden, down)
    result = computed(table(dtype), rows, dtype, build)
    tolerance = 1e-5 if dtype == "fp32" else 1e-2
    assert (result - expected).abs().max() <= tolerance * expected.abs().max()

    def build_apart(program: Program, _: Buffer, normed: Buffer) -> Buffer:
        both, hidden, out = program.buffer(90), program.buffer(45, "act"), program.buffer(30)
        program.linear(normed, packed(gate, dtype), both)
        program.linear(normed, packed(up, dtype), both, column=45)
        program.gate(both, hidden, activation)
        program.linear(hidden, packed(down, dtype), out)
        return out

    assert torch.equal(computed(table(dtype), rows, dtype, build_apart), result)


EXPERTS = pytest.mark.parametrize(
    ("experts", "top_k", "normalize"), [(4, 1, True), (9, 3, False), (40, 8, True)]
)


class Mixture:
    """A layer of random experts."""

    def __init__(self, experts: int, top_k: int, dtype: str, *, normalize: bool) -> None:
        draw = torch.Generator().manual_seed(6)
        self.router = torch.randn(experts, WIDTH, generator=draw).to(TORCH[dtype])
        self.gates, self.ups = (torch.randn(2, experts, 21, WIDTH, generator=draw) * 0.1).to(TORCH[dtype])
        self.downs = (torch.randn(experts, WIDTH, 21, generator=draw) * 0.1).to(TORCH[dtype])
        self.dtype, self.top_k, self.normalize = dtype, top_k, normalize

    def expected(self, rows: int) -> torch.Tensor:
        x = unit_norm(table(self.dtype)[:rows], self.dtype)
        matrices = (self.router, self.gates, self.ups, self.downs)
        return moe(x, *matrices, self.top_k, self.normalize, "silu")

    def added(self, rows: int, held: slice = slice(None), *, accumulate: bool = True) -> torch.Tensor:
        """To the rows of the table, or in place of them, by the experts that are held."""

        def build(program: Program, x: Buffer, normed: Buffer) -> Buffer:
            pairs = zip(self.gates[held], self.ups[held], strict=True)
            program.moe(
                normed,
                packed(self.router, self.dtype),
                [packed(interleave(*pair), self.dtype) for pair in pairs],
                [packed(expert, self.dtype) for expert in self.downs[held]],
                x,
                self.top_k,
                self.normalize,
                "silu",
                first=held.start or 0,
                accumulate=accumulate,
            )
            return x

        return computed(table(self.dtype), rows, self.dtype, build)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@EXPERTS
@pytest.mark.parametrize("rows", ROWS)
def test_experts_sum_to_the_references(
    rows: int, experts: int, top_k: int, normalize: bool, dtype: str
) -> None:
    mixture = Mixture(experts, top_k, dtype, normalize=normalize)
    close(mixture.added(rows), table(dtype)[:rows].float() + mixture.expected(rows), dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@EXPERTS
@pytest.mark.parametrize("rows", ROWS)
def test_ranks_with_some_of_the_experts_add_up_to_all(
    rows: int, experts: int, top_k: int, normalize: bool, dtype: str
) -> None:
    """To the bit where a row has one expert; a rank with none of a row's gives it zeros."""
    mixture = Mixture(experts, top_k, dtype, normalize=normalize)
    borders = [0, experts // 2, experts - 1, experts]
    parts = [mixture.added(rows, slice(first, end), accumulate=False) for first, end in pairwise(borders)]
    whole = mixture.added(rows, accumulate=False)
    if top_k == 1:
        assert torch.equal(sum(parts, torch.zeros_like(whole)), whole)
        assert torch.equal(
            sum((part != 0).any(1).int() for part in parts), torch.ones(rows, dtype=torch.int32)
        )
    close(sum(parts, torch.zeros_like(whole)), mixture.expected(rows), dtype)


def test_experts_beyond_the_routers_are_refused() -> None:
    mixture = Mixture(4, 1, "fp32", normalize=True)
    mixture.router = mixture.router[:3]
    with pytest.raises(ValueError, match="3 experts, 2 gates, 2 downs from expert 2 on and top_k 1"):
        mixture.added(1, slice(2, 4))


def test_a_token_or_page_that_does_not_exist_is_refused() -> None:
    slots = Slots(1, 32, 1, 4)
    program = Program(slots, 8, "fp32", 1, 8, 1, PageMemory(2, 64), 8)
    program.embed(Packed(8, WIDTH, "fp32"), program.buffer(WIDTH))
    slots.num_tokens[0] = 12
    for token, page in ((0, -1), (0, 2), (8, 1), (-1, 1)):
        slots.tokens[0, 0], slots.block_table[0, 0, 0] = token, page
        with pytest.raises(ValueError, match="does not fit the slots"):
            program.step(np.array([0]), np.array([3]))
