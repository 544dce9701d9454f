"""What encoders compute: norms, activations, sums of embeddings, attention both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import TORCH

from slipway.load.torch_arrays import array
from slipway_kernels.activation.reference import activate
from slipway_kernels.attention.reference import attention
from slipway_kernels.cpu import Buffer, EncoderProgram, Packed, PackedCodes, PageMemory, Slots, Weight
from slipway_kernels.layer_norm import reference
from slipway_kernels.linear.reference import linear
from slipway_kernels.rope.reference import angles, rope

WIDTH = 75
VOCAB = 256
LENGTHS = [1, 5, 40, 130]
ACTIVATIONS = ["silu", "gelu", "gelu_tanh", "relu", "tanh"]


def packed(weight: Tensor, dtype: str) -> Packed:
    result = Packed(*weight.shape, dtype)
    result.load_rows(array(weight))
    return result


def table(width: int = WIDTH) -> Tensor:
    """[VOCAB, width]  numbers that bf16 holds as they are."""
    return torch.randn(VOCAB, width, generator=torch.Generator().manual_seed(4)).bfloat16().float()


class Run:
    """A program that embeds tokens into x, computes what `build` adds to it and tells its result."""

    def __init__(
        self,
        build: Callable[[EncoderProgram, Buffer], Buffer],
        dtype: str = "fp32",
        width: int = WIDTH,
        threads: int = 2,
    ) -> None:
        self.slots = Slots(4, VOCAB, 0, 0)
        self.slots.pooled[:] = 1
        self.program = EncoderProgram(self.slots, 2 * VOCAB, dtype, threads, VOCAB, 1, PageMemory(0, 0), ())
        x = self.program.buffer(width)
        self.program.embed(packed(table(width), dtype), x)
        self.program.hidden(build(self.program, x), None)
        self.program.finish()

    def step(self, prompts: dict[int, Sequence[int]]) -> dict[int, Tensor]:
        """By slot the rows [tokens, width] of its prompt, all computed in one step."""
        for slot, tokens in prompts.items():
            self.slots.start(slot, tokens)
        result = self.program.step(np.array([*prompts]), np.array([len(one) for one in prompts.values()]))
        starts = result.requests["first_row"].tolist()
        return {
            slot: torch.from_numpy(result.hidden[start : start + len(tokens)].copy())
            for (slot, tokens), start in zip(prompts.items(), starts, strict=True)
        }

    def rows(self, count: int) -> Tensor:
        return self.step({0: range(count)})[0]


def close(result: Tensor, expected: Tensor, dtype: str) -> None:
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(result, expected.float(), atol=tolerance, rtol=tolerance)


def in_type(x: Tensor, dtype: str) -> Tensor:
    return x.to(TORCH[dtype])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("width", [WIDTH, 384])
def test_layer_norm_is_the_references_and_may_replace_its_input(width: int, rows: int, bias: bool) -> None:
    weight, shift = torch.randn(2, width)
    given = shift.numpy() if bias else None

    def build(program: EncoderProgram, x: Buffer) -> Buffer:
        program.layer_norm(x, weight.numpy(), given, program.buffer(width, "act"), 1e-5, keep=True)
        normed, out = program.buffer(width, "act"), program.buffer(width)
        program.layer_norm(x, weight.numpy(), given, normed, 1e-5)
        program.linear(normed, packed(torch.eye(width), program.dtype), out)
        program.linear(normed, packed(-torch.eye(width), program.dtype), out, accumulate=True)
        program.layer_norm(x, weight.numpy(), given, normed, 1e-5, keep=True)
        program.linear(normed, packed(torch.eye(width), program.dtype), out, accumulate=True)
        return out if program.dtype == "fp32" else x

    once = reference.layer_norm(table(width)[:rows], weight, shift if bias else None, 1e-5)
    expected = reference.layer_norm(once, weight, shift if bias else None, 1e-5)
    for dtype in ("fp32", "bf16"):
        close(Run(build, dtype, width).rows(rows), expected, "fp32")  # what is kept has every bit


def test_a_mean_far_from_0_does_not_drown_the_variance() -> None:
    unit = np.ones(WIDTH, np.float32)

    def build(program: EncoderProgram, x: Buffer) -> Buffer:
        normed = program.buffer(WIDTH, "act")
        program.layer_norm(x, unit, 1000 * unit, normed, 1e-5, keep=True)
        program.layer_norm(x, unit, None, normed, 1e-5, keep=True)
        return x

    shifted = reference.layer_norm(table()[:9], None, None, 1e-5) + 1000
    expected = reference.layer_norm(shifted.double(), None, None, 1e-5)
    torch.testing.assert_close(Run(build).rows(9), expected.float(), atol=2e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", LENGTHS)
def test_a_product_is_activated_behind_its_bias(rows: int, activation: str, dtype: str) -> None:
    weight, bias = in_type(torch.randn(45, WIDTH), dtype), torch.randn(45)
    unit = np.ones(WIDTH, np.float32)

    def build(program: EncoderProgram, x: Buffer) -> Buffer:
        normed, out = program.buffer(WIDTH, "act"), program.buffer(45)
        program.layer_norm(x, unit, None, normed, 1e-5)
        program.linear_activated(normed, packed(weight, dtype), out, activation, bias.numpy())
        return out

    x = in_type(reference.layer_norm(table()[:rows], None, None, 1e-5), dtype)
    close(Run(build, dtype).rows(rows), activate(linear(x, weight, bias), activation), dtype)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("rows", LENGTHS)
def test_a_product_of_integers_is_activated_too(rows: int, activation: str) -> None:
    codes = torch.randint(
        -128, 128, (45, WIDTH), generator=torch.Generator().manual_seed(2), dtype=torch.int8
    )
    scales = torch.rand(45, 1) / 64
    weight = PackedCodes(45, WIDTH, 8, WIDTH, wide_scales=True)
    weight.load_rows(codes.numpy(), scales.numpy())
    unit = np.ones(WIDTH, np.float32)

    def build(program: EncoderProgram, x: Buffer) -> Buffer:
        normed, out = program.buffer(WIDTH, "act"), program.buffer(45)
        program.layer_norm(x, unit, None, normed, 1e-5)
        program.linear_activated(normed, weight, out, activation)
        return out

    x = reference.layer_norm(table()[:rows], None, None, 1e-5)
    expected = activate(linear(x, codes * scales), activation)
    assert (Run(build).rows(rows) - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_gelu_is_exact_to_a_few_units_in_the_last_place() -> None:
    """Against float64: 1 + erf loses all digits of a large negative x where it is taken as such."""
    x = torch.linspace(-9, 9, WIDTH)

    def build(program: EncoderProgram, stream: Buffer) -> Buffer:
        act, out = program.buffer(WIDTH, "act"), program.buffer(WIDTH)
        unit = np.ones(WIDTH, np.float32)
        program.layer_norm(stream, 0 * unit, unit, act, 1e-5)
        program.linear_activated(act, packed(torch.zeros(WIDTH, WIDTH), "fp32"), out, "gelu", x.numpy())
        return out

    expected = x.double() * torch.special.erfc(-x.double() / 2**0.5) / 2
    torch.testing.assert_close(Run(build).rows(1)[0], expected.float(), rtol=6e-6, atol=1e-30)


def test_a_token_is_embedded_with_its_position_and_its_type() -> None:
    draw = torch.Generator().manual_seed(1)
    positions, types = torch.randn(VOCAB, WIDTH, generator=draw), torch.randn(2, WIDTH, generator=draw)

    def build(program: EncoderProgram, x: Buffer) -> Buffer:
        program.embed_sum(packed(table(), "fp32"), x, positions.numpy(), types.numpy())
        return x

    run = Run(build)
    prompts = {2: [7, 3, 3, 9, 1], 0: [5, 6]}
    for slot, tokens in prompts.items():
        run.slots.start(slot, tokens, type_from=3 if slot == 2 else None)
    result = torch.from_numpy(run.program.step(np.array([2, 0]), np.array([5, 2])).hidden)
    place, kind = [0, 1, 2, 3, 4, 0, 1], [0, 0, 0, 1, 1, 0, 0]
    expected = table()[[*prompts[2], *prompts[0]]] + types[kind] + positions[place]
    assert torch.equal(result, expected)


SHAPES = [(3, 1, 24), (4, 4, 8), (6, 2, 72), (2, 2, 256)]


def attending(
    heads: int, kv_heads: int, head_dim: int, window: int, rotated: bool = False
) -> Callable[[EncoderProgram, Buffer], Buffer]:
    """Attention over queries, keys and values that are the embedding itself."""
    width = heads * head_dim
    table = angles(VOCAB, head_dim).numpy() if rotated else None

    def build(program: EncoderProgram, qkv: Buffer) -> Buffer:
        queries, out = program.buffer(width, "act"), program.buffer(width, "act")
        program.attend_within(
            qkv, queries, out, heads, kv_heads, head_dim, table, head_dim if rotated else 0, 0.3, window
        )
        told = program.buffer(width)
        identity = torch.eye(width)
        program.linear(out, packed(identity, program.dtype), told)
        return told

    return build


def expected_attention(
    tokens: Sequence[int], dtype: str, heads: int, kv_heads: int, head_dim: int, window: int, rotated: bool
) -> Tensor:
    rows = table((heads + 2 * kv_heads) * head_dim)[list(tokens)].view(len(tokens), -1, head_dim)
    q, k, v = rows.split((heads, kv_heads, kv_heads), 1)
    if rotated:
        turns = angles(VOCAB, head_dim)[: len(tokens)]
        q, k = rope(q, turns), rope(k, turns)
    q, k, v = (in_type(part, dtype) for part in (q, k, v))
    return attention(q, k, v, 0.3, window, causal=False).flatten(1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("window", [0, 1, 9, 65])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_row_sees_those_before_and_after_it(
    rotated: bool, window: int, shape: tuple[int, int, int], dtype: str
) -> None:
    heads, kv_heads, head_dim = shape
    run = Run(attending(*shape, window, rotated), dtype, (heads + 2 * kv_heads) * head_dim)
    for length in (1, 16, 100):
        tokens = torch.randperm(VOCAB)[:length].tolist()
        close(run.step({1: tokens})[1], expected_attention(tokens, dtype, *shape, window, rotated), dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [0, 9])
def test_rows_do_not_depend_on_company_or_threads(window: int, dtype: str) -> None:
    """Nor on what an earlier step left in the pages: the longest comes first, alone, and is not a number."""
    shape = (6, 2, 24)
    prompts = {
        slot: torch.randint(0, VOCAB - 1, (length,), generator=torch.Generator().manual_seed(slot)).tolist()
        for slot, length in enumerate((37, 1, 200, 256))
    }
    runs = [Run(attending(*shape, window), dtype, 10 * 24, threads) for threads in (1, 2, 3)]
    alone = {slot: runs[0].step({slot: tokens})[slot] for slot, tokens in prompts.items()}
    assert not any(rows.isnan().any() for rows in alone.values())
    for run in runs:
        for slots in ((0, 1, 2, 3), (3, 2), (2, 0, 1), (1, 3, 0)):
            together = run.step({slot: prompts[slot] for slot in slots})
            assert all(torch.equal(together[slot], alone[slot]) for slot in slots), slots


def test_a_request_of_nan_spoils_nobody_beside_or_after_it() -> None:
    shape, width = (6, 2, 24), 10 * 24
    for dtype in ("fp32", "bf16"):
        poisoned = table(width).clone()
        poisoned[255] = torch.nan

        def build(program: EncoderProgram, x: Buffer) -> Buffer:
            program.embed(packed(poisoned, program.dtype), x)  # noqa: B023
            return attending(*shape, 0)(program, x)

        run = Run(build, dtype, width)
        clean = run.step({0: range(45)})[0]
        beside = run.step({1: [255] * 200, 0: range(45), 2: [3, 255, 4]})
        assert beside[1].isnan().all()
        assert beside[2].isnan().all()
        assert torch.equal(beside[0], clean)
        assert torch.equal(run.step({3: range(45)})[3], clean)


@pytest.mark.parametrize(("computed", "rows"), [(0, 5), (2, 4), (2, 3)])
def test_a_prompt_that_would_be_cut_is_refused(computed: int, rows: int) -> None:
    run = Run(attending(6, 2, 24, 0), width=10 * 24)
    run.slots.start(0, range(6))
    run.slots.num_computed[0] = computed
    with pytest.raises(ValueError, match="does not fit the slots"):
        run.program.step(np.array([0]), np.array([rows]))


def weight_of(n: int, k: int) -> Weight:
    return packed(torch.zeros(n, k), "fp32")


REFUSED: dict[str, tuple[Callable[[EncoderProgram, Buffer], object], str]] = {
    "short positions": (
        lambda p, x: p.embed_sum(weight_of(VOCAB, WIDTH), x, np.zeros((VOCAB - 1, WIDTH), np.float32)),
        "at least 256, 75",
    ),
    "three types": (
        lambda p, x: p.embed_sum(weight_of(VOCAB, WIDTH), x, None, np.zeros((3, WIDTH), np.float32)),
        r"types of shape \(3, 75\)",
    ),
    "a norm of another width": (
        lambda p, x: p.layer_norm(x, np.ones(74, np.float32), None, p.buffer(WIDTH, "act"), 1e-5),
        "where 75 values belong",
    ),
    "a buffer that the product does not fill": (
        lambda p, x: p.linear_activated(p.buffer(WIDTH, "act"), weight_of(40, WIDTH), p.buffer(41), "relu"),
        "40 outputs for a buffer of width 41",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_operands_that_do_not_fit_are_refused(case: str) -> None:
    add, message = REFUSED[case]
    program = EncoderProgram(Slots(1, VOCAB, 0, 0), VOCAB, "fp32", 1, VOCAB, 1, PageMemory(0, 0), ())
    with pytest.raises(ValueError, match=message):
        add(program, program.buffer(WIDTH))
