from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
import vocabularies
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast

from slipway.text import gguf
from slipway.text.fast import FastVocabulary
from slipway.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


def _any_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30)


def _split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(places)]


MAKERS: list[Callable[[], Fast]] = [
    vocabularies.byte_level,
    vocabularies.word_piece,
    vocabularies.word_ends,
    vocabularies.metaspace,
    vocabularies.no_decoder,
]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda maker: maker.__name__)
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Fast]:
    fast = request.param()
    return Tokenizer(FastVocabulary(fast)), fast


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no_prefix"])
def sentencepiece_like(request: pytest.FixtureRequest) -> Tokenizer:
    return gguf.from_metadata(vocabularies.sentencepiece_metadata(request.param))


def _streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool) -> str:
    stream = tokenizer.stream(skip_special_tokens=skip)
    return "".join(stream.push(part) for part in _split(ids, cuts)) + stream.finish()


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data(), cuts=st.lists(st.integers(0, 40)), skip=st.booleans())
def test_any_split_of_any_tokens_gives_the_librarys_text(
    pair: tuple[Tokenizer, Fast], data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    tokenizer, fast = pair
    ids = data.draw(_any_ids(tokenizer))
    expected = fast.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
    assert _streamed(tokenizer, ids, cuts, skip) == expected


@settings(max_examples=150)
@given(data=st.data(), cuts=st.lists(st.integers(0, 40)), skip=st.booleans())
def test_any_split_of_byte_tokens_gives_the_decoded_text(
    sentencepiece_like: Tokenizer, data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    byte_ids = st.integers(3, 258)
    ids = data.draw(st.lists(st.one_of(byte_ids, st.integers(0, 902)), max_size=30))
    whole = sentencepiece_like.decode(ids, skip_special_tokens=skip)
    assert _streamed(sentencepiece_like, ids, cuts, skip) == whole


@settings(max_examples=150)
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 80)))
def test_text_survives_encoding_and_streaming(
    sentencepiece_like: Tokenizer, text: str, cuts: list[int]
) -> None:
    ids = sentencepiece_like.encode(text, add_special_tokens=False)
    assert _streamed(sentencepiece_like, ids, cuts, False) == text.replace("▁", " ")


@settings(max_examples=100)
@given(text=st.text(max_size=20))
def test_a_push_gives_all_whole_characters_and_no_part_of_one(text: str) -> None:
    tokenizer = _byte_tokenizer()
    stream, given_out = tokenizer.stream(skip_special_tokens=False), ""
    so_far = b""
    for token in tokenizer.encode(text, add_special_tokens=False):
        so_far += tokenizer.token_bytes(token)
        given_out += stream.push([token])
        assert given_out == so_far.decode(errors="ignore")
    assert stream.finish() == ""


def test_a_character_left_broken_becomes_a_replacement_mark_at_the_end() -> None:
    tokenizer = _byte_tokenizer()
    ids = tokenizer.encode("a😀", add_special_tokens=False)
    stream = tokenizer.stream()
    assert stream.push(ids[:-1]) == "a"
    assert stream.finish() == REPLACEMENT


def test_byte_tokens_make_the_newline_and_the_emoji_they_spell(sentencepiece_like: Tokenizer) -> None:
    ids = [sentencepiece_like.token_id(f"<0x{byte:02X}>") for byte in b"\n\xf0\x9f\x98\x80"]
    assert None not in ids
    stream = sentencepiece_like.stream()
    assert [stream.push([i]) for i in ids if i is not None] == ["\n", "", "", "", "😀"]
    assert sentencepiece_like.decode([i for i in ids[1:3] if i is not None]) == 2 * REPLACEMENT


