"""Typical acceptance changes tokens by its rule and by nothing else: outputs are computed again, token by
token, from the answers of an engine without drafts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from counted import Counted
from local_engine import LocalEngine
from slipway.engine.config import TypicalAcceptance
from slipway.engine.params import SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.load.arrays import Ints
from slipway.worker.proposer import TokenProposer

Models = Callable[[str], Path]
VOCAB, MOST = 512, 3
BASE: dict[str, object] = {
    "dtype": "float32",
    "max_model_len": 128,
    "num_blocks": 100,
    "enable_prefix_caching": False,
    "max_logprobs": VOCAB,
}
RULE = TypicalAcceptance(threshold=0.09, alpha=0.3)
DRAFTS: dict[str, object] = {"num_drafts": MOST, "acceptance": RULE}
WAYS = {
    "temperature": SamplingParams(24, temperature=0.8, seed=3, num_logprobs=2),
    "cold": SamplingParams(24, temperature=0.3, seed=4),
    "top-k": SamplingParams(24, temperature=0.8, top_k=20, seed=5),
    "greedy": SamplingParams(24, temperature=0.0),
}
PROMPTS = [[5, 6, 7, 8], [9, 10] * 5, [11, 400, 33], [7] * 6]
WORK = list(zip(PROMPTS, WAYS.values(), strict=True))


class Plain:
    """What an engine without drafts draws behind some tokens, and what it thinks of all others."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self._engine = LocalEngine(model, **BASE)
        self.behind = cache(self._behind)

    def _behind(self, tokens: tuple[int, ...], way: str) -> tuple[int, np.ndarray]:
        params = msgspec.structs.replace(WAYS[way], max_tokens=1, num_logprobs=VOCAB)
        output = self._engine.run([(list(tokens), params)])[0]
        logprobs = np.full(VOCAB, -np.inf)
        for token, value in output.logprobs[0].top:
            logprobs[token] = value
        return output.tokens[0], logprobs


class Ranked(TokenProposer):
    """Guesses the first to the third of the likeliest tokens, in turn."""

    def __init__(self, plain: Plain) -> None:
        super().__init__()
        self._plain = plain

    def propose(self, tokens: Ints) -> Ints:
        known = tuple(tokens.tolist())
        for _ in range(MOST):
            _, logprobs = self._plain.behind(known, "greedy")
            known += (int(np.argsort(-logprobs)[len(known) % 3]),)
        return np.array(known[-MOST:], np.int32)


def guessing(plain: Plain, **settings: object) -> LocalEngine:
    """An engine whose requests verify what `Ranked` guesses, without pauses."""
    engine = LocalEngine(plain.model, **(BASE | DRAFTS | settings))
    engine.core.scheduler.guessing = None
    engine.worker.proposer = Ranked(plain)  # type: ignore[attr-defined]
    return engine


def likely(draft: int, logprobs: np.ndarray, params: SamplingParams) -> bool:
    """The rule, from reported log-probabilities."""
    if params.temperature == 0:
        return False
    logits = logprobs / params.temperature
    if params.top_k:
        logits[np.argsort(-logprobs)[params.top_k :]] = -np.inf
    p = np.exp(logits - logits.max())
    p /= p.sum()
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    bound = min(RULE.threshold, RULE.alpha * np.exp(-entropy))
    assert abs(p[draft] / bound - 1) > 1e-4, "so near to the bound roundings would decide"
    return bool(p[draft] > bound)


def expected(plain: Plain, prompt: list[int], way: str) -> tuple[list[int], int]:
    """The output, and how many of its tokens would not have been drawn."""
    params, known, changed = WAYS[way], tuple(prompt), 0
    known += (plain.behind(known, way)[0],)
    while (left := len(prompt) + params.max_tokens - len(known)) > 0:
        # The last token is always drawn: a draft of it would have none behind it.
        for draft in (*Ranked(plain).propose(np.array(known)).tolist()[: left - 1], None):
            drawn, logprobs = plain.behind(known, way)
            accepted = draft is not None and likely(draft, logprobs, params)
            changed += accepted and draft != drawn
            known += (draft if accepted else drawn,)
            if not accepted and draft != drawn:
                break
    return list(known[len(prompt) :][: params.max_tokens]), changed


@pytest.fixture(scope="module")
def plain(tiny_models: Models) -> Plain:
    return Plain(tiny_models("llama"))


def test_every_token_is_a_draft_that_the_rule_takes_or_what_is_drawn(plain: Plain) -> None:
    with guessing(plain) as engine:
        counted = Counted(engine)
        outputs = engine.run(WORK)
    for way, prompt, output in zip(WAYS, PROMPTS, outputs, strict=True):
        tokens, changed = expected(plain, prompt, way)
        assert output.tokens == tokens, way
        assert (changed > 0) is (way != "greedy"), way
    assert counted.accepted > 10
    assert counted.rejected > 10


def test_an_accepted_drafts_log_probability_is_its_own(plain: Plain) -> None:
    with guessing(plain) as engine:
        output = engine.run(WORK[:1])[0]
    for place, (token, one) in enumerate(zip(output.tokens, output.logprobs, strict=True)):
        _, logprobs = plain.behind((*PROMPTS[0], *output.tokens[:place]), "temperature")
        assert one.logprob == pytest.approx(logprobs[token], abs=1e-5)


def test_without_the_rule_the_same_guesses_change_nothing(plain: Plain) -> None:
    with LocalEngine(plain.model, **BASE) as engine:
        drawn = [one.tokens for one in engine.run(WORK)]
    with guessing(plain, acceptance=None) as engine:
        assert [one.tokens for one in engine.run(WORK)] == drawn
    with guessing(plain) as engine:
        assert [one.tokens == tokens for one, tokens in zip(engine.run(WORK), drawn, strict=True)] == [
            *[False] * 3,
            True,
        ]


@pytest.mark.parametrize(
    "settings", [{"threads": 3}, {"max_num_batched_tokens": 40}, {"block_size": 1, "num_blocks": 1000}]
)
def test_the_same_drafts_give_the_same_tokens_in_company(plain: Plain, settings: dict[str, object]) -> None:
    with guessing(plain, threads=1) as engine:
        alone = [engine.run([one])[0] for one in WORK]
    with guessing(plain, **settings) as engine:
        assert engine.run(WORK) == alone


def test_a_record_is_replayed_to_the_same_tokens(plain: Plain, tmp_path: Path) -> None:
    settings = BASE | DRAFTS | {"record": str(tmp_path / "record"), "prompt_lookup_min": 1}
    with LocalEngine(plain.model, **settings) as engine:
        counted = Counted(engine)
        engine.run([([7, 8] * 8, msgspec.structs.replace(way, max_tokens=60)) for way in WAYS.values()])
    assert counted.accepted > 3
    config, steps = read_record(tmp_path / "record")
    assert config.acceptance == RULE
    assert replay(Start.of(config).worker, steps) is None
    exact = Start.of(msgspec.structs.replace(config, acceptance=None)).worker
    assert replay(exact, steps) is not None
