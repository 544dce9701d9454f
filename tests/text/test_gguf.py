"""The tokenizer that a GGUF file carries, against llama.cpp's own results (`make_vectors.py`)."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from gguf import GGUFWriter
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from make_vectors import PRE_TOKENIZERS, digest, library_files
from texts import COUNT, texts

from slipway.api.texts import _gguf_metadata, _sampling
from slipway.load.gguf import header
from slipway.text import gguf
from slipway.text.open import load
from slipway.text.tokenizer import Tokenizer

VECTORS = json.loads((Path(__file__).parent / "vectors" / "llama_cpp.json").read_text())


@pytest.fixture(scope="module")
def metadata(demo_model: Path) -> Mapping[str, Any]:
    return header.read(demo_model).metadata


# Patterns that end words where lower case turns to upper: llama.cpp knows case in ASCII only, the models'
# own pattern, which we follow, in every script.
ASCII_CASE = ("gpt-4o", "tekken")


def _differences(ours: Mapping[str, list[int | str]], theirs: Mapping[str, list[int | str]]) -> set[str]:
    return {name for name in theirs if ours[name] != theirs[name]}


@pytest.mark.slow
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_token_ids_are_llama_cpps(metadata: Mapping[str, Any], pre: str) -> None:
    tokenizer = gguf.from_metadata({**metadata, "tokenizer.ggml.pre": pre})
    ours = {name: digest(tokenizer.encode(text, add_special_tokens=False)) for name, text in texts()}
    assert len(ours) == COUNT
    assert _differences(ours, VECTORS["texts"][pre]) == ({"cyrillic"} if pre in ASCII_CASE else set())


@pytest.mark.skipif(
    platform.python_version() != VECTORS["library"]["python"],
    reason="the vectors are of another Python's standard library",
)
def test_token_ids_of_the_standard_library_are_llama_cpps(metadata: Mapping[str, Any]) -> None:
    tokenizer = gguf.from_metadata(metadata)
    ours = {
        path.name: digest(tokenizer.encode(path.read_text("utf-8"), add_special_tokens=False))
        for path in library_files()
    }
    assert len(ours) == 60
    assert _differences(ours, VECTORS["library"]["files"]) == set()


def test_the_demo_model_says_how_it_chats_and_ends(demo_model: Path) -> None:
    tokenizer = load(demo_model)
    assert tokenizer.vocab_size == 49152
    assert [tokenizer.token_text(end) for end in tokenizer.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert "<|im_start|>" in tokenizer.chat_templates["default"]
    assert tokenizer.encode("Hi<|im_end|>")[-1] == 2
    assert tokenizer.decode([2]) == ""


@pytest.mark.parametrize("prefixed", [True, False])
@settings(max_examples=200)
@given(text=st.one_of(st.text(max_size=40), st.text(alphabet="ab th\n😀é語", max_size=40)))
def test_a_sentencepiece_vocabulary_gives_sentencepieces_ids(prefixed: bool, text: str) -> None:
    assume("▁" not in text)
    expected = vocabularies.processor(prefixed).encode(text)
    assert _sentencepiece(prefixed).encode(text, add_special_tokens=False) == expected


def test_sentencepiece_texts_of_every_kind_give_sentencepieces_ids() -> None:
    processor, ours = vocabularies.processor(), _sentencepiece(True)
    wrong = [
        n for n, text in texts() if ours.encode(text, add_special_tokens=False) != processor.encode(text)
    ]
    assert wrong == []


def test_bos_is_added_where_the_kind_or_the_file_says_so() -> None:
    metadata = vocabularies.sentencepiece_metadata()
    assert gguf.from_metadata(metadata).encode("a")[0] == 1
    without = gguf.from_metadata({**metadata, "tokenizer.ggml.add_bos_token": False})
    assert without.encode("a") == without.encode("a", add_special_tokens=False)
    both = gguf.from_metadata({**metadata, "tokenizer.ggml.add_eos_token": True}).encode("a")
    assert (both[0], both[-1]) == (1, 2)


def test_named_templates_and_all_ends_are_read() -> None:
    tokenizer = gguf.from_metadata(
        {
            **vocabularies.sentencepiece_metadata(),
            "tokenizer.ggml.eot_token_id": 5,
            "tokenizer.chat_template": "plain",
            "tokenizer.chat_template.tool_use": "tools",
            "tokenizer.chat_templates": ["tool_use"],
        }
    )
    assert tokenizer.eos_token_ids == (2, 5)
    assert tokenizer.chat_templates == {"default": "plain", "tool_use": "tools"}


def test_sampling_that_a_file_asks_for_is_the_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    for name, value in (("temp", 0.6), ("top_p", 0.95), ("penalty_repeat", 1.1)):
        writer.add_float32(f"general.sampling.{name}", value)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_int32("general.sampling.mirostat", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sampling = {"temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.1, "top_k": 20}
    for path in (tmp_path, tmp_path / "model.gguf"):
        assert _sampling(_gguf_metadata(path)) == sampling
        assert _gguf_metadata(path)["general.architecture"] == "llama"
    assert "general.sampling.mirostat have no counterpart here and are not used." in caplog.messages[0]


@pytest.mark.parametrize(
    "named", [{}, {"tokenizer.ggml.eos_token_id": 0}, {"tokenizer.ggml.eot_token_id": 1}]
)
@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (("<|im_end|>",), ["<|im_end|>"]),
        (("<end_of_turn>", "</b>"), ["<end_of_turn>"]),
        (("<|end|>",), ["<|end|>"]),
        (("<|end|>", "<|return|>", "<|call|>"), ["<|return|>", "<|call|>"]),
        (("<|imend|>",), []),
    ],
)
def test_ends_are_known_by_their_texts_whatever_ids_the_file_names(
    named: dict[str, int], tokens: tuple[str, ...], ends: list[str]
) -> None:
    metadata = vocabularies.sentencepiece_metadata()
    del metadata["tokenizer.ggml.eos_token_id"]
    count = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *tokens]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[3] * len(tokens)]
    metadata["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"], *[0.0] * len(tokens)]
    found = gguf.from_metadata(metadata | named).eos_token_ids
    assert [tokens[end - count] for end in found if end >= count] == ends


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, '"t5" is not supported'),
        ({"tokenizer.ggml.model": "gpt2"}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "new"}, 'pre-tokenizer "new" is not known'),
        ({"tokenizer.ggml.scores": None}, "no tokenizer.ggml.scores"),
        ({"tokenizer.ggml.tokens": []}, "has no tokenizer"),
    ],
)
def test_a_file_that_cannot_be_tokenized_with_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gguf.from_metadata({**vocabularies.sentencepiece_metadata(), **change})


@cache
def _sentencepiece(prefixed: bool) -> Tokenizer:
    return gguf.from_metadata(vocabularies.sentencepiece_metadata(prefixed))
