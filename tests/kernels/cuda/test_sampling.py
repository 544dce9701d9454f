"""The device's sampler gives the reference's tokens, whatever is asked for and whoever is in the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sampling_batch import UNTOUCHED, Batch, Request, assert_drawn, plain_rows, untouched

from slipway_kernels.sampling import Acceptance, Features, reference, report
from slipway_kernels.sampling.bench import Asked
from slipway_kernels.sampling.record import bitmask
from slipway_kernels.sampling.workspace import Draws, Masks, workspace

# Rows that fail, and huge ones, are computed like all others.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")

GREEDY = Asked(temperature=0.0)

SHAPES = {
    "plain": lambda rng, vocab: rng.normal(size=vocab) * 3,
    "nearly flat": lambda rng, vocab: rng.normal(size=vocab) * 0.1,
    "many ties": lambda rng, vocab: np.round(rng.normal(size=vocab)),
    "all equal": lambda rng, vocab: np.full(vocab, -2.5),
    "zeros of both signs": lambda rng, vocab: np.where(rng.random(vocab) < 0.5, 0.0, -0.0),
    "huge": lambda rng, vocab: rng.uniform(-3e38, 3e38, vocab),
    "some -inf": lambda rng, vocab: np.where(rng.random(vocab) < 0.4, -np.inf, rng.normal(size=vocab)),
    "some +inf": lambda rng, vocab: np.where(rng.random(vocab) < 0.1, np.inf, rng.normal(size=vocab)),
    "all -inf": lambda rng, vocab: np.full(vocab, -np.inf),
    "one NaN": lambda rng, vocab: np.where(np.arange(vocab) == vocab // 2, np.nan, 1.0),
}

ALONE = {
    "greedy": GREEDY,
    "greedy with alternatives": replace(GREEDY, num_logprobs=4),
    "a row that reports its token alone": replace(GREEDY, num_logprobs=0),
    "temperature": Asked(temperature=0.7, seed=2**63 + 11),
    "a temperature of which the inverse overflows": Asked(temperature=1e-39, top_p=0.9, seed=1),
    "high temperature": Asked(temperature=100.0, seed=4),
    "top-k": Asked(top_k=7, seed=5),
    "top-k of one": Asked(top_k=1, seed=5),
    "top-k of more than there are blocks": Asked(top_k=700, seed=6),
    "top-k of all": Asked(top_k=10**6, seed=7),
    "top-p": Asked(top_p=0.9, seed=8),
    "top-p of nothing": Asked(top_p=0.0, seed=9),
    "top-p of nearly all": Asked(top_p=0.999999, seed=10),
    "min-p": Asked(min_p=0.05, seed=11),
    "typical": Asked(typical_p=0.7, seed=12),
    "every filter": Asked(temperature=1.3, top_k=300, top_p=0.8, min_p=0.01, typical_p=0.9, seed=13),
    "repetition": replace(GREEDY, repetition_penalty=1.9),
    "rewarded repetition": Asked(repetition_penalty=0.5, seed=14),
    "frequency and presence": Asked(frequency_penalty=1.5, presence_penalty=-0.7, seed=15),
    "bias": Asked(logit_bias=((0, 3.0), (6, -100.0), (5, 0.25)), top_p=0.9, seed=16),
    "stop tokens held back": replace(GREEDY, stop_token_ids=(0, 1, 2, 3), min_tokens=30),
    "stop tokens free": replace(GREEDY, stop_token_ids=(0, 1, 2, 3), min_tokens=3),
    "bad words": replace(GREEDY, bad_words=((4,), (2, 5, 1), (5, 2), (2, 5, 3), (1, 2, 5, 6))),
    "allowed tokens": Asked(allowed_token_ids=(1, 3, 4, 6), top_k=3, seed=17),
    "everything forbidden": Asked(allowed_token_ids=(2,), bad_words=((2,),)),
}


def request_of(asked: Asked, vocab: int) -> Request:
    history = tuple(token % vocab for token in (3, 6, 6, 900, 4, 4, 4, 1, 2, 5))
    return Request(asked, history, prompt_len=4)


def question(rng: np.random.Generator, vocab: int) -> Request:
    """A request that asks for about half of what there is."""

    def often(default: float, *others: float) -> float:
        return default if rng.random() < 0.5 else float(rng.choice(others))

    def tokens(most: int) -> tuple[int, ...]:
        size = int(rng.integers(0, most + 1)) if rng.random() < 0.5 else 0
        return tuple(int(token) for token in rng.choice(vocab, min(size, vocab), replace=False))

    history = tuple(int(token) for token in rng.integers(0, vocab, int(rng.integers(0, 20))))
    repeats = tuple((*history[len(history) - n :], token) for n, token in enumerate(tokens(3)))
    asked = Asked(
        temperature=float(rng.choice([0.0, 0.1, 0.8, 1.0, 1.7])),
        top_k=int(often(0, 1, 5, 120)),
        top_p=often(1.0, 0.1, 0.5, 0.95, rng.random()),
        min_p=often(0.0, 0.02, 0.3, 1.0),
        typical_p=often(1.0, 0.2, 0.9),
        presence_penalty=often(0.0, 0.5, -2.0),
        frequency_penalty=often(0.0, 0.3, -1.1),
        repetition_penalty=often(1.0, 0.7, 1.9),
        min_tokens=int(rng.integers(0, 9)),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        num_logprobs=int(rng.choice([-1, 0, 1, 5])),
        logit_bias=tuple((token, float(rng.normal() * 3)) for token in tokens(3)),
        allowed_token_ids=tokens(vocab),
        stop_token_ids=tokens(3),
        bad_words=repeats,
    )
    return Request(asked, history, int(rng.integers(0, len(history) + 1)))


def rows_of(device: torch.device, rows: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same numbers, apart in memory by more than a row."""
    wide = torch.full((rows.shape[0], rows.shape[1] + 5), float("nan"), dtype=dtype, device=device)
    wide[:, : rows.shape[1]] = torch.from_numpy(rows)
    return wide[:, : rows.shape[1]]


