"""What models that guess are made of: rows from outside and to the outside, and activations by themselves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy import GREEDY, TORCH

from slipway_kernels.activation.reference import activate
from slipway_kernels.cpu import LinkedProgram, Packed, PageMemory, Slots
from slipway_kernels.rms_norm.reference import rms_norm

WIDTH, VOCAB = 45, 101


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def linked(dtype: str, num_slots: int = 12) -> LinkedProgram:
    """Over slots without pages, whose last token is to be computed."""
    slots = Slots(num_slots, 8, 0, 1)
    for slot in range(num_slots):
        slots.start(slot, [3, slot], num_computed=1)
        slots.set_sampling(slot, GREEDY)
    return LinkedProgram(slots, num_slots, dtype, 2, VOCAB, 1, PageMemory(1, 64), [])


def test_a_head_draws_the_tokens_that_it_has_and_no_other() -> None:
    program, weight, tokens = linked("fp32"), random(40, WIDTH), np.arange(40, dtype=np.int32)[::-1] * 2 + 5
    matrix = Packed(40, WIDTH, "fp32")
    matrix.load_rows(weight.numpy())
    x = program.buffer(WIDTH)
    given = program.given(x)
    for wrong in (tokens + VOCAB, tokens[:3]):
        with pytest.raises(ValueError, match="40 rows of weight: give one of the 101 for each"):
            program.head(x, None, matrix, 0.0, tokens=wrong)
    program.head(x, None, matrix, 0.0, tokens=tokens)
    program.finish()
    rows = random(12, WIDTH)
    given[:] = rows
    program.slots.set_sampling(3, SimpleNamespace(**(vars(GREEDY) | {"logit_bias": ((0, 1e9),)})))
    result = program.step(np.arange(12), np.ones(12, np.int32))
    assert [drawn[0] for drawn in result.tokens] == tokens[(rows @ weight.T).argmax(-1).numpy()].tolist()


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh"])
def test_rows_go_in_are_activated_and_come_out(activation: str | None, dtype: str, count: int) -> None:
    program = linked(dtype)
    bias, norm, weight = random(WIDTH), random(WIDTH), random(VOCAB, WIDTH)
    matrix = Packed(VOCAB, WIDTH, dtype)
    matrix.load_rows(weight.numpy())
    x, normed, summed = (program.buffer(WIDTH) for _ in range(3))
    operand = program.buffer(WIDTH, "act")
    given = program.given(x)
    first = program.tap(x, norm.numpy(), 1e-6)
    program.rms_norm(x, norm.numpy(), normed, 1e-6)
    program.activate(x, summed)
    program.activate(normed, summed, activation, bias.numpy(), accumulate=True)
    last = program.tap(summed)
    program.activate(summed, operand)
    program.head(summed, None, matrix, 0.0)
    program.finish()
    rows = random(count, WIDTH)
    given[:count] = rows
    result = program.step(np.arange(count), np.ones(count, np.int32))
    expected = rms_norm(rows, norm, 1e-6)
    np.testing.assert_allclose(first[:count], expected, atol=2e-6)
    expected = expected + bias
    expected = rows + (activate(expected, activation) if activation else expected)
    np.testing.assert_allclose(last[:count], expected, atol=2e-6)
    rounded = torch.from_numpy(last[:count]).to(TORCH[dtype]).float() @ weight.to(TORCH[dtype]).float().T
    assert [tokens[0] for tokens in result.tokens] == rounded.argmax(-1).tolist()
