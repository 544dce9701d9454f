from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from texts import texts
from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Tokenizers

from factory import write_tokenizer
from slipway.text import custom, gguf
from slipway.text.fast import FastVocabulary
from slipway.text.open import load
from slipway.text.tokenizer import Tokenizer

CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
    "pad_token": None,
    "model_max_length": 4096,
    "chat_template": "from the configuration",
    "clean_up_tokenization_spaces": True,
    "additional_special_tokens": ["<|extra|>"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fast = vocabularies.byte_level()
    fast.enable_truncation(8)
    fast.enable_padding(length=64)
    fast.save(str(tmp_path / "tokenizer.json"))
    added = {str(fast.get_vocab_size()): {"content": "<late>", "special": False, "normalized": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**CONFIG, "added_tokens_decoder": added}))
    return tmp_path


@pytest.fixture
def sentencepiece_folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.model").write_bytes(vocabularies.sentencepiece_model())
    return tmp_path


@pytest.mark.torch
def test_a_folder_gives_the_ids_and_texts_of_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder)
    ours = load(folder)
    for special in (True, False):
        for _, text in [*texts(), ("tokens", "<s>a <late> <|extra|><tool>two words<|im_end|>b . c")]:
            expected = reference(text, add_special_tokens=special, truncation=False, padding=False).input_ids
            assert ours.encode(text, add_special_tokens=special) == expected
            for skip in (True, False):
                decoded = reference.decode(expected, skip_special_tokens=skip)
                assert ours.decode(expected, skip_special_tokens=skip) == decoded
    assert ours.special_ids >= set(reference.all_special_ids)
    assert ours.vocab_size == len(reference)
    assert (ours.bos_token_id, ours.eos_token_ids) == (reference.bos_token_id, (reference.eos_token_id,))


def test_a_folder_says_what_templates_need(folder: Path) -> None:
    tokenizer = load(folder)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    assert tokenizer.max_length == 4096
    assert tokenizer.token_id("<late>") in tokenizer.added_ids - tokenizer.special_ids
    assert tokenizer.token_id("nothing of the kind") is None


def test_template_files_go_before_the_configuration(folder: Path) -> None:
    assert load(folder).chat_templates == {"default": "from the configuration"}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert load(folder).chat_templates == {"default": "from json"}
    (folder / "chat_template.jinja").write_text("from jinja")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    assert load(folder).chat_templates == {"default": "from jinja", "tool_use": "for tools"}


def test_a_list_of_templates_is_read_by_name(folder: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load(folder).chat_templates == {"default": "a", "rag": "b"}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_made_model_has_a_tokenizer_and_a_chat_template(
    tiny_models: Callable[[str], Path], architecture: str
) -> None:
    tokenizer = load(tiny_models(architecture))
    ids = tokenizer.encode("hello, world", add_special_tokens=False)
    assert tokenizer.decode(ids) == "hello, world"
    assert "default" in tokenizer.chat_templates


def test_another_tokenizer_replaces_the_models(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tmp_path_factory.mktemp("model")
    assert load(model, tokenizer=str(folder)).vocab_size == load(folder).vocab_size


@pytest.mark.parametrize("mode", ["auto", "slow"])
def test_a_sentencepiece_model_gives_sentencepieces_ids_and_texts(
    sentencepiece_folder: Path, mode: str
) -> None:
    processor = vocabularies.processor()
    tokenizer = load(sentencepiece_folder, mode=mode)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_ids) == ("<s>", "</s>", (2,))
    for _, text in texts():
        ids = tokenizer.encode(text)
        assert ids == [1, *processor.encode(text)]
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a</s>b") == [1, *processor.encode("a"), 2, *processor.encode("b")]
    assert tokenizer.token_id("no such piece") is None
    assert tokenizer.warnings == ()


def test_slow_without_a_sentencepiece_model_warns_and_uses_what_is_there(folder: Path) -> None:
    tokenizer = load(folder, mode="slow")
    assert len(tokenizer.warnings) == 1
    assert "has no tokenizer.model" in tokenizer.warnings[0]
    assert tokenizer.encode("a") == load(folder).encode("a")


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("custom", "No tokenizer is registered as .*; there are: none. A plugin registers one"),
        ("quick", "is not one of"),
    ],
)
def test_a_mode_that_cannot_be_had_is_refused(folder: Path, mode: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(folder, mode=mode)


def _with_forms() -> Any:
    built = vocabularies.byte_level()
    built.normalizer = normalizers.Sequence([normalizers.NFKC()])
    return built


@pytest.fixture
def registered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names: one that reads the model's folder, and three that are no good."""
    monkeypatch.setattr(custom, "_registered", {})

    def fails(model: str) -> Tokenizer:
        raise OSError(f"{model} has no words")

    custom.register("mine", lambda model: load(model))
    custom.register("fails", fails)
    custom.register("says nothing", lambda model: int(""))  # type: ignore[return-value]
    custom.register("foreign", lambda model: {"a": 1})  # type: ignore[return-value]


def test_a_registered_tokenizer_is_made_of_the_model(registered: None, folder: Path) -> None:
    tokenizer = load(folder, tokenizer="mine", mode="custom")
    assert tokenizer.encode("hello") == load(folder).encode("hello")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yours", "No tokenizer is registered as yours; there are: fails, foreign, mine, says nothing"),
        ("fails", r"The tokenizer fails of \S+ cannot be made: \S+ has no words"),
        ("says nothing", "cannot be made: invalid literal"),
        ("foreign", r"is a dict, and has to be a slipway\.text\.tokenizer\.Tokenizer"),
    ],
)
def test_a_registered_tokenizer_that_is_none_says_why(
    registered: None, folder: Path, name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(folder, tokenizer=name, mode="custom")


def test_a_name_is_registered_once(registered: None) -> None:
    with pytest.raises(ValueError, match="two tokenizers named mine"):
        custom.register("mine", load)


LOSSLESS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": lambda: Tokenizer(FastVocabulary(vocabularies.byte_level())),
    "byte fallback": lambda: gguf.from_metadata(vocabularies.sentencepiece_metadata()),
    "unicode forms": lambda: Tokenizer(FastVocabulary(_with_forms())),
}