@pytest.mark.parametrize(
    ("vocab", "shape", "dtype"),
    [
        (1, "plain", torch.float32),
        (2, "many ties", torch.bfloat16),
        (7, "some -inf", torch.float32),
        (33, "huge", torch.float32),
        (63, "one NaN", torch.float32),
        (64, "zeros of both signs", torch.float32),
        (65, "some +inf", torch.bfloat16),
        (200, "all -inf", torch.float32),
        (257, "all equal", torch.float32),
        (1000, "plain", torch.bfloat16),
        (1025, "nearly flat", torch.float32),
        (2049, "many ties", torch.float32),
        (4999, "plain", torch.float32),
    ],
)
def test_tokens_and_reports_are_the_references(
    device: torch.device, vocab: int, shape: str, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(vocab)
    rows = np.stack([SHAPES[shape](rng, vocab) for _ in range(4)]).astype(np.float32)
    logits = rows_of(device, rows, dtype)
    requests = [question(rng, vocab) for _ in rows]
    out = Batch(requests, logits).draw()
    for row, request in enumerate(requests):
        expected = request.expected(logits[row].float().cpu().numpy())
        assert_drawn(out, row, expected, request.asked.num_logprobs)


@pytest.mark.parametrize(("vocab", "dtype"), [(1501, torch.float32), (700, torch.bfloat16)])
def test_each_feature_alone_is_the_references(device: torch.device, vocab: int, dtype: torch.dtype) -> None:
    requests = [request_of(asked, vocab) for asked in ALONE.values()]
    logits = rows_of(device, plain_rows(len(requests), vocab), dtype)
    out = Batch(requests, logits).draw()
    for row, request in enumerate(requests):
        expected = request.expected(logits[row].float().cpu().numpy())
        assert_drawn(out, row, expected, request.asked.num_logprobs)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [160, 512])
def test_every_row_of_a_large_batch_is_the_references(device: torch.device, rows: int) -> None:
    """The workspace holds 128 rows at once. Every ninth is padding, slots are in no order."""
    rng, vocab = np.random.default_rng(rows), 130
    logits = rows_of(device, plain_rows(rows, vocab, seed=rows))
    requests = [question(rng, vocab) for _ in range(rows)]
    slots = [-1 if row % 9 == 5 else int(slot) for row, slot in enumerate(rng.permutation(rows))]
    out = Batch(requests, logits, slots=slots, space_rows=rows).draw()
    for row, (request, slot) in enumerate(zip(requests, slots, strict=True)):
        if slot < 0:
            assert out.token[row] == out.failed[row] == UNTOUCHED
        else:
            expected = request.expected(logits[row].cpu().numpy())
            assert_drawn(out, row, expected, request.asked.num_logprobs)


@pytest.mark.parametrize(
    "asked", [Asked(temperature=0.6, top_k=20, top_p=0.95, seed=5), Asked(typical_p=0.9, min_p=0.01, seed=7)]
)
def test_a_large_vocabulary_is_the_references(device: torch.device, asked: Asked) -> None:
    row = plain_rows(1, 128_256, scale=2.5)
    row[0, ::3001] += np.linspace(4, 12, 43, dtype=np.float32)
    out = Batch([Request(asked)], rows_of(device, row)).draw()
    assert int(out.token[0]) == Request(asked).expected(row[0]).token


