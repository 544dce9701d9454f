"""Tokenizers of Mistral's own library: tekken.json and versioned SentencePiece models, with their chats.

A chat becomes tokens without a text between: no text of a message can be read as a special token. Imports
mistral_common, which takes a second. Sources: mistral_common's documentation; the library itself computes.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from slipway.text.decoding import byte_alphabet, lower
from slipway.text.fit import Fit
from slipway.text.messages import Message, flat, plain
from slipway.text.sandbox import TemplateError
from slipway.text.sentencepiece import SentencePieceVocabulary
from slipway.text.template import WrittenChat
from slipway.text.tokenizer import Pair, Tokenizer, Vocabulary

_VERSIONED = re.compile(r".*\.model\.v(\d+)(m\d+)?")
_LETTER = {byte: char for char, byte in byte_alphabet().items()}


def file_in(folder: Path) -> Path | None:
    """The tokenizer's file: tekken.json, else the SentencePiece model of the latest version."""
    if (folder / "tekken.json").is_file():
        return folder / "tekken.json"
    found = [(match, path) for path in folder.iterdir() if (match := _VERSIONED.fullmatch(path.name))]
    return max(found, key=lambda one: (int(one[0][1]), one[1].name))[1] if found else None


def load(folder: Path) -> Tokenizer:
    """Raises ValueError where there is no such file, or it cannot be read."""
    path = file_in(folder)
    if path is None:
        raise ValueError(
            f"{folder} has neither tekken.json nor a tokenizer.model.v*, which --tokenizer-mode mistral "
            "reads. Leave that argument out, or name another folder with --tokenizer."
        )
    try:
        library = MistralTokenizer.from_file(path)
        inner = library.instruct_tokenizer.tokenizer
        tekken = isinstance(inner, Tekkenizer)
        vocabulary: Vocabulary = TekkenVocabulary(inner) if tekken else MistralPieces.load(path, {})
    except Exception as error:  # the library asserts, and raises what comes
        raise ValueError(
            f"{path} cannot be read as a tokenizer of Mistral's: {error or type(error).__name__}. "
            "Fetch the file again, or upgrade the package mistral-common if a newer one wrote it."
        ) from error
    tokenizer = Tokenizer(vocabulary, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.chat = MistralChat(library, tokenizer)
    return tokenizer


class TekkenVocabulary:
    """Byte pairs over any bytes, written in the alphabet of byte-level vocabularies."""

    def __init__(self, tekken: Tekkenizer) -> None:
        self._tekken = tekken
        self.size = tekken.n_words
        self.special_ids = self.added_ids = frozenset(range(tekken.num_special_tokens))
        self.decoding = lower({"type": "ByteLevel"})

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        text.encode()  # the library would write something else for half of a character
        ids: list[int] = self._tekken.encode(text, bos=add_special_tokens, eos=False)
        return ids

    def encode_pair(self, text: str, other: str, limit: int | None) -> Pair:
        """The second behind the first: a model of this kind has nothing between them, and no types."""
        return self.encode(text + other, True)[:limit], None

    def fewest(self, text: str) -> int:
        return -(-len(text.encode(errors="surrogatepass")) // self._longest)

    @cached_property
    def _longest(self) -> int:
        """Bytes."""
        return max(len(self._bytes(token_id)) for token_id in range(len(self.special_ids), self.size))

    def _bytes(self, token_id: int) -> bytes:
        octets: bytes = self._tekken.id_to_byte_piece(token_id, SpecialTokenPolicy.KEEP)
        return octets

    def token(self, token_id: int) -> str | None:
        if not 0 <= token_id < self.size:
            return None
        octets = self._bytes(token_id)
        if token_id in self.special_ids:
            return octets.decode()
        return "".join(map(_LETTER.__getitem__, octets))

    def token_id(self, token: str) -> int | None:
        return self._ids.get(token)

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        """By what `token` writes; a special token goes before one of text that is written like it."""
        return {self.token(token_id) or "": token_id for token_id in reversed(range(self.size))}

    def extended(self, added: Mapping[str, int]) -> Vocabulary:
        raise ValueError(
            "added_tokens.json adds to a tokenizer.json, and this model has none: save a whole tokenizer"
        )


class MistralPieces(SentencePieceVocabulary):
    """A SentencePiece model none of whose special tokens is found in a text."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        text.encode()
        ids: list[int] = self._processor.encode(text)
        return [self._processor.bos_id(), *ids] if add_special_tokens else ids


class MistralChat:
    """Chats as the library writes them for the tokenizer's version."""

    source = None
    """There is no text of a template."""

    def __init__(self, library: MistralTokenizer[Any, Any, Any, Any, Any], tokenizer: Tokenizer) -> None:
        self._library = library
        self._tokenizer = tokenizer
        self._fit = Fit(lambda chat: self._written(chat).text, "", "auto")

    def write(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> WrittenChat:
        """The library takes neither `kwargs` nor `add_generation_prompt`: a message of the user ends in what
        opens the answer.

        Raises TemplateError with the library's own message where it refuses the chat.
        """
        if documents:
            raise TemplateError("The chats of --tokenizer-mode mistral have no place for documents.")
        offered = [plain(tool) for tool in tools] if tools else None
        try:
            return self._written(messages, offered, continue_final_message=continue_final_message)
        except TemplateError:
            chat = self._fit.fitted(messages)
            for other in (chat, *self._fit.others(chat)):
                with contextlib.suppress(TemplateError):
                    return self._written(other, offered, continue_final_message=continue_final_message)
            raise

    def _written(
        self, messages: Sequence[Message], tools: Any = None, *, continue_final_message: bool = False
    ) -> WrittenChat:
        chat = [_message(message) for message in messages]
        try:
            asked: Any = ChatCompletionRequest.from_openai(
                chat, tools, continue_final_message=continue_final_message
            )
            ids: list[int] = self._library.encode_chat_completion(asked).tokens
        except Exception as error:  # the library asserts, and raises what comes
            raise TemplateError(f"The chat cannot be written: {_reason(error)}") from error
        return WrittenChat(self._tokenizer.decode(ids, skip_special_tokens=False), ids)


def _message(message: Message) -> dict[str, Any]:
    """What the library reads of a message, in plain values; parts are the texts that they hold."""
    names = ("role", "tool_calls", "tool_call_id", "name")
    own = {name: plain(message[name]) for name in names if message.get(name) is not None}
    content = message.get("content")
    if isinstance(content, str | None):
        return own | {"content": content}
    return own | {"content": [{"type": "text", "text": flat([part])} for part in content]}


def _reason(error: Exception) -> str:
    errors = getattr(error, "errors", None)
    if callable(errors):  # pydantic's, whose own text is of many lines
        return json.dumps([f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors()[:3]])
    return str(error) or type(error).__name__
