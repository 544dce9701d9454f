"""Text of one output, however its tokens were grouped."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import SENTENCE

from slipway.api.transcript import Transcript, TranscriptRules
from slipway.engine.messages import Delta, TokenLogprobs
from slipway.engine.params import SamplingParams
from slipway.text.open import load
from slipway.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(scripted_model: Path) -> Tokenizer:
    return load(scripted_model)


def told(rules: TranscriptRules, groups: list[list[int]], *, min_tokens: int = 0) -> tuple[object, ...]:
    """Everything that comes out of these tokens: text, tokens, logprobs, reasons."""
    transcript = Transcript(0, rules, SamplingParams(100, min_tokens=min_tokens), [])
    text, tokens, logprobs = "", [], 0
    for position, group in enumerate(groups):
        delta = Delta("r", list(group), logprobs=[TokenLogprobs(-1.0, 1, [])] * len(group))
        if position == len(groups) - 1:
            delta.finish_reason = "length"
        piece = transcript.take(delta)
        text += piece.text
        tokens += piece.token_ids
        logprobs += len(piece.logprobs or ())
        if piece.finish_reason is not None:
            assert transcript.num_tokens == len(tokens) == logprobs
            return text, tokens, piece.finish_reason, piece.stop_reason
    raise AssertionError("it never ended")


@settings(max_examples=60)
@given(cuts=st.sets(st.integers(1, 38)), min_tokens=st.integers(0, 40))
@pytest.mark.parametrize("stops", [(), ("and", "capital of G"), ("ny.",), ("Paris", " ")])
def test_what_comes_out_does_not_depend_on_the_grouping(
    tokenizer: Tokenizer, stops: tuple[str, ...], cuts: set[int], min_tokens: int
) -> None:
    ids = tokenizer.encode(SENTENCE)
    edges = [0, *sorted(cuts), len(ids)]
    groups = [ids[start:end] for start, end in pairwise(edges)]
    rules = TranscriptRules(tokenizer, stops)
    single = told(rules, [[token] for token in ids], min_tokens=min_tokens)
    assert told(rules, groups, min_tokens=min_tokens) == single


@settings(max_examples=60)
@given(cuts=st.sets(st.integers(1, 38)), min_tokens=st.integers(0, 40))
@pytest.mark.parametrize("stops", [(), ("ny 😀.",)])
def test_offsets_do_not_depend_on_the_grouping(
    tokenizer: Tokenizer, stops: tuple[str, ...], cuts: set[int], min_tokens: int
) -> None:
    text = "Paris 😀 is the capital of Germany 😀."
    ids = [*tokenizer.encode(text), 2]
    edges = [0, *sorted(one for one in cuts if one < len(ids)), len(ids)]
    transcript = Transcript(
        0, TranscriptRules(tokenizer, stops, offsets=True), SamplingParams(100, min_tokens=min_tokens), []
    )
    pieces = []
    for start, end in pairwise(edges):
        last = end == len(ids)
        delta = Delta("r", ids[start:end], "stop" if last else None, 2 if last else None)
        pieces.append(transcript.take(delta))
        if pieces[-1].finish_reason is not None:
            break
    offsets = [offset for piece in pieces for offset in piece.offsets]
    texts = [tokenizer.token_text(i) for i in ids]
    assert len(offsets) == transcript.num_tokens
    assert [text[begin:end] for begin, end in pairwise(offsets)] == [
        "😀" if one == "\ufffd" and other != "\ufffd" else "" if one == "\ufffd" else one
        for one, other in pairwise(texts[: len(offsets)])
    ]


def test_a_held_back_beginning_of_a_stop_string_comes_out_in_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(SENTENCE)
    text, tokens, reason, _ = told(TranscriptRules(tokenizer, ("Germany.!",)), [[token] for token in ids])
    assert (text, tokens, reason) == (SENTENCE, ids, "length")


def test_the_stopping_token_is_counted_and_silent(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("Paris"), 2]
    rules = TranscriptRules(tokenizer, skip_special_tokens=False)
    delta = Delta("r", ids, "stop", stop_token_id=2)
    transcript = Transcript(0, rules, SamplingParams(100), [])
    piece = transcript.take(delta)
    assert (piece.text, piece.token_ids, piece.stop_reason) == ("Paris", ids, None)
    kept = TranscriptRules(tokenizer, keep_stop=True, skip_special_tokens=False)
    assert Transcript(0, kept, SamplingParams(100), []).take(delta).text == "Paris<|im_end|>"
