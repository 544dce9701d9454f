"""Matchers: over every kind of vocabulary what they let through is a text of the grammar, and all of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from vocabularies import byte_level, metaspace, no_decoder, processor, word_ends

from slipway.text import matcher, structure
from slipway.text.errors import GrammarError
from slipway.text.fast import FastVocabulary
from slipway.text.matcher import GrammarCompiler, GrammarMatcher
from slipway.text.sentencepiece import SentencePieceVocabulary
from slipway.text.structural_tag import of_structural_tag
from slipway.text.tokenizer import Tokenizer, Vocabulary

MUCH = 1 << 30


def pieces() -> Vocabulary:
    special = {1: "<s>", 2: "</s>"}
    return SentencePieceVocabulary(processor(), special, frozenset(special), bos=True, eos=False)


VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    "byte level": lambda: FastVocabulary(byte_level()),
    "metaspace": lambda: FastVocabulary(metaspace()),
    "sentencepiece": pieces,
}


def tokenizer(name: str) -> Tokenizer:
    vocabulary = VOCABULARIES[name]()
    end = vocabulary.token_id("</s>")
    assert end is not None
    return Tokenizer(vocabulary, eos_token_ids=[end])


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    known = tokenizer("byte level")
    return GrammarCompiler(known, known.vocab_size + 40, MUCH)


@pytest.fixture(scope="module")
def encode() -> Callable[[str], list[int]]:
    known = tokenizer("byte level")
    return lambda text: known.encode(text, add_special_tokens=False)


def allowed(row: NDArray[np.uint32]) -> list[int]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def walked(matcher: GrammarMatcher, chance: random.Random, ends: Sequence[int], most: int = 80) -> list[int]:
    """Tokens drawn at random until the text is complete."""
    tokens: list[int] = []
    for _ in range(most):
        choices = allowed(matcher.masks(())[0])
        token = chance.choice([one for one in choices if one in ends] or choices)
        if token in ends:
            return tokens
        tokens.append(token)
        if matcher.advance([token]) is not None:
            return tokens
    raise AssertionError("it never ended")


@pytest.mark.parametrize("name", VOCABULARIES)
def test_what_is_drawn_at_random_is_a_text_of_the_grammar(name: str) -> None:
    known = tokenizer(name)
    compiler = GrammarCompiler(known, known.vocab_size, MUCH)
    chance = random.Random(3)
    pattern = r"(the|a) (cat|dog|isn't)( and hello){0,2}, 1?"
    for _ in range(20):
        tokens = walked(compiler.matcher(structure.of_regex(pattern)), chance, known.eos_token_ids)
        text = b"".join(map(known.token_bytes, tokens)).decode()
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_forced_tokens_are_those_of_the_tokenizer_and_never_special(name: str) -> None:
    known = tokenizer(name)
    compiler = GrammarCompiler(known, known.vocab_size, MUCH)
    for text in ("hello world, the cat", "</s> and </s>", "isn't <tool> here"):
        matcher = compiler.matcher(structure.of_choice([text]))
        tokens: list[int] = []
        while True:
            forced = matcher.forced() or [allowed(matcher.masks(())[0])[0]]
            tokens += forced
            if matcher.advance(forced) is not None:
                break
        assert b"".join(map(known.token_bytes, tokens)).decode() == text
        assert not set(tokens) & known.special_ids


def test_the_special_tokens_of_a_tag_are_drawn_as_such_wherever_they_stand(
    compiler: GrammarCompiler, encode: Callable[[str], list[int]]
) -> None:
    known = tokenizer("byte level")
    special = {known.token_text(token_id): token_id for token_id in known.special_ids}
    begin, end = special["<s>"], special["</s>"]
    number = {"type": "json_schema", "json_schema": {"type": "integer"}}
    tag = {"begin": "<s>f<s>", "content": number, "end": "!"}
    thought = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "<s>so:"}
    free = {"type": "triggered_tags", "triggers": ["<s>"], "tags": [tag]}
    grammar = of_structural_tag(
        {"format": {"type": "sequence", "elements": [thought, free]}}, special_ids=special
    )
    good = [*encode("hm"), begin, *encode("so:"), *encode("hi"), begin, *encode("f"), begin, *encode("12!")]
    assert compiler.matcher(grammar).advance(good) is None
    assert end in allowed(followed(compiler.matcher(grammar), good))
    for *so_far, bad in ([*encode("hm"), end], [*good[:-1], *encode("x")], [begin, *encode("f")]):
        assert bad not in allowed(followed(compiler.matcher(grammar), so_far))


def followed(matcher: GrammarMatcher, tokens: Sequence[int]) -> NDArray[np.uint32]:
    """The mask behind these tokens."""
    matcher.advance(tokens)
    row: NDArray[np.uint32] = matcher.masks(())[0]
    return row


def test_a_text_in_the_middle_is_cut_as_the_tokenizer_cuts_it(
    compiler: GrammarCompiler, encode: Callable[[str], list[int]]
) -> None:
    text = "Hello world, how are you? The cat isn't here. 日本 😀"
    forced = compiler.matcher(structure.of_choice([text])).forced()
    assert forced == encode(text)[: len(forced)]
    assert len(forced) >= len(encode(text)) - 1


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "size", "ok"],
    "additionalProperties": False,
}
TIGHT = structure.of_json_schema(SCHEMA, structure.JsonStyle(any_whitespace=False))


def test_masks_behind_drafts_are_those_that_come_when_they_are_drawn(
    compiler: GrammarCompiler, encode: Callable[[str], list[int]]
) -> None:
    tokens = encode('{"name":"a cat","size":12,"ok":true}')
    whole = compiler.matcher(TIGHT)
    ahead = whole.masks(tokens)
    step_by_step = compiler.matcher(TIGHT)
    for place, token in enumerate(tokens):
        np.testing.assert_array_equal(step_by_step.masks(())[0], ahead[place])
        # Looking ahead has left no trace.
        np.testing.assert_array_equal(step_by_step.masks(tokens[place : place + 4])[0], ahead[place])
        complete = step_by_step.advance([token])
        assert complete == (1 if place == len(tokens) - 1 else None)
    assert whole.advance(tokens) == len(tokens)


def test_behind_a_draft_that_is_refused_everything_may_come(
    compiler: GrammarCompiler, encode: Callable[[str], list[int]]
) -> None:
    good, wrong = encode('{"name":'), encode(" no")[0]
    matcher = compiler.matcher(TIGHT)
    rows = matcher.masks([*good, wrong, wrong])
    assert wrong not in allowed(rows[len(good)])
    assert (rows[len(good) + 1 :] == 0xFFFFFFFF).all()
    np.testing.assert_array_equal(matcher.masks(())[0], rows[0])
    with pytest.raises(GrammarError):
        matcher.advance([wrong])


def test_the_end_may_come_where_the_text_is_complete_and_other_ends_with_it(
    compiler: GrammarCompiler, encode: Callable[[str], list[int]]
) -> None:
    known = tokenizer("byte level")
    (end,) = known.eos_token_ids
    other = encode("?")[0]
    matcher = compiler.matcher(structure.of_regex("a+"), [other, end])
    assert not {end, other} & set(allowed(matcher.masks(())[0]))
    assert matcher.advance(encode("a")) is None
    assert {end, other, *encode("a")} <= set(allowed(matcher.masks(())[0]))
    assert matcher.advance([*encode("a"), other]) == 2
    again = compiler.matcher(structure.of_regex("a+"))
    assert again.advance([*encode("a"), end]) == 2


def test_there_are_bits_for_every_logit_and_none_for_those_without_a_token(compiler: GrammarCompiler) -> None:
    known = tokenizer("byte level")
    row = compiler.matcher(structure.of_regex("(?s).*")).masks(())[0]
    assert len(row) == -(-(known.vocab_size + 40) // 32)
    tokens = allowed(row)
    assert max(tokens) < known.vocab_size
    for token in set(range(known.vocab_size)) - set(tokens) - known.special_ids:
        assert "\ufffd" in known.token_text(token), "all but parts of characters begin a text"


WIDE = {
    "allOf": [{"anyOf": [{"type": "object", "required": [f"p{i}_{j}"]} for j in range(6)]} for i in range(5)]
}
"""Multiplied out it has thousands of branches."""


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (
            structure.of_json_schema({"properties": {"a": False}, "required": ["a"], "type": "object"}),
            "no value is valid",
        ),
        (structure.of_grammar('start: start "a"'), "no text that it allows"),
        (structure.of_json_schema(WIDE), "it is too large"),
    ],
    ids=["nothing", "endless", "wide"],
)
def test_what_has_no_text_or_is_too_large_is_refused(
    compiler: GrammarCompiler, grammar: str, reason: str
) -> None:
    with pytest.raises(GrammarError, match=f"(?i){reason}"):
        compiler.matcher(grammar)


def test_what_takes_too_long_is_refused(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = structure.of_regex("slow+")
    begun = compiler.matcher(grammar)
    monkeypatch.setattr(matcher, "SLOW", 0.0)
    with pytest.raises(GrammarError, match="takes too long"):
        compiler.matcher(structure.of_regex("slower+"))
    for ask in (lambda: begun.masks(()), begun.forced):
        with pytest.raises(GrammarError, match="takes too long"):
            ask()


def test_the_masks_of_one_step_are_refused_where_their_sum_takes_too_long(
    compiler: GrammarCompiler, encode: Callable[[str], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = compiler.matcher(structure.of_regex("(hello )+"))
    monkeypatch.setattr(matcher, "SLOW_STEP", 0.0)
    with pytest.raises(GrammarError, match="takes too long"):
        begun.masks(encode("hello hello"))


def test_what_is_forced_is_found_once(
    compiler: GrammarCompiler, encode: Callable[[str], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "hello world, the cat and the dog"
    begun = compiler.matcher(structure.of_regex(f"{text} [a-z]"))
    forced = begun.forced()
    assert len(forced) > 3
    monkeypatch.setattr(matcher, "SLOW", -1.0)  # asking again would raise
    for place in range(len(forced)):
        assert begun.forced() == forced[place:]
        assert begun.advance(forced[place : place + 1]) is None
    monkeypatch.undo()
    again = compiler.matcher(structure.of_regex("hello( world| you)! yes"))
    assert again.advance(encode("hello")) is None
    again.forced()
    assert again.advance(encode(" you")) is None
    assert b"".join(map(tokenizer("byte level").token_bytes, again.forced())).startswith(b"!")


def test_the_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    known = tokenizer("byte level")
    compiler = GrammarCompiler(known, known.vocab_size, 1 << 20)
    names = [structure.of_choice([str(number)]) for number in range(4)]
    for grammar in (*names[:3], names[0], names[3]):
        compiler.matcher(grammar)
    kept = list(compiler._cache)
    assert kept == [names[2], names[0], names[3]]
    first, second = compiler.matcher(names[0]), compiler.matcher(names[0])
    assert first.advance(known.encode("0", add_special_tokens=False)) == 1
    assert second.masks(())[0].any(), "two matchers of one grammar are two"


def test_a_tokenizer_that_cannot_write_texts_token_by_token_is_refused() -> None:
    with pytest.raises(GrammarError, match="no end-of-sequence token"):
        GrammarCompiler(Tokenizer(FastVocabulary(byte_level())), 600, MUCH)
    for make in (word_ends, no_decoder):
        with pytest.raises(GrammarError, match="depend on their neighbours"):
            GrammarCompiler(Tokenizer(FastVocabulary(make()), eos_token_ids=[1]), 600, MUCH)
