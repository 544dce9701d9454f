"""Text to tokens and back, for the API process: no torch, no transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slipway.text.decoding import Decoding
from slipway.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from slipway.text.template import ChatWriter

__all__ = ["Detokenizer", "Tokenizer", "Vocabulary"]


Pair = tuple[list[int], int | None]
"""Token ids of two texts as one prompt; and where tokens of the second type begin, None where none do."""


class Vocabulary(Protocol):
    """What a tokenizer library offers: `fast.py` and `sentencepiece.py` wrap one each."""

    @property
    def size(self) -> int:
        """One more than the largest token id."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that `skip_special_tokens` leaves out."""

    @property
    def added_ids(self) -> frozenset[int]:
        """Tokens found in a text before it is split: the special ones and others of that kind."""

    @property
    def decoding(self) -> Decoding: ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def encode_pair(self, text: str, other: str, limit: int | None) -> Pair:
        """`limit` is how many tokens to keep at most; None: all."""

    def fewest(self, text: str) -> int:
        """Tokens that a text has at least, found without tokenizing it; 0 where nothing is known."""

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it (`Ġthe`, `▁the`, `<0x0A>`); None where there is none."""

    def token_id(self, token: str) -> int | None: ...

    def extended(self, added: Mapping[str, int]) -> Vocabulary:
        """With more tokens, by their texts. Raises ValueError where they cannot have these ids."""


class Tokenizer:
    """A model's tokenizer. Immutable once made, so that threads may share it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        max_length: int | None = None,
        configuration: Mapping[str, Any] | None = None,
        warnings: Sequence[str] = (),
        lower_case: bool = False,
    ) -> None:
        """`special_tokens` are the names that templates use (`bos_token`, `eos_token`, …) and their texts.

        `eos_token_ids` default to the id of `eos_token`. With `lower_case` texts lose their capitals first.
        """
        self._vocabulary = vocabulary
        self._read: Callable[[str], str] = str.lower if lower_case else str
        self._pieces: dict[int, bytes | None] = {}
        self.special_tokens = dict(special_tokens or {})
        self.vocab_size = vocabulary.size
        self.special_ids = vocabulary.special_ids
        self.added_ids = vocabulary.added_ids
        self.decoding = vocabulary.decoding
        self.chat_templates = dict(chat_templates or {})
        """By name; a model's usual one is `default`."""
        self.max_length = max_length
        """Tokens that the tokenizer's own configuration allows; None where it does not say."""
        self.configuration = dict(configuration or {})
        """What the model's tokenizer_config.json says, where there is one."""
        self.chat: ChatWriter | None = None
        """What writes chats, where the tokenizer does that itself; else a template does."""
        self.warnings = tuple(warnings)
        """What was not as asked, in sentences."""
        self.bos_token_id = self._special_id("bos_token")
        eos = self._special_id("eos_token")
        self.eos_token_ids = tuple(eos_token_ids) or (() if eos is None else (eos,))

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; the tokenizer library works without the interpreter's lock.

        Raises ValueError for a lone surrogate, which is no character.
        """
        try:
            return self._vocabulary.encode(self._read(text), add_special_tokens)
        except (UnicodeEncodeError, TypeError):
            _check_whole(text)
            raise

    def encode_pair(self, text: str, other: str, limit: int | None = None) -> Pair:
        """Two texts as one, with the special tokens that the model wants round and between them.

        limit  tokens to keep at most: the longer text loses its last ones first; None: all
        Raises ValueError as `encode` does, and where types of tokens do not change once.
        """
        try:
            return self._vocabulary.encode_pair(self._read(text), self._read(other), limit)
        except (UnicodeEncodeError, TypeError):
            _check_whole(text)
            _check_whole(other)
            raise

    def fewest(self, text: str) -> int:
        """Tokens that a text has at least, found without tokenizing it; 0 where nothing is known."""
        return self._vocabulary.fewest(self._read(text))

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of token ids; ids without a token give none, broken UTF-8 gives U+FFFD."""
        stream = self.stream(
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        return stream.push(ids) + stream.finish()

    def stream(
        self,
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
        spaces_between_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
    ) -> Detokenizer:
        """A detokenizer for the tokens that follow `prompt_ids`; `kept_ids` are never skipped."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        return Detokenizer(
            self,
            skipped_ids=skipped - kept_ids if kept_ids else skipped,
            spaces_between_special_tokens=spaces_between_special_tokens,
            prompt_ids=prompt_ids,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text, without what its neighbours add; none for an unknown id."""
        if token_id in self.added_ids:
            return (self._vocabulary.token(token_id) or "").encode()
        return self.piece(token_id, False) or b""

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text; parts of a character become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_id(self, text: str) -> int | None:
        """The id of a token as the vocabulary writes it, for example `<|im_end|>`."""
        return self._vocabulary.token_id(text)

    def piece(self, token_id: int, first: bool) -> bytes | None:
        """The bytes that a token adds, `first` where it begins the text; None for an unknown id."""
        if first:
            token = self._vocabulary.token(token_id)
            return None if token is None else self.decoding.piece(token, True)
        if token_id not in self._pieces:
            token = self._vocabulary.token(token_id)
            self._pieces[token_id] = None if token is None else self.decoding.piece(token, False)
        return self._pieces[token_id]

    def names_alike(self, other: Tokenizer) -> bool:
        """Whether each id is the same token of both."""
        ours, theirs = self._vocabulary, other._vocabulary
        return (
            self.vocab_size == other.vocab_size
            and self.special_ids == other.special_ids
            and all(ours.token(token_id) == theirs.token(token_id) for token_id in range(self.vocab_size))
        )

    def extended(self, added: Mapping[str, int]) -> Tokenizer:
        """With more tokens, by their texts. Raises ValueError where they cannot have these ids."""
        found = Tokenizer(
            self._vocabulary.extended(added),
            special_tokens=self.special_tokens,
            eos_token_ids=self.eos_token_ids,
            chat_templates=self.chat_templates,
            max_length=self.max_length,
            configuration=self.configuration,
            lower_case=self._read is str.lower,
        )
        found.chat = self.chat
        return found

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._vocabulary.token_id(token)


def _check_whole(text: str) -> None:
    """Raises ValueError for half of a character, which no tokenizer reads."""
    place = next((i for i, c in enumerate(text) if 0xD800 <= ord(c) < 0xE000), None)
    if place is not None:
        raise ValueError(
            f"The text holds the lone surrogate U+{ord(text[place]):04X} at character {place}, "
            "which is half of a character. Send both halves of the pair, or leave it out."
        ) from None
