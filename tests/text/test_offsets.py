"""Where the tokens of a prompt begin in its text."""

from __future__ import annotations

import pytest
import vocabularies
from tokenizers import normalizers

from slipway.text import gguf
from slipway.text.fast import FastVocabulary
from slipway.text.offsets import prompt_offsets
from slipway.text.tokenizer import Tokenizer


def cut(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text between the beginnings of its tokens."""
    offsets = prompt_offsets(tokenizer, tokenizer.encode(text), text)
    return [text[begin:end] for begin, end in zip(offsets, [*offsets[1:], len(text)], strict=True)]


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return Tokenizer(FastVocabulary(vocabularies.byte_level()))


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no_prefix"])
def sentencepiece_like(request: pytest.FixtureRequest) -> Tokenizer:
    return gguf.from_metadata(vocabularies.sentencepiece_metadata(request.param))


def test_tokens_that_the_tokenizer_adds_take_no_characters(
    byte_level: Tokenizer, sentencepiece_like: Tokenizer
) -> None:
    assert cut(byte_level, "The cat") == ["", "The", " c", "a", "t"]
    added, *parts = cut(sentencepiece_like, "The cat")
    assert (added, parts[-3:]) == ("", [" c", "a", "t"])
    assert "".join(parts) == "The cat"
    assert all(parts)


def test_special_tokens_of_the_text_have_their_characters(byte_level: Tokenizer) -> None:
    assert cut(byte_level, "<s>a<|im_end|>b")[:5] == ["<s>", "", "a", "<|im_end|>", "b"]


def test_tokens_that_share_a_character_begin_with_it(
    byte_level: Tokenizer, sentencepiece_like: Tokenizer
) -> None:
    assert cut(byte_level, "a😀b") == ["", "a", "", "😀", "b"]
    offsets = prompt_offsets(sentencepiece_like, sentencepiece_like.encode("a🧿b"), "a🧿b")
    assert offsets[-5:] == [1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        (normalizers.NFC(), "The e\u0301tude of e\u0301a\u0300 cats"),
        (normalizers.NFKC(), "The \ufb01x of \u337f cats"),
        (normalizers.Lowercase(), "THE CAT AND TWO cats"),
    ],
    ids=["shorter", "longer", "lower case"],
)
def test_offsets_are_right_again_behind_what_the_tokenizer_has_changed(
    normalizer: normalizers.Normalizer, text: str
) -> None:
    fast = vocabularies.byte_level()
    fast.normalizer = normalizer
    tokenizer = Tokenizer(FastVocabulary(fast))
    offsets = prompt_offsets(tokenizer, tokenizer.encode(text), text)
    assert offsets == sorted(offsets)
    assert offsets[-1] < len(text)
    alone = [tokenizer.decode([i]) for i in tokenizer.encode(" cats", add_special_tokens=False)]
    assert cut(tokenizer, text)[-len(alone) :] == alone


def test_a_text_that_is_nothing_like_its_tokens_is_read_in_time_by_its_length(byte_level: Tokenizer) -> None:
    text = "x" * 100_000
    offsets = prompt_offsets(byte_level, byte_level.encode("ab" * 50_000), text)
    assert 0 <= min(offsets) <= max(offsets) <= len(text)
