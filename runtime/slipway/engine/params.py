"""Sampling parameters: one type for the API, the wire and the engine, checked once at the edge."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the tokens of one request are drawn and when it ends.

    The API has checked every bound before it builds one; the engine trusts it. Stop strings are not
    here: they are found in the API, where the text is, which then aborts the request.
    """

    max_tokens: int
    """Most tokens to generate; prompt and output together fit in `max_model_len`."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    """Unsigned 64-bit key of the request's draws; the API draws one where the client gave none."""
    num_logprobs: int = -1
    """Alternatives to report with each token; 0 reports the token alone, -1 nothing."""
    num_prompt_logprobs: int = -1
    """The same for prompt tokens."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows every token."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences whose last token is forbidden where the rest stands before it."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the request: the client's, and unless `ignore_eos` all EOS ids of the model."""