def test_a_row_alone_draws_as_in_company(device: torch.device) -> None:
    # Nine rows are cut into larger tiles than one.
    names = ["temperature", "top-p", "typical", "every filter", "repetition", "bias", "allowed tokens"]
    requests = [request_of(ALONE[name], 2100) for name in names]
    requests += [request_of(ALONE["greedy with alternatives"], 2100)] * 2
    logits = rows_of(device, plain_rows(len(requests), 2100, scale=1.0))
    together = Batch(requests, logits).draw()
    for row in (0, 1, 2, 4, 7):
        alone = Batch([requests[row]], logits[row : row + 1]).draw()
        assert alone.token[0] == together.token[row]
        assert alone.logprob[0] == together.logprob[row]


def test_rows_beyond_the_workspace_are_taken_in_turns(device: torch.device) -> None:
    requests = [request_of(ALONE[name], 100) for name in ("top-p", "repetition", "bias", "greedy", "top-k")]
    logits = rows_of(device, plain_rows(5, 100))
    whole = Batch(requests, logits).draw()
    assert torch.equal(Batch(requests, logits, space_rows=2).draw().token, whole.token)


def test_slots_name_the_rows_and_padding_is_left_alone(device: torch.device) -> None:
    names = ["every filter", "greedy with alternatives", "repetition", "temperature"]
    requests = [request_of(ALONE[name], 90) for name in names]
    logits = rows_of(device, plain_rows(4, 90))
    out = Batch(requests, logits, slots=(2, -1, 0, 1)).draw()
    for row in (0, 2, 3):
        assert int(out.token[row]) == requests[row].expected(logits[row].cpu().numpy()).token
    for values in (out.token, out.failed, out.logprob, out.rank, out.top_ids, out.top_logprobs):
        assert (values[1] == UNTOUCHED).all()


def test_a_row_that_needs_few_features_draws_the_same_where_all_are_on(device: torch.device) -> None:
    names = ("greedy", "temperature", "top-k", "frequency and presence")
    requests = [request_of(ALONE[name], 150) for name in names]
    logits = rows_of(device, plain_rows(4, 150))
    few = Batch(requests, logits).draw()
    every = Batch(requests, logits, features=Features(True, True, True, True, 2)).draw()
    assert torch.equal(few.token, every.token)


def test_rows_may_lie_further_apart_than_32_bits_reach(device: torch.device) -> None:
    storage = torch.empty(2**31 + 100, dtype=torch.bfloat16, device=device)  # touched at both ends only
    logits = storage.as_strided((2, 100), (2**31, 1))
    logits.copy_(torch.from_numpy(plain_rows(2, 100)))
    out = Batch([Request(GREEDY), request_of(ALONE["top-p"], 100)], logits).draw()
    expected = request_of(ALONE["top-p"], 100).expected(logits[1].float().cpu().numpy())
    assert out.token.tolist() == [int(logits[0].float().argmax()), expected.token]


