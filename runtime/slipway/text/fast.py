"""Vocabularies of the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from slipway.text.decoding import Decoding, byte_alphabet, lower
from slipway.text.tokenizer import Pair

_LARGEST_ID = 2**32 - 1  # the library's type
_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_FORM_SHRINKS = 4
"""Bytes that become one at most in any of them, as a bold letter of mathematics does."""
_UTF8_BYTES = {*range(256)} - {0xC0, 0xC1, *range(0xF5, 0x100)}


class FastVocabulary:
    """Wraps a `tokenizers.Tokenizer`, which must not change afterwards."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        # What training left in the file: a prompt is never cut or filled up unseen.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.size = max(tokenizer.get_vocab_size(with_added_tokens=False), max(added, default=-1) + 1)
        self.decoding: Decoding = lower(
            json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else None
        )

    def fewest(self, text: str) -> int:
        longest, lost = self._bound
        if not longest:
            return 0
        kept = text.encode(errors="surrogatepass").translate(None, lost)
        return -(-len(kept) // longest)

    @cached_property
    def _bound(self) -> tuple[int, bytes]:
        """Bytes of a text that one token stands for at most, and the bytes that none does; (0, …) where that
        has no bound.

        It has one for byte pairs, where nothing else of a text is lost: whatever it is cut by, each byte is
        in some token.
        """
        tokenizer = self._tokenizer
        forms, cuts = _flat(tokenizer.normalizer), _flat(tokenizer.pre_tokenizer)
        added = tokenizer.get_added_tokens_decoder().values()
        if (
            not isinstance(tokenizer.model, tokenizers.models.BPE)
            or not all(map(_keeps, (*forms, *cuts)))
            or any(token.lstrip or token.rstrip for token in added)  # they swallow spaces
        ):
            return 0, b""
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        if any(part["type"] == "ByteLevel" for part in (*forms, *cuts)):
            lost = bytes(byte for char, byte in byte_alphabet().items() if char not in vocabulary)
            longest = max(map(len, vocabulary), default=1)
            bounded = not forms or not set(lost) & _UTF8_BYTES
        else:
            lost, longest = b"", max((len(token.encode()) for token in vocabulary), default=1)
            fallback = {f"<0x{byte:02X}>" for byte in _UTF8_BYTES}
            bounded = tokenizer.model.byte_fallback and fallback <= vocabulary.keys()
        if not bounded:
            return 0, b""
        longest = max([longest, *(len(token.content.encode()) for token in added)])
        return longest * (_FORM_SHRINKS if any(part["type"] in _UNICODE_FORMS for part in forms) else 1), lost

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # The batch form and not `encode`: only it lets go of the interpreter's lock.
        batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def encode_pair(self, text: str, other: str, limit: int | None) -> Pair:
        batch = self._tokenizer.encode_batch_fast([(text, other)], add_special_tokens=True)
        ids, types = batch[0].ids, batch[0].type_ids
        if limit is not None and len(ids) > limit:
            places = _kept(batch[0].sequence_ids, limit)
            ids, types = [ids[place] for place in places], [types[place] for place in places]
        return ids, _second_type(types)

    def token(self, token_id: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(token_id) if 0 <= token_id <= _LARGEST_ID else None
        return token

    def token_id(self, token: str) -> int | None:
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def extended(self, added: Mapping[str, int]) -> FastVocabulary:
        copy = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        for token in sorted(added, key=added.__getitem__):
            copy.add_tokens([tokenizers.AddedToken(token, normalized=False)])
            if (found := copy.token_to_id(token)) != added[token]:
                raise ValueError(
                    f"added_tokens.json gives {token!r} the id {added[token]}; here it is {found}"
                )
        return FastVocabulary(copy)


def _kept(sides: Sequence[int | None], limit: int) -> list[int]:
    """The places of a pair that stay: special tokens, and of the longer text fewer until both are as long.

    sides  the text that each token is of; None: it is a special one
    """
    ones, others = sides.count(0), sides.count(1)
    room = limit - (len(sides) - ones - others)
    if room < 0:
        return [*range(limit)]
    first = min(ones, max(room - others, (room + (ones > others)) // 2))
    left = [first, room - first]
    places = []
    for place, side in enumerate(sides):
        if side is None or left[side]:
            places.append(place)
            if side is not None:
                left[side] -= 1
    return places


def _second_type(types: Sequence[int]) -> int | None:
    """Where tokens of type 1 begin; None: there are none. Raises ValueError where others are behind them."""
    first = len(types) - types.count(1)
    if any(types[:first]):
        raise ValueError(
            f"The model's tokenizer gives the tokens of a pair the types {sorted({*types})} in an order that "
            "is not supported: those of type 0 come first, then those of type 1."
        )
    return first if first < len(types) else None


def _flat(part: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer as the parts that it is made of, each as its file writes it."""
    return _leaves(json.loads(part.__getstate__())) if part else []


def _leaves(part: dict[str, Any]) -> list[dict[str, Any]]:
    if part["type"] != "Sequence":
        return [part]
    return [leaf for one in part.get("normalizers") or part["pretokenizers"] for leaf in _leaves(one)]


def _keeps(part: dict[str, Any]) -> bool:
    """Whether nothing of a text is lost by it, but for what Unicode's forms join."""
    match part:
        case {"type": "ByteLevel" | "Prepend" | "Metaspace" | "Digits"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return len(old.encode()) <= len(new.encode())
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return bool(behavior != "Removed")
    return part["type"] in _UNICODE_FORMS