@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_text_has_no_fewer_tokens_than_were_counted_on(kind: str) -> None:
    tokenizer = LOSSLESS[kind]()
    tokens = [tokenizer.token_text(token) for token in range(tokenizer.vocab_size)]
    shrinking = [character * 100 for character in ("\U0001fbf9", "\u212a", "\ufb03", "\u03c5\u0308\u0301")]
    for text in [*(text for _, text in texts()), *(token * 100 for token in tokens if token), *shrinking]:
        assert 0 < tokenizer.fewest(text) <= len(tokenizer.encode(text, add_special_tokens=False)), text[:40]
    longest = max(tokens, key=lambda token: len(token.encode()))
    if kind == "byte-level":
        assert tokenizer.fewest(longest * 100) == 100


def test_bytes_that_a_vocabulary_lacks_are_not_counted_on(demo_model: Path) -> None:
    """That one leaves out some control characters."""
    tokenizer = load(demo_model)
    for text in ("\x04" * 1000, "\x04ab" * 1000, "ab" * 1000, *(text for _, text in texts())):
        assert tokenizer.fewest(text) <= len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.fewest("\x04" * 1000) == 0
    assert tokenizer.fewest("ab" * 8000) > 100


def _swallows_spaces() -> Any:
    built = vocabularies.byte_level()
    built.add_tokens([AddedToken("<mask>", lstrip=True)])
    return built


def _strips() -> Any:
    built = vocabularies.byte_level()
    built.normalizer = normalizers.Strip()
    return built


def _lacks_characters() -> Any:
    built = Tokenizers(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    built.normalizer = normalizers.Prepend("▁")
    return built


@pytest.mark.parametrize(
    "make",
    [
        vocabularies.word_piece,
        vocabularies.word_ends,
        vocabularies.metaspace,
        _swallows_spaces,
        _strips,
        _lacks_characters,
    ],
)
def test_what_may_lose_some_of_a_text_counts_on_no_tokens(make: Callable[[], Any]) -> None:
    assert Tokenizer(FastVocabulary(make())).fewest("a" * 1000) == 0


def _nothing(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _two_models(folder: Path) -> None:
    _nothing(folder)
    (folder / "a.gguf").touch()
    (folder / "b.gguf").touch()


def _broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def _broken_config(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_nothing, "neither tokenizer.json nor tokenizer.model.*--tokenizer"),
        (_two_models, r"a\.gguf, b\.gguf.*path of one"),
        (_broken_tokenizer, "cannot be read as a tokenizer"),
        (_broken_config, "not valid JSON"),
    ],
)
def test_a_folder_without_a_usable_tokenizer_is_refused(
    folder: Path, change: Callable[[Path], None], message: str
) -> None:
    change(folder)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_folder_with_one_gguf_file_means_that_file(tmp_path: Path, demo_model: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(demo_model)
    assert load(tmp_path).vocab_size == 49152


def test_a_lone_surrogate_is_refused_with_its_place(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate U\+D83D at character 2"):
        load(folder).encode("ab\ud83d")


def test_encoding_leaves_the_interpreter_to_others() -> None:
    tokenizer = Tokenizer(FastVocabulary(vocabularies.byte_level()))
    text = "hello world, it is 12:45 " * 40_000
    thread = threading.Thread(target=tokenizer.encode, args=(text,))
    turns = 0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20  # with the lock held there are two or three


def test_text_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, slipway.text.tokenizer, slipway.text.template, slipway.text.stops, slipway.text.gguf, "
        "slipway.text.folder, slipway.text.sentencepiece;"
        "print([m for m in ('torch', 'transformers', 'sentencepiece') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_texts_lose_their_capitals_where_a_folder_of_sentence_transformers_says_so(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    plain = load(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    lowers = load(tmp_path)
    assert plain.encode("A Pair") != plain.encode("a pair")
    assert lowers.encode("A Pair") == plain.encode("a pair")
    assert lowers.encode_pair("A", "Pair") == plain.encode_pair("a", "pair")
    with pytest.raises(ValueError, match="lone surrogate"):
        lowers.encode("A\ud800")
