from __future__ import annotations

import numpy as np
import pytest
import torch
from toy import GREEDY, Server, Toy

from slipway_kernels.cpu import LowRank, Packed, PageMemory, Piece, Program, Slots

PROMPT = torch.randint(0, 101, (100,), generator=torch.Generator().manual_seed(5)).tolist()
VARIANTS = [{}, {"window": 20}, {"softcap": 5.0}, {"head_dim": 64, "rotary_dim": 64, "qk_norm": False}]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_toy_model_computes_what_torch_computes(dtype: str, variant: dict[str, float]) -> None:
    toy = Toy(dtype, **variant)  # type: ignore[arg-type]
    tokens, logprobs = Server(toy).generate(0, PROMPT, 6, 100)
    expected = toy.logits(PROMPT + tokens)[99:-1].log_softmax(-1)
    assert tokens == expected.argmax(-1).tolist()
    chosen = expected.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs), chosen, atol=1e-5 if dtype == "fp32" else 0.03, rtol=0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_chunk_block_size_and_threads_change_no_bit(dtype: str) -> None:
    toy = Toy(dtype, window=40)
    expected = Server(toy).generate(0, PROMPT, 5, 100)
    for block_size, threads in ((1, 1), (8, 2), (16, 3), (64, 1), (128, 2)):
        server = Server(toy, block_size, threads)
        for slot, chunk in enumerate((1, 7, 64)):
            assert server.generate(slot, PROMPT, 5, chunk) == expected, (block_size, threads, chunk)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_company_in_the_batch_changes_no_bit(dtype: str) -> None:
    toy = Toy(dtype)
    prompts = [PROMPT[:50], PROMPT[3:4], PROMPT[10:43], PROMPT[:17]]
    alone = [Server(toy).generate(0, prompt, 4, 100) for prompt in prompts]
    server = Server(toy, threads=2)
    for slot, prompt in enumerate(prompts):
        server.start(slot, prompt)
    order = np.array([2, 0, 3, 1])
    drawn: list[list[tuple[int, float]]] = [[] for _ in prompts]
    while any(len(tokens) < 4 for tokens in drawn):
        left = server.slots.num_tokens - server.slots.num_computed
        result = server.program.step(order, np.minimum(left, 9)[order])
        for slot, tokens, first in zip(order, result.tokens, result.requests["first_drawn"], strict=True):
            if tokens and len(drawn[slot]) < 4:
                drawn[slot].append((tokens[0], float(result.rows["logprob"][first])))
    assert [list(zip(*one, strict=True)) for one in alone] == drawn


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_adapter_adds_what_merged_weights_would_to_the_rows_that_ask_for_it(dtype: str) -> None:
    toy = Toy(dtype, ranks=(3, 40))
    toy.weights |= {name: torch.zeros_like(toy.weights[name]) for name in ("0.o.b1", "1.o.b1")}  # left alone
    plain = Server(Toy(dtype)).generate(0, PROMPT, 4, 100)
    for adapter in (0, 1):
        server = Server(toy, threads=2)
        server.slots.adapter[0] = adapter
        tokens, logprobs = server.generate(0, PROMPT, 4, 30)
        expected, exact = Server(toy.merged(adapter)).generate(0, PROMPT, 4, 100)
        assert tokens == expected != plain[0]
        assert logprobs == pytest.approx(exact, abs=1e-5 if dtype == "fp32" else 0.06)
        assert server.generate(1, PROMPT, 4, 30) == plain


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_adapters_in_the_batch_change_no_bit_of_other_rows(dtype: str) -> None:
    toy, chosen = Toy(dtype, ranks=(3, 40)), [0, -1, 0, 1]

    def drawn(slots: list[int], threads: int) -> dict[int, float]:
        """Log-probability of each slot's first token, all slots in one step."""
        server = Server(toy, threads=threads)
        server.slots.adapter[:] = chosen
        for slot in slots:
            server.start(slot, PROMPT[slot : 5 + 20 * slot])
        counts = [5 + 19 * slot for slot in slots]
        result = server.program.step(np.array(slots), np.array(counts))
        drawn = result.rows["logprob"][result.requests["first_drawn"]]
        return dict(zip(slots, drawn.tolist(), strict=True))

    alone = {slot: drawn([slot], 1)[slot] for slot in range(4)}
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [1, 0]):
        together = drawn(order, 3)
        assert together == {slot: alone[slot] for slot in order}


