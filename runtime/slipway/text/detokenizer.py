"""Text from tokens as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from slipway.text.decoding import Decoding, strip_end

_LONGEST_CHARACTER = 4  # bytes, in UTF-8
_MARKS = dict.fromkeys(range(0xDC80, 0xDD00), "\ufffd")


class Pieces(Protocol):
    """What a stream asks of a tokenizer."""

    @property
    def decoding(self) -> Decoding: ...
    @property
    def added_ids(self) -> frozenset[int]: ...
    def piece(self, token_id: int, first: bool) -> bytes | None:
        """The bytes that a token adds, `first` where it begins the text; None for an unknown id."""

    def token_bytes(self, token_id: int) -> bytes: ...


class Detokenizer:
    """Turns one request's tokens into text, in time proportional to the new ones.

    The texts of all pushes and of `finish`, joined, are the `decode` of all tokens, however they were split.
    Only whole characters come out; a character that its tokens leave broken becomes U+FFFD as soon as that
    is certain, at the latest in `finish`.
    """

    __slots__ = (
        "_first",
        "_held",
        "_joined",
        "_last_added",
        "_length",
        "_pieces",
        "_skip",
        "_to_strip",
        "_utf8",
    )

    def __init__(
        self,
        pieces: Pieces,
        *,
        skipped_ids: frozenset[int],
        spaces_between_special_tokens: bool,
        prompt_ids: Sequence[int],
    ) -> None:
        """`prompt_ids` stand before the stream and give no text; a character may begin in them."""
        decoding = pieces.decoding
        self._pieces = pieces
        self._skip = skipped_ids
        self._joined = not spaces_between_special_tokens
        errors = "surrogateescape" if decoding.one_mark_per_byte else "replace"
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors=errors)
        self._first = True
        self._last_added = False
        self._to_strip = decoding.strip_left
        self._held = ""
        self._length = 0
        """Of the text that has come out."""
        if prompt_ids:
            self._follow(prompt_ids)
            self._length = 0

    @property
    def end(self) -> int:
        """Characters of the text so far, without one that is not complete."""
        return self._length + len(self._held)

    def offset(self, token_id: int) -> int:
        """Where in the text a token begins that is pushed next.

        One that goes on with a character begins where that character does; one without text, at the end.
        """
        begun, _ = self._utf8.getstate()
        added = self._piece(token_id)
        if not begun or not added or _goes_on(begun, added):
            return self.end
        return self.end + (len(begun) if self._pieces.decoding.one_mark_per_byte else 1)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return self._cut(self._utf8.decode(self._bytes(token_ids)))

    def finish(self) -> str:
        """The rest; the stream is over."""
        text = self._cut(self._utf8.decode(b"", final=True))
        self._held = ""  # what is stripped from the end
        return text

    def _follow(self, prompt_ids: Sequence[int]) -> None:
        """Take on the state that the prompt leaves; its last few bytes decide it."""
        start, size = len(prompt_ids), 0
        while start > 0 and size < _LONGEST_CHARACTER:
            start -= 1
            piece = self._pieces.piece(prompt_ids[start], False)
            if prompt_ids[start] not in self._skip and piece is not None:
                size += len(piece)
                self._first = False
        if not self._first:
            self._to_strip = 0
        self.push(prompt_ids[start:])

    def _bytes(self, token_ids: Sequence[int]) -> bytes:
        out = bytearray()
        for token_id in token_ids:
            piece = self._piece(token_id)
            if piece is None:
                continue
            out += piece
            self._first = False
            self._last_added = self._joined and token_id in self._pieces.added_ids
        return bytes(out)

    def _piece(self, token_id: int) -> bytes | None:
        """What a token adds that comes next; None where it adds nothing and does not count."""
        pieces = self._pieces
        if token_id in self._skip or (piece := pieces.piece(token_id, self._first)) is None:
            return None
        glued = self._joined and self._last_added and token_id in pieces.added_ids
        return pieces.token_bytes(token_id) if glued else piece

    def _cut(self, text: str) -> str:
        decoding = self._pieces.decoding
        if decoding.one_mark_per_byte and not text.isascii():
            text = text.translate(_MARKS)
        while self._to_strip and text:
            if text[0] != decoding.strip_char:
                self._to_strip = 0
                break
            text = text[1:]
            self._to_strip -= 1
        if decoding.strip_right:
            text = self._held + text
            self._held = text[len(strip_end(text, decoding.strip_char, decoding.strip_right)) :]
            text = text[: len(text) - len(self._held)]
        self._length += len(text)
        return text


def _goes_on(begun: bytes, added: bytes) -> bool:
    """Whether `added` goes on with the character that `begun` is the beginning of."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begun + added[:1])
    except UnicodeDecodeError:
        return False
    return True
