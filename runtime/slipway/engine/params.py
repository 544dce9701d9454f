"""Parameters of requests: one type for the API, the wire and the engine, checked once at the edge."""

from __future__ import annotations

import msgspec


class Processor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Code of the operator's that edits the logits of a request before each draw."""

    qualname: str
    """Of a function, or of what makes one of arguments."""
    arguments: str = ""
    """JSON [args, kwargs] that it is made of; empty: it is the function itself."""


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
    processors: tuple[Processor, ...] = ()
    """In turn. What is reported are the model's own log-probabilities all the same."""


class PoolingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is made of a prompt's final rows, in place of tokens. How rows are pooled is the engine's."""

    dimensions: int = 0
    """Numbers of each vector to keep, the first ones; 0 keeps all."""
    activate: bool | None = None
    """Whether embeddings are normalized, and scores go through their activation; None: as the model says."""
    type_from: int | None = None
    """Of a pair of texts, the first position whose token is of the second type; None: there is none."""
