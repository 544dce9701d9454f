"""Vocabularies of the `sentencepiece` library: a `tokenizer.model` without a tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.text.decoding import sentencepiece_decoding
from slipway.text.tokenizer import Pair


class SentencePieceVocabulary:
    """Wraps a SentencePieceProcessor; added tokens are cut out of a text before it."""

    def __init__(
        self,
        processor: Any,
        added: Mapping[int, str],
        special: frozenset[int],
        *,
        bos: bool,
        eos: bool,
    ) -> None:
        self._processor = processor
        self._added = dict(added)
        self._ids = {token: token_id for token_id, token in added.items()}
        longest_first = sorted(map(re.escape, self._ids), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(longest_first)})" if longest_first else "(?!)")
        self._bos, self._eos = bos, eos
        self.special_ids = special
        self.added_ids = frozenset(added)
        self.size = max(processor.vocab_size(), max(added, default=-1) + 1)
        # What encoding does to a plain letter tells whether it puts a space in front.
        self.decoding = sentencepiece_decoding(strip_left=processor.encode("a", out_type=str)[0][0] == "▁")

    @classmethod
    def load(cls, path: Path, config: Mapping[str, Any]) -> SentencePieceVocabulary:
        """Read a model file; `config` may hold `added_tokens_decoder`, `add_bos_token`, `add_eos_token`."""
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.load(str(path))
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{path} cannot be read as a SentencePiece model: {error}. Fetch the file again."
            ) from error
        declared = config.get("added_tokens_decoder") or {}
        added = {int(token_id): token["content"] for token_id, token in declared.items()}
        special = {int(token_id) for token_id, token in declared.items() if token.get("special")}
        for token_id in range(processor.vocab_size()):
            if processor.is_control(token_id) or processor.is_unknown(token_id):
                added.setdefault(token_id, processor.id_to_piece(token_id))
                special.add(token_id)
        return cls(
            processor,
            added,
            frozenset(special),
            bos=config.get("add_bos_token", processor.bos_id() >= 0),
            eos=config.get("add_eos_token", False),
        )

    @property
    def special_tokens(self) -> dict[str, str]:
        """What the model file itself names, by the names that templates use."""
        ids = {
            "bos_token": self._processor.bos_id(),
            "eos_token": self._processor.eos_id(),
            "unk_token": self._processor.unk_id(),
            "pad_token": self._processor.pad_id(),
        }
        return {name: self._processor.id_to_piece(i) for name, i in ids.items() if i >= 0}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = [self._processor.bos_id()] if add_special_tokens and self._bos else []
        for part in self._split.split(text):
            if part in self._ids:
                ids.append(self._ids[part])
            elif part:
                ids.extend(self._processor.encode(part))
        if add_special_tokens and self._eos:
            ids.append(self._processor.eos_id())
        return ids

    def encode_pair(self, text: str, other: str, limit: int | None) -> Pair:
        """The second behind the first: a model of this kind has nothing between them, and no types."""
        return self.encode(text + other, True)[:limit], None

    def fewest(self, text: str) -> int:
        """The library does not tell its rules, which may join any number of spaces."""
        return 0

    def token(self, token_id: int) -> str | None:
        if token_id in self._added:
            return self._added[token_id]
        if not 0 <= token_id < self._processor.vocab_size():
            return None
        piece: str = self._processor.id_to_piece(token_id)
        return piece

    def token_id(self, token: str) -> int | None:
        if token in self._ids:
            return self._ids[token]
        token_id: int = self._processor.piece_to_id(token)
        return token_id if self.token(token_id) == token else None

    def extended(self, added: Mapping[str, int]) -> SentencePieceVocabulary:
        raise ValueError(
            "added_tokens.json adds to a tokenizer.json, and this model has none: save a whole tokenizer"
        )