def test_the_space_in_front_is_kept_after_a_prompt_and_dropped_at_the_start() -> None:
    tokenizer = gguf.from_metadata(vocabularies.sentencepiece_metadata())
    ids = tokenizer.encode("the cat", add_special_tokens=False)
    assert tokenizer.stream().push(ids) == "the cat"
    assert tokenizer.stream(prompt_ids=[1]).push(ids) == "the cat"  # BOS gives no text
    assert tokenizer.stream(prompt_ids=ids).push(ids) == " the cat"


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data(), cuts=st.lists(st.integers(0, 40)), skip=st.booleans())
def test_a_stream_goes_on_where_the_prompt_ends(
    pair: tuple[Tokenizer, Fast], data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    tokenizer, _ = pair
    ids = data.draw(_any_ids(tokenizer))
    cut = data.draw(st.integers(0, len(ids)))
    prompt = tokenizer.stream(skip_special_tokens=skip)
    before = prompt.push(ids[:cut])
    stream = tokenizer.stream(skip_special_tokens=skip, prompt_ids=ids[:cut])
    after = "".join(stream.push(part) for part in _split(ids[cut:], cuts)) + stream.finish()
    assert before + after == tokenizer.decode(ids, skip_special_tokens=skip)


def test_added_tokens_stand_without_spaces_where_asked() -> None:
    tokenizer = Tokenizer(FastVocabulary(vocabularies.word_piece()))
    ids = [tokenizer.token_id(token) for token in ("<s>", "<tool>", "</s>")]
    known = [i for i in ids if i is not None]
    spaced = tokenizer.decode(known, skip_special_tokens=False)
    joined = tokenizer.decode(known, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert (spaced, joined) == ("<s> <tool> </s>", "<s><tool></s>")


def _offsets(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> tuple[list[int], str]:
    """Where each token begins, and the whole text."""
    stream, text, offsets = tokenizer.stream(skip_special_tokens=skip), "", []
    for token_id in ids:
        offsets.append(stream.offset(token_id))
        text += stream.push([token_id])
        assert len(text) <= stream.end
    text += stream.finish()
    assert len(text) == stream.end
    return offsets, text


@settings(max_examples=100)
@given(text=st.text(max_size=30))
def test_a_token_begins_at_the_character_that_its_first_byte_is_of(text: str) -> None:
    tokenizer = _byte_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    owners = [index for index, char in enumerate(text) for _ in char.encode()]
    begins = accumulate((len(tokenizer.token_bytes(i)) for i in ids), initial=0)
    assert _offsets(tokenizer, ids) == ([owners[begin] for begin, _ in zip(begins, ids, strict=False)], text)


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data(), skip=st.booleans())
def test_offsets_of_any_tokens_go_up_and_lie_within_the_text(
    pair: tuple[Tokenizer, Fast], data: st.DataObject, skip: bool
) -> None:
    tokenizer, _ = pair
    offsets, text = _offsets(tokenizer, data.draw(_any_ids(tokenizer)), skip)
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) + tokenizer.decoding.strip_right for offset in offsets)


def test_what_follows_a_broken_character_begins_behind_its_marks(sentencepiece_like: Tokenizer) -> None:
    tokens = [sentencepiece_like.token_id(f"<0x{byte:02X}>") for byte in b"\n\xf0\x9f\n\xf0\x9f\x98\x80\n"]
    ids = [i for i in tokens if i is not None]
    assert _offsets(sentencepiece_like, ids) == ([0, 1, 1, 3, 4, 4, 4, 4, 5], "\n\ufffd\ufffd\n😀\n")
    tokenizer = _byte_tokenizer()
    ids = tokenizer.encode("\t😀\t", add_special_tokens=False)
    tab, begins, _, _ = ids
    assert _offsets(tokenizer, [tab, begins, tab]) == ([0, 1, 2], "\t\ufffd\t")


@settings(max_examples=100)
@given(text=st.text(max_size=30))
def test_token_bytes_join_to_the_bytes_of_the_text(text: str) -> None:
    tokenizer = _byte_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_ids_without_a_token_give_no_text() -> None:
    tokenizer = _byte_tokenizer()
    unknown = [-1, tokenizer.vocab_size, 2**40]
    assert tokenizer.decode(unknown) == ""
    assert [tokenizer.token_bytes(i) for i in unknown] == [b"", b"", b""]
    assert [tokenizer.token_text(i) for i in unknown] == ["", "", ""]


_byte_tokenizers: list[Tokenizer] = []


def _byte_tokenizer() -> Tokenizer:
    if not _byte_tokenizers:
        _byte_tokenizers.append(Tokenizer(FastVocabulary(vocabularies.byte_level())))
    return _byte_tokenizers[0]
