"""Vocabularies of the `tokenizers` library."""

from __future__ import annotations

import json

import tokenizers

from slipway.text.decoding import Decoding, lower

_LARGEST_ID = 2**32 - 1  # the library's type


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

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # The batch form and not `encode`: only it lets go of the interpreter's lock.
        batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def token(self, token_id: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(token_id) if 0 <= token_id <= _LARGEST_ID else None
        return token

    def token_id(self, token: str) -> int | None:
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id