def test_a_slot_whose_adapter_is_not_there_is_refused() -> None:
    server = Server(Toy(ranks=(3,)))
    server.start(0, PROMPT[:5])
    server.slots.adapter[0] = 1
    with pytest.raises(ValueError, match="does not fit the slots"):
        server.program.step(np.array([0]), np.array([5]))


def test_an_adapter_that_does_not_fit_is_refused() -> None:
    program = Program(Slots(1, 8, 1, 1), 8, "bf16", 1, 10, 1, PageMemory(1, 64), 8)
    x = program.buffer(32, "act")
    program.linear(x, Packed(48, 32, "bf16"), program.buffer(48))
    to = program.adapt(2, 16, x, 48, 32)

    def low(n: int, k: int, rank: int) -> LowRank:
        a, b = np.zeros((rank, k), np.float32), np.zeros((n, rank), np.float32)
        return LowRank(n, "bf16", [Piece(a, b, np.arange(n, dtype=np.int32))])

    with pytest.raises(ValueError, match=r"of \[47, 32\] does not fit a product of \[48, 32\]"):
        program.set_adapter(to, 0, low(47, 32, 4))
    with pytest.raises(ValueError, match="has 32 columns, where there is room for 16"):
        program.set_adapter(to, 0, low(48, 32, 17))
    with pytest.raises(ValueError, match="there are 2 places, and no place 2"):
        program.set_adapter(to, 2, low(48, 32, 4))
    piece = Piece(np.zeros((4, 32)), np.zeros((48, 5)), np.arange(48, dtype=np.int32))
    with pytest.raises(ValueError, match="do not fit each other"):
        LowRank(48, "bf16", [piece])
    with pytest.raises(ValueError, match="do not fit each other"):  # which has three of five rows
        LowRank(48, "bf16", [piece], dealt=(0, 2))
    with pytest.raises(ValueError, match="adapt: 16 columns of A · x, dealt, where ranks share 0"):
        program.adapt(2, 16, x, 48, 32, "dealt", 16)


def test_a_step_appends_what_it_draws_and_advances() -> None:
    server = Server(Toy())
    server.start(2, PROMPT[:10])
    server.program.step(np.array([2]), np.array([4]))
    assert (server.slots.num_tokens[2], server.slots.num_computed[2]) == (10, 4)
    result = server.program.step(np.array([2]), np.array([6]))
    assert (server.slots.num_tokens[2], server.slots.num_computed[2]) == (11, 10)
    assert [server.slots.tokens[2, 10].item()] == result.tokens[0]


def test_prompt_logprobs_stand_at_the_token_before() -> None:
    toy = Toy()
    server = Server(toy)
    server.start(0, PROMPT[:80])
    params = type(GREEDY)(**{**vars(GREEDY), "num_prompt_logprobs": 2})
    server.slots.set_sampling(0, params, prompt_logprobs_from=3)
    result = server.program.step(np.array([0]), np.array([80]))
    expected = toy.logits(PROMPT[:80]).log_softmax(-1)
    assert result.rows["token"].tolist() == [-1, -1, *PROMPT[3:80], *result.tokens[0]]
    chosen = expected[range(2, 79), PROMPT[3:80]]
    torch.testing.assert_close(torch.tensor(result.rows["logprob"][2:79]), chosen, atol=1e-5, rtol=0)


def test_an_empty_plan_returns_at_once() -> None:
    server = Server(Toy())
    empty = np.zeros(0, np.int32)
    assert server.program.step(empty, empty).tokens == []


def test_a_plan_past_the_known_tokens_is_refused_and_changes_nothing() -> None:
    server = Server(Toy())
    server.start(0, PROMPT[:5])
    with pytest.raises(ValueError, match=r"slots \[0\], grants \[6\]"):
        server.program.step(np.array([0]), np.array([6]))
    assert server.slots.num_computed[0] == 0


def test_a_buffer_of_the_wrong_width_is_refused() -> None:
    program = Program(Slots(1, 8, 1, 1), 8, "bf16", 1, 10, 1, PageMemory(1, 64), 8)
    x, y = program.buffer(32), program.buffer(48, "act")
    with pytest.raises(ValueError, match="width 32; it must be 48"):
        program.rms_norm(x, np.ones(32, np.float32), y, 1e-5)


def test_operations_are_measured_when_asked() -> None:
    server = Server(Toy("fp32"))
    measured = server.program.measure()
    assert {name for name, _ in measured} >= {"embed", "linear", "attention", "head"}
    server.generate(0, PROMPT, 2, 100)
    assert all(seconds[0] > 0 for _, seconds in measured)
