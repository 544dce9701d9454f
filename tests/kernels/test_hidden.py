"""Final rows of pooled slots: what a program tells of them, and of nobody else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from toy import Server, Toy

from slipway_kernels.cpu import PageMemory, Program, Slots

PROMPT = torch.randint(0, 101, (100,), generator=torch.Generator().manual_seed(5)).tolist()


def rows_of(server: Server, slot: int, chunk: int) -> NDArray[np.float32]:
    """[tokens, hidden]  of a slot that is computed chunk by chunk."""
    slots, found = server.slots, []
    while left := int(slots.num_tokens[slot] - slots.num_computed[slot]):
        result = server.program.step(np.array([slot]), np.array([min(left, chunk)]))
        assert result.tokens == [[]]
        found.append(result.hidden.copy())
    return np.concatenate(found)


def pooling(toy: Toy, threads: int = 2, block_size: int = 16) -> Server:
    server = Server(toy, block_size, threads)
    server.slots.pooled[:] = 1
    return server


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_final_rows_are_those_of_torch(dtype: str) -> None:
    toy = Toy(dtype, pools=True)
    server = pooling(toy)
    server.start(0, PROMPT)
    rows = torch.from_numpy(rows_of(server, 0, 100))
    torch.testing.assert_close(rows, toy.final(PROMPT), atol=2e-5 if dtype == "fp32" else 0.06, rtol=0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_chunks_and_threads_change_no_bit_of_final_rows(dtype: str) -> None:
    server = pooling(Toy(dtype, pools=True))
    server.start(0, PROMPT)
    expected = rows_of(server, 0, 100)
    for threads, chunk in ((1, 1), (3, 7), (2, 64)):
        other = pooling(Toy(dtype, pools=True), threads, 8)
        other.start(1, PROMPT)
        assert np.array_equal(rows_of(other, 1, chunk), expected)


def test_pooled_slots_draw_nothing_and_leave_the_draws_of_others_as_they_are() -> None:
    expected = Server(Toy()).generate(0, PROMPT[:30], 2, 30)
    server = Server(Toy(pools=True), threads=2)
    server.start(0, PROMPT[:30])
    server.start(2, PROMPT[:50])
    server.slots.pooled[2] = 1
    first = server.program.step(np.array([2, 0]), np.array([50, 30]))
    assert first.tokens == [[], expected[0][:1]]
    assert first.requests["first_row"].tolist() == [0, 50]
    assert not first.hidden[50:].any()  # nothing was written for rows that are not pooled
    assert (server.slots.num_tokens[2], server.slots.num_computed[2]) == (50, 50)
    alone = pooling(Toy(pools=True), threads=1)
    alone.start(0, PROMPT[:50])
    assert np.array_equal(first.hidden[:50], rows_of(alone, 0, 50))
    assert server.program.step(np.array([0]), np.array([1])).tokens == [expected[0][1:]]


def test_rows_are_told_as_they_are_where_no_norm_is_given() -> None:
    program = Program(Slots(1, 8, 1, 1), 8, "fp32", 1, 101, 1, PageMemory(1, 64), 8)
    program.slots.block_table[:] = 0
    program.slots.pooled[0] = 1
    toy, x = Toy(), program.buffer(72)
    program.embed(toy.pack("embed"), x)
    program.hidden(x, None)
    program.finish()
    program.slots.start(0, [3, 9, 4])
    result = program.step(np.array([0]), np.array([3]))
    assert np.array_equal(result.hidden, toy.weights["embed"][[3, 9, 4]].numpy())
