"""What the API knows of the model: its texts and its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipway.api.adapters import ServedAdapter
from slipway.api.errors import ApiError
from slipway.api.texts import GenerationDefaults, Texts
from slipway.engine.messages import Pools, Ready
from slipway.text.template import ChatWriter
from slipway.text.tokenizer import Pair, Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as requests meet it. Safe to use from any thread."""

    texts: Texts
    max_model_len: int
    vocab_size: int
    pools: Pools | None = None
    """What it answers where it pools; None: it generates."""
    hidden_size: int = 0
    """Numbers in each embedding of a prompt; 0 where prompts have tokens."""
    num_virtual: int = 0
    """Tokens that the request's prompt adapter puts before each prompt."""
    num_added: int = 0
    """Tokens that the request's adapter adds; `vocab_size` counts them."""
    same_tokens: bool = True
    """The request's adapter has the model's own tokens, for which grammars are compiled."""

    def named(self, adapter: ServedAdapter | None) -> ServedModel:
        """The model as requests meet it that name this adapter."""
        if adapter is None:
            return self
        named = replace(self, num_virtual=adapter.ref.num_virtual) if adapter.ref.num_virtual else self
        own = adapter.own
        if own is None:
            return named
        return replace(
            named,
            texts=own.texts,
            max_model_len=own.max_model_len,
            vocab_size=self.vocab_size + own.added,
            num_added=own.added,
            same_tokens=own.same_tokens,
        )

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its completion that the context holds beside virtual ones."""
        return self.max_model_len - self.num_virtual

    @property
    def defaults(self) -> GenerationDefaults:
        return self.texts.defaults

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.texts.eos_token_ids

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ApiError where the server was started without one."""
        if self.texts.tokenizer is None:
            raise self._no_tokenizer()
        return self.texts.tokenizer

    @property
    def template(self) -> ChatWriter:
        """Raises ApiError where the model has none."""
        if self.texts.tokenizer is None:
            raise self._no_tokenizer()
        if self.texts.template is None:
            instead = "Use /v1/completions" if self.pools is None else "Give input in place of messages"
            message = f"This model has no chat template. {instead}, or start the server with --chat-template."
            raise ApiError(message, param="messages", code="no_chat_template")
        return self.texts.template

    def template_of(self, source: str | None) -> ChatWriter:
        """The template that a request brings, else the model's. Raises ApiError where it may bring none,
        or not this one."""
        if source is None:
            return self.template
        if self.texts.made is None:
            message = "chat_template: this server takes no template from requests; it needs "
            message += "--trust-request-chat-template."
            raise ApiError(message, param="chat_template", code="not_allowed")
        try:
            return self.texts.made(source)
        except ValueError as error:
            raise ApiError(str(error), param="chat_template", code="invalid_value") from None

    def fewest_tokens(self, text: str) -> int:
        """Tokens that a text has at least; 0 where that is less than what the context holds."""
        return 0 if len(text) <= self.longest else self.tokenizer.fewest(text)

    def check_generates(self, name: str) -> None:
        """Raises ApiError where it was started to pool."""
        if self.pools is not None:
            message = (
                f"The model does not support the {name} API: it serves --task {self.pools.task}, "
                "and generates no text."
            )
            raise ApiError(message, param="model", code="wrong_task")

    def encode_pair(self, text: str, other: str, limit: int | None) -> Pair:
        """One prompt of two texts, joined as the tokenizer does, and cut to so many tokens."""
        try:
            pair = self.tokenizer.encode_pair(text, other, limit)
        except ValueError as error:
            raise ApiError(str(error), code="invalid_value") from None
        self._check_rows(pair[0])
        return pair

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except ValueError as error:
            raise ApiError(str(error), code="invalid_value") from None
        self._check_rows(token_ids)
        return token_ids

    def _no_tokenizer(self) -> ApiError:
        param, where = "prompt", "the prompt of /v1/completions, and read token ids from the answer"
        if self.pools is not None:
            param, where = "input", "the input of /v1/embeddings, /classify or /pooling"
        message = f"This server has no tokenizer (--skip-tokenizer-init): send token ids as {where}."
        return ApiError(message, param=param, code="no_tokenizer")

    def _check_rows(self, token_ids: list[int]) -> None:
        """Raises ApiError for a token that the tokenizer has, and the model not."""
        if self.tokenizer.vocab_size > self.vocab_size and max(token_ids, default=0) >= self.vocab_size:
            token = self.tokenizer.token_text(max(token_ids))
            message = f"The text has {token!r}, for which the model has no row in its vocabulary of "
            raise ApiError(f"{message}{self.vocab_size}. Leave it out.", code="invalid_value")


def served_model(texts: Texts, ready: Ready) -> ServedModel:
    return ServedModel(texts, ready.max_model_len, ready.vocab_size, ready.pools, ready.hidden_size)