def test_rows_draw_the_same_where_others_may_have_more_tokens(device: torch.device) -> None:
    """As rows that lack these, and as rows that have them at -inf, where masks say nothing of them."""
    vocab, added = 700, 350
    requests = [request_of(asked, vocab) for asked in ALONE.values()]
    rows = plain_rows(len(requests), vocab)
    padded = np.concatenate((rows, np.full((len(rows), added), -np.inf, np.float32)), axis=1)
    bits = bitmask(range(0, vocab, 3), vocab)
    words = torch.zeros(len(rows), -(-(vocab + added) // 32), dtype=torch.int32)
    words[:, : len(bits)] = torch.from_numpy(bits)
    masked = torch.arange(len(rows), dtype=torch.int32, device=device) % 2
    mask = Masks(words.to(device), masked)
    narrow = replace(mask, words=mask.words[:, : len(bits)])
    expected = Batch(requests, rows_of(device, rows), masks=narrow).draw()
    for logits, more in ((rows, added), (padded, 0)):
        found = Batch(requests, rows_of(device, logits), masks=mask, added=more).draw()
        for name in ("token", "failed", "logprob", "rank", "top_ids", "top_logprobs"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_a_mask_allows_what_its_bits_say_in_the_rows_that_have_one(device: torch.device) -> None:
    vocab, allowed = 97, (0, 31, 32, 64, 96)
    rows = plain_rows(4, vocab)
    requests = [request_of(ALONE[name], vocab) for name in ("greedy", "temperature", "allowed tokens")]
    requests.append(requests[0])
    masks = [
        bitmask(allowed, vocab),
        bitmask(range(vocab), vocab),
        bitmask((3, 32), vocab),
        bitmask((), vocab),
    ]
    words = torch.from_numpy(np.stack(masks)).to(device)
    masked = torch.tensor([1, 1, 1, 0], dtype=torch.int32, device=device)
    out = Batch(requests, rows_of(device, rows), masks=Masks(words, masked)).draw()
    only = replace(requests[0], asked=replace(GREEDY, allowed_token_ids=allowed))
    free = [requests[row].expected(rows[row]).token for row in (1, 3)]
    assert out.token.tolist() == [only.expected(rows[0]).token, free[0], 3, free[1]]


@pytest.mark.parametrize(
    "name", ["temperature", "stop tokens held back", "bad words", "frequency and presence"]
)
def test_each_row_of_a_slot_is_drawn_after_the_tokens_before_it(device: torch.device, name: str) -> None:
    """Three drafts behind seven tokens: four rows, of which each sees one draft more than the last."""
    whole, vocab = (3, 6, 6, 4, 4, 2, 5, 1, 2, 5), 40
    asked = replace(ALONE[name], min_tokens=5, logit_bias=((0, 2.0), (6, 1.5)))
    asked = replace(asked, bad_words=(*asked.bad_words, (2, 5, 0), (5, 1, 6)))
    requests = [Request(asked, whole[:length], prompt_len=4) for length in (7, 8, 9, 10)]
    rows = np.tile(plain_rows(1, vocab, scale=0.4), (4, 1))
    out = Batch(requests, rows_of(device, rows), slots=(2, 2, 2, 2)).draw()
    expected = [request.expected(row).token for request, row in zip(requests, rows, strict=True)]
    assert out.token.tolist() == expected
    assert len(set(expected)) > 1


JUDGED = {
    "greedy": GREEDY,
    "temperature": Asked(temperature=0.8),
    "top-k": Asked(top_k=7),
    "top-p": Asked(top_p=0.9),
    "every filter": Asked(temperature=1.3, top_k=30, top_p=0.95, min_p=0.01, typical_p=0.9),
    "penalties": Asked(frequency_penalty=1.5, num_logprobs=1),
    "bias": Asked(logit_bias=((0, 3.0), (5, -100.0)), temperature=0.5),
}


@pytest.mark.parametrize("acceptance", [Acceptance(0.09, 0.3), Acceptance(0.02, 2.0)])
@pytest.mark.parametrize("vocab", [40, 1100])
def test_drafts_stand_for_draws_as_the_reference_says(
    device: torch.device, acceptance: Acceptance, vocab: int
) -> None:
    """Slots of four rows, of which three have a draft: a likely one, the next, and an unlikely one."""
    rows = plain_rows(4 * len(JUDGED), vocab, scale=2.5)
    ranked = np.argsort(-rows, axis=1)
    requests, drafts, slots = [], list[reference.Draft | None](), []
    for slot, asked in enumerate(JUDGED.values()):
        first = 4 * slot
        guessed = (ranked[first, 1], ranked[first + 1, 3], ranked[first + 2, 30])
        history = (3, 6, 6, 4, *map(int, guessed))
        for length in (4, 5, 6, 7):
            requests.append(Request(replace(asked, seed=slot), history[:length], prompt_len=2))
            token = history[length] if length < 7 else None
            drafts.append(
                None if token is None else reference.Draft(token, acceptance.threshold, acceptance.alpha)
            )
            slots.append(slot)
    batch = Batch(requests, rows_of(device, rows), slots=slots, space_rows=3, acceptance=acceptance)
    out, accepted = batch.draw(), []
    for row, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
        expected = request.expected(rows[row], draft)
        assert_drawn(out, row, expected, request.asked.num_logprobs)
        accepted.append(
            draft is not None and expected.token == draft.token != request.expected(rows[row]).token
        )
    assert 2 < sum(accepted) < 12
    assert not any(accepted[:4])  # of the greedy request


def test_a_bad_word_is_forbidden_only_where_all_of_it_would_stand(device: torch.device) -> None:
    row = np.arange(8, dtype=np.float32)
    words = ((1, 2, 5, 7), (2, 5, 6), (3, 2, 5, 5), (0, 1, 2, 5, 4))
    requests = [
        Request(replace(GREEDY, bad_words=words), history)
        for history in ((1, 2, 5), (3, 2, 5), (2, 5), (5, 2), (0, 1, 2, 5))
    ]
    out = Batch(requests, rows_of(device, np.tile(row, (5, 1)))).draw()
    assert out.token.tolist() == [5, 7, 7, 7, 5]


def test_penalties_follow_their_published_formulas(device: torch.device) -> None:
    history, prompt_len, rival = (1, 2, 2, 3, 3, 3, 70), 2, 79
    base = plain_rows(1, 80)[0]
    rows, requests, winners = [], [], []
    for token in (0, 1, 2, 3, 70):
        penalized, count = float(base[token]), history[prompt_len:].count(token)
        if token in history:
            penalized = penalized / 1.5 if penalized > 0 else penalized * 1.5
        penalized -= count * 0.25 + (count > 0) * 0.5
        asked = replace(GREEDY, repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=0.5)
        # The penalized logit shows against a rival just below it, then just above it.
        for gap, winner in ((-1e-3, token), (1e-3, rival)):
            rows.append(np.where(np.arange(80) == rival, np.float32(penalized + gap), base))
            requests.append(Request(replace(asked, allowed_token_ids=(token, rival)), history, prompt_len))
            winners.append(winner)
    out = Batch(requests, rows_of(device, np.stack(rows).astype(np.float32))).draw()
    assert out.token.tolist() == winners


def test_a_nan_fails_its_row_even_where_the_token_is_not_allowed(device: torch.device) -> None:
    rows = plain_rows(2, 70)
    rows[0, 69] = np.nan
    requests = [Request(Asked(allowed_token_ids=(1, 2))), Request(GREEDY)]
    out = Batch(requests, rows_of(device, rows)).draw()
    assert out.failed.tolist() == [1, 0]
    assert out.token.tolist() == [-1, rows[1].argmax()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_given_tokens_are_reported(device: torch.device, dtype: torch.dtype) -> None:
    rows = plain_rows(5, 333)
    rows[1] = np.round(rows[1])
    rows[2] = 1.5
    rows[4, 7] = np.nan
    logits = rows_of(device, rows, dtype)
    given = [3, 200, 332, -1, 8]
    out = untouched(5, 6, device)
    space = workspace(2, 333, Features(), device)
    report(logits, torch.tensor(given, dtype=torch.int32, device=device), space, out)
    for row in (0, 1, 2):
        expected = reference.report(logits[row].float().cpu().numpy(), given[row], 6)
        assert_drawn(replace(out, token=torch.tensor(given)), row, expected, 6)
    assert out.failed.tolist() == [0, 0, 0, UNTOUCHED, 1]
    assert (out.rank[3:] == UNTOUCHED).all()


def test_more_alternatives_than_tokens_are_all_of_them(device: torch.device) -> None:
    rows = plain_rows(1, 3)
    out = untouched(1, 5, device)
    given = torch.zeros(1, dtype=torch.int32, device=device)
    report(rows_of(device, rows), given, workspace(1, 3, Features(), device), out)
    assert out.top_ids[0].tolist() == [*np.argsort(-rows[0]).tolist(), -1, -1]


@pytest.mark.parametrize(
    ("asked", "draws"), [(Asked(), 100), (Asked(temperature=0.8, top_k=5, top_p=0.9), 40)]
)
def test_tokens_come_as_often_as_they_should(device: torch.device, asked: Asked, draws: int) -> None:
    row = np.log(np.array([0.04, 0.06, 0.1, 0.15, 0.25, 0.4], np.float32))
    requests = [Request(replace(asked, seed=seed), (0,) * (seed % 5)) for seed in range(draws)]
    out = Batch(requests, rows_of(device, np.tile(row, (draws, 1)))).draw()
    expected = np.exp(row.astype(np.float64) / asked.temperature)
    if asked.top_k:
        expected[:2] = 0  # by top-p 0.9 of the five that top-k leaves
    expected *= draws / expected.sum()
    counts = np.bincount(out.token.cpu().numpy(), minlength=6)
    kept = expected > 0
    assert counts[~kept].sum() == 0
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    logits = torch.zeros(2, 64, device=device)
    given = torch.zeros(2, dtype=torch.int32, device=device)
    out = Draws.empty(2, 0, device)
    with pytest.raises(ValueError, match="the workspace is for 32 tokens, and the rows have 64"):
        report(logits, given, workspace(2, 32, Features(), device), out)
    space = workspace(2, 64, Features(), device)
    with pytest.raises(ValueError, match=r"the outputs hold \[3\] tokens"):
        report(logits, given, space, Draws.empty(3, 0, device))
    with pytest.raises(ValueError, match=r"logits are \[2, 64\] by strides of \(1, 2\)"):
        report(torch.zeros(64, 2, device=device).T, given, space, out)
