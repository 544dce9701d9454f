"""How tokens become the bytes of a text: the tokenizer's decoder, lowered to one piece per token.

A token's piece depends on nothing but the token and on whether it comes first, so text can be made
token by token. Source of the decoders' meaning: the `tokenizers` library, which the tests compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Step = Callable[[str, bool], str | bytes]
"""(token text, comes first) → text that the next step sees, or bytes that none does."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Decoding:
    """The lowered decoder; `strip_*` count the `strip_char` dropped at the ends of the whole text."""

    steps: tuple[Step, ...] = ()
    strip_char: str = " "
    strip_left: int = 0
    strip_right: int = 0
    one_mark_per_byte: bool = False
    """Each byte of invalid UTF-8 becomes a U+FFFD, as with byte-fallback tokens; else each broken
    character does, as far as it got."""

    def piece(self, text: str, first: bool) -> bytes:
        """The bytes that the token `text` adds; `first` where no token stands before it."""
        value: str | bytes = text
        for step in self.steps:
            if isinstance(value, bytes):
                return value
            value = step(value, first)
        return value if isinstance(value, bytes) else value.encode()


def lower(decoder: Mapping[str, Any] | None) -> Decoding:
    """Lower the `decoder` of a tokenizer.json. Raises ValueError for one that no language model uses."""
    if decoder is None:
        return Decoding((_join_by_spaces,))
    decoding = Decoding()
    fused = False
    for spec in _flatten(decoder):
        kind = spec["type"]
        if kind == "Fuse":
            fused = True
        elif kind == "Strip":
            decoding = _with_strip(decoding, spec, fused)
        elif kind == "BPEDecoder":
            # Every token but the last gets its suffix turned into a space: the last one's falls off the end.
            step = _replace_step(spec["suffix"], " ")
            decoding = replace(decoding, steps=(*decoding.steps, step), strip_right=1)
        elif kind in _STEPS:
            decoding = replace(
                decoding,
                steps=(*decoding.steps, _STEPS[kind](spec)),
                one_mark_per_byte=decoding.one_mark_per_byte or kind == "ByteFallback",
            )
        else:
            raise ValueError(
                f"The tokenizer's decoder {kind} is not supported: it is none of "
                f"{', '.join(sorted((*_STEPS, 'BPEDecoder', 'Fuse', 'Sequence', 'Strip')))}. "
                "Give a tokenizer of the same vocabulary with --tokenizer."
            )
    return decoding


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [spec for child in decoder["decoders"] for spec in _flatten(child)]


def _with_strip(decoding: Decoding, spec: Mapping[str, Any], fused: bool) -> Decoding:
    content, start, stop = spec["content"], spec["start"], spec["stop"]
    if fused:
        return replace(decoding, strip_char=content, strip_left=start, strip_right=stop)

    def strip(text: str, first: bool) -> str:
        return strip_end(strip_start(text, content, start), content, stop)

    return replace(decoding, steps=(*decoding.steps, strip))


def strip_start(text: str, char: str, count: int) -> str:
    """Drop at most `count` times `char` from the start."""
    end = 0
    while end < min(count, len(text)) and text[end] == char:
        end += 1
    return text[end:]


def strip_end(text: str, char: str, count: int) -> str:
    """Drop at most `count` times `char` from the end."""
    end = len(text)
    while len(text) - end < count and end > 0 and text[end - 1] == char:
        end -= 1
    return text[:end]


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in own}
    shifted = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(list(shifted))}


_ALPHABET = byte_alphabet()


def _byte_level(spec: Mapping[str, Any]) -> Step:
    def step(text: str, first: bool) -> bytes:
        try:
            return bytes([_ALPHABET[char] for char in text])
        except KeyError:  # an added token, which stands for itself
            return text.encode()

    return step


def _byte_fallback(spec: Mapping[str, Any]) -> Step:
    def step(text: str, first: bool) -> str | bytes:
        match = _BYTE_TOKEN.fullmatch(text)
        return bytes([int(match[1], 16)]) if match else text

    return step


def _replace(spec: Mapping[str, Any]) -> Step:
    pattern, content = spec["pattern"], spec["content"]
    if "String" in pattern:
        return _replace_step(pattern["String"], content)
    compiled = re.compile(pattern["Regex"])
    return lambda text, first: compiled.sub(lambda match: content, text)


def _replace_step(old: str, new: str) -> Step:
    return lambda text, first: text.replace(old, new)


def _metaspace(spec: Mapping[str, Any]) -> Step:
    mark = spec["replacement"]
    prefixed = spec.get("prepend_scheme", "always") != "never" and spec.get("add_prefix_space", True)
    return lambda text, first: text.replace(mark, "" if first and prefixed else " ")


def _word_piece(spec: Mapping[str, Any]) -> Step:
    prefix, cleanup = spec["prefix"], spec["cleanup"]

    def step(text: str, first: bool) -> str:
        if not first:
            text = text.removeprefix(prefix) if text.startswith(prefix) else " " + text
        return _without_english_gaps(text) if cleanup else text

    return step


def _without_english_gaps(text: str) -> str:
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for gap, word in (
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ):
        text = text.replace(gap, word)
    return text


def _join_by_spaces(text: str, first: bool) -> str:
    return text if first else " " + text


_STEPS: Mapping[str, Callable[[Mapping[str, Any]], Step]] = {
    "ByteFallback": _byte_fallback,
    "ByteLevel": _byte_level,
    "Metaspace": _metaspace,
    "Replace": _replace,
    "WordPiece": _word_piece,
}


def sentencepiece_decoding(strip_left: bool) -> Decoding:
    """The decoding of a SentencePiece vocabulary; `strip_left` where encoding puts a space in front."""
    steps: Sequence[Mapping[str, Any]] = (
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip_left else []),
    )
    return lower({"type": "Sequence", "decoders": steps})
