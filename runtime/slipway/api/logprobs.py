"""Log-probabilities in the shapes of the two endpoints."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipway.api.protocol.answers import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprobs,
    PromptTokenLogprob,
    TopLogprob,
)
from slipway.engine.messages import TokenLogprobs
from slipway.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class LogprobFormat:
    """How tokens are written beside their log-probabilities."""

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids or tokenizer is None
        self._known_bytes: dict[int, list[int] | None] = {}

    def token(self, token_id: int) -> str:
        """The token's text, or `token_id:N` where texts are not wanted."""
        if self._as_ids or self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.token_text(token_id)

    def chat(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs:
        """`choices[].logprobs` of a chat completion."""
        content = []
        for token_id, one in zip(token_ids, logprobs, strict=True):
            top = [
                TopLogprob(token=self.token(other), logprob=floor(value), bytes=self._bytes(other))
                for other, value in one.top
            ]
            content.append(
                ChatTokenLogprob(
                    token=self.token(token_id),
                    logprob=floor(one.logprob),
                    bytes=self._bytes(token_id),
                    top_logprobs=top,
                )
            )
        return ChatLogprobs(content=content)

    def completion(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None],
        offsets: Sequence[int],
    ) -> CompletionLogprobs:
        """`choices[].logprobs` of a completion; `offsets` are where the tokens begin in its text.

        A None entry is the first token of an echoed prompt, which nothing predicts.
        """
        return CompletionLogprobs(
            tokens=[self._named(token_id) for token_id in token_ids],
            token_logprobs=[None if one is None else floor(one.logprob) for one in logprobs],
            top_logprobs=[
                None if one is None else self._alternatives(token_id, one)
                for token_id, one in zip(token_ids, logprobs, strict=True)
            ],
            text_offset=[*offsets],
        )

    def prompt(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
        """`prompt_logprobs`: for each prompt token, its own and the likeliest by token id."""
        entries: PromptLogprobs = []
        for token_id, one in zip(token_ids, logprobs, strict=True):
            if one is None:
                entries.append(None)
                continue
            entry = {
                str(other): self._ranked(other, value, rank)
                for rank, (other, value) in enumerate(one.top, start=1)
            }
            entry[str(token_id)] = self._ranked(token_id, one.logprob, one.rank)
            entries.append(entry)
        return entries

    def _bytes(self, token_id: int) -> list[int] | None:
        """One list for all places where a token stands: of a long answer they are the greater part."""
        if token_id not in self._known_bytes:
            tokenizer = self._tokenizer
            self._known_bytes[token_id] = None if tokenizer is None else [*tokenizer.token_bytes(token_id)]
        return self._known_bytes[token_id]

    def _alternatives(self, token_id: int, one: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens, and the one that stands there if it is not among them.

        Of several with one name, as a vocabulary may have them, it is that one or else the likeliest.
        """
        found: dict[str, float] = {}
        for other, value in one.top:
            found.setdefault(self._named(other), floor(value))
        found[self._named(token_id)] = floor(one.logprob)
        return found

    def _named(self, token_id: int) -> str:
        """The token's text; its bytes, as OpenAI writes them, where that is no whole character."""
        text = self.token(token_id)
        if "\ufffd" not in text or self._tokenizer is None:
            return text
        raw = self._tokenizer.token_bytes(token_id)
        return text if raw == text.encode() else "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _ranked(self, token_id: int, logprob: float, rank: int) -> PromptTokenLogprob:
        return PromptTokenLogprob(logprob=floor(logprob), rank=rank, decoded_token=self.token(token_id))


def likeliest(one: TokenLogprobs, number: int) -> TokenLogprobs:
    """The same with at most so many alternatives."""
    return msgspec.structs.replace(one, top=one.top[:number])


def floor(logprob: float) -> float:
    return max(logprob, LOWEST)
