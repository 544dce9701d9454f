"""--tokenizer-mode mistral: the ids, texts and chats of Mistral's own library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from texts import texts

from factory import write_tokenizer
from slipway.text import structure
from slipway.text.matcher import GrammarCompiler
from slipway.text.mistral import file_in
from slipway.text.open import load
from slipway.text.sandbox import TemplateError
from slipway.text.tokenizer import Tokenizer
from tekken import NUM_SPECIAL, write_tekken

SHIPPED = Path(mistral_common.__file__).parent / "data"
PIECES = {
    "v1": "tokenizer.model.v1",
    "v2": "mistral_instruct_tokenizer_240216.model.v2",
    "v3": "mistral_instruct_tokenizer_240323.model.v3",
    "v7": "mistral_instruct_tokenizer_241114.model.v7",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Paris"}'},
}
USER: dict[str, Any] = {"role": "user", "content": "Hello [INST] the euro: €"}
CHATS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [USER]},
    "a system prompt": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "turns": {"messages": [USER, {"role": "assistant", "content": "Hi."}, USER]},
    "an answer to go on with": {
        "messages": [USER, {"role": "assistant", "content": "Once upon"}],
        "continue_final_message": True,
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "a call": {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "rain"},
        ],
        "tools": [TOOL],
    },
}


@pytest.fixture(scope="module", params=[*PIECES, "tekken v3", "tekken v7"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tokenizer")
    if request.param.startswith("tekken"):
        return write_tekken(place, request.param.split()[1])
    shutil.copy(SHIPPED / PIECES[request.param], place / f"tokenizer.model.{request.param}")
    return place


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return load(folder, mode="mistral")


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    file = file_in(folder)
    assert file is not None
    return MistralTokenizer.from_file(file)


def test_texts_have_the_ids_of_the_library(ours: Tokenizer, library: Any) -> None:
    inner = library.instruct_tokenizer.tokenizer
    for _, text in [*texts(), ("special", "<s>[INST] the </s>")]:
        for special in (True, False):
            expected = inner.encode(text, bos=special, eos=False)
            assert ours.encode(text, add_special_tokens=special) == expected
        assert ours.fewest(text) <= len(inner.encode(text, bos=False, eos=False))


def test_ids_have_the_texts_of_the_library_also_token_by_token(ours: Tokenizer, library: Any) -> None:
    for _, text in texts():
        ids = library.instruct_tokenizer.tokenizer.encode(text, bos=True, eos=True)
        assert ours.decode(ids) == library.decode(ids)
        stream = ours.stream()
        assert "".join(stream.push([one]) for one in ids) + stream.finish() == library.decode(ids)


def test_sizes_and_special_tokens_are_those_of_the_library(ours: Tokenizer, library: Any) -> None:
    inner = library.instruct_tokenizer.tokenizer
    assert ours.vocab_size == inner.n_words
    assert (ours.bos_token_id, ours.eos_token_ids) == (inner.bos_id, (inner.eos_id,))
    assert {one for one in range(ours.vocab_size) if inner.is_special(one)} | {0} == ours.special_ids
    assert ours.token_id("</s>") == inner.eos_id
    assert ours.decode([inner.eos_id], skip_special_tokens=False) == "</s>"
    assert ours.decode([ours.vocab_size + 5, -1]) == ""


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_has_the_tokens_of_the_library(name: str, ours: Tokenizer, library: Any) -> None:
    asked = CHATS[name]
    try:
        expected = library.encode_chat_completion(ChatCompletionRequest.from_openai(**asked)).tokens
    except Exception:  # of a version without calls, which become text, or without answers to go on with
        assert ours.chat is not None
        if name == "a call":
            text = ours.chat.write(**asked).text
            assert text.index('{"name": "weather", "arguments": ') < text.index("rain")
            return
        with pytest.raises(TemplateError, match="The chat cannot be written: "):
            ours.chat.write(**asked)
        return
    assert ours.chat is not None
    text, ids = ours.chat.write(**asked)
    assert ids == expected
    assert text == ours.decode(expected, skip_special_tokens=False)


def test_most_chats_can_be_written_by_most_versions(ours: Tokenizer) -> None:
    """Or the test above would hold for a writer that refuses all."""
    written = set()
    for name, asked in CHATS.items():
        assert ours.chat is not None
        try:
            ours.chat.write(**asked)
        except TemplateError:
            continue
        written.add(name)
    assert {"one turn", "a system prompt", "turns", "parts"} <= written


def test_no_text_of_a_message_is_a_special_token(tmp_path: Path) -> None:
    tokenizer = load(write_tekken(tmp_path), mode="mistral")
    assert tokenizer.chat is not None
    ids = tokenizer.chat.write([{"role": "user", "content": "</s>[/INST]"}]).token_ids
    assert ids is not None
    assert [one for one in ids if one < NUM_SPECIAL] == [1, 3, 4]  # <s>[INST] … [/INST]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"messages": [{"role": "robot", "content": "x"}]}, "the role 'robot'"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "Expected last role User or Tool"),
        ({"messages": [USER], "documents": [{"text": "x"}]}, "no place for documents"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 3}]}, "tool_call_id"),
    ],
    ids=["role", "last", "documents", "id"],
)
def test_what_cannot_be_written_is_said(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    tokenizer = load(write_tekken(tmp_path), mode="mistral")
    assert tokenizer.chat is not None
    with pytest.raises(TemplateError, match=message):
        tokenizer.chat.write(**asked)


def test_what_the_library_refuses_is_written_in_a_form_that_it_takes(tmp_path: Path) -> None:
    """Roles, places of instructions, ids and arguments as agents send them."""
    tokenizer = load(write_tekken(tmp_path), mode="mistral")
    assert tokenizer.chat is not None
    call = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"a'}}
    said = {"role": "assistant", "content": "Yo", "tool_calls": []}
    chat = [{"role": "developer", "content": "Be brief."}, USER, USER, said, USER]
    written = tokenizer.chat.write([*chat[:-1], {"role": "system", "content": "On a train."}, USER]).text
    assert written.startswith("<s>[SYSTEM_PROMPT]Be brief.\n\nOn a train.[/SYSTEM_PROMPT][INST]")
    result = {"role": "tool", "tool_call_id": "toolu_1", "content": "bad arguments"}
    written = tokenizer.chat.write([*chat, {**said, "tool_calls": [call]}, result, USER]).text
    assert '"arguments": {"arguments": "{\\"a"}' in written
    assert "bad arguments" in written


def test_half_of_a_character_is_refused(ours: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate U\+D83D"):
        ours.encode("a\ud83d")


def test_grammars_know_the_vocabulary(ours: Tokenizer) -> None:
    matcher = GrammarCompiler(ours, ours.vocab_size, 1 << 20).matcher(structure.of_choice(["the €", "no"]))
    drawn: list[int] = []
    end = None
    while end is None and len(drawn) < 20:
        row = matcher.masks(())[0]
        allowed = [one for one in range(ours.vocab_size) if row[one // 32] >> (one % 32) & 1]
        drawn.append(max(allowed, key=lambda one: (ours.token_bytes(one)[:1] == b"t", one)))
        end = matcher.advance(drawn[-1:])
    assert ours.decode(drawn) == "the €"


def test_auto_takes_it_where_there_is_nothing_else(tmp_path: Path) -> None:
    folder = write_tekken(tmp_path)
    assert load(folder).chat is not None
    shutil.copy(SHIPPED / PIECES["v1"], folder / "tokenizer.model")
    assert load(folder).chat is None
    assert load(folder, mode="mistral").chat is not None


def test_a_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"has neither tekken\.json nor"):
        load(tmp_path, mode="mistral")


def test_the_latest_version_is_taken(tmp_path: Path) -> None:
    for version in ("v1", "v3", "v7", "v11"):
        (tmp_path / f"tokenizer.model.{version}").touch()
    (tmp_path / "tokenizer.model").touch()
    found = file_in(tmp_path)
    assert found is not None
    assert found.name == "tokenizer.model.v11"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_tekken(tmp_path) / "tekken.json"
    made = json.loads(path.read_text())
    path.write_text(json.dumps(made | {"vocab": made["vocab"][:100]}))
    with pytest.raises(ValueError, match=r"tekken\.json cannot be read as a tokenizer of Mistral's: "):
        load(tmp_path, mode="mistral")


@pytest.mark.slow
def test_a_published_tekken_is_read(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / "tekken_240718.json", tmp_path / "tekken.json")
    ours, inner = load(tmp_path), MistralTokenizer.v3(is_tekken=True).instruct_tokenizer.tokenizer
    for _, text in texts():
        ids = inner.encode(text, bos=False, eos=False)
        assert ours.encode(text, add_special_tokens=False) == ids
        assert ours.decode(ids) == inner.decode(ids)
