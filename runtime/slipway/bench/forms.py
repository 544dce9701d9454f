"""What each API is asked for a sample, and how its answer is followed."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from slipway.bench.datasets import Sample
from slipway.bench.http import Answer
from slipway.bench.measure import Outcome

MOST_LINE = 1 << 22
"""Bytes of a stream's line; who sends more without an end is not listened to."""
MOST_VECTORS = 1 << 26
"""Bytes of an answer that is no stream: those of millions of numbers."""
SPOKEN = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
"""Fields of a chat's delta that bring tokens."""


class Failed(Exception):
    """The request got no whole answer; the text says why."""


class Form(Protocol):
    """One API."""

    @property
    def path(self) -> str:
        """Where it is asked, unless `--endpoint` says otherwise."""

    @property
    def takes_words(self) -> bool:
        """Its prompts are text; else they may be token ids."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The latencies that its answers have, of those in `measure.seconds_of`."""

    @property
    def draws(self) -> bool:
        """Tokens are its answer: it takes parameters of sampling."""

    def body(self, sample: Sample) -> dict[str, Any]:
        """The request's own fields."""

    async def follow(self, answer: Answer, outcome: Outcome, *, keep_text: bool) -> None:
        """Read the answer to its end, and enter what it brings when.

        Raises Failed where it is an error or not whole, ValueError, TypeError and AttributeError where it is
        nothing that the API gives.
        """


@dataclass(frozen=True, slots=True)
class Streamed:
    """Completions, or chat completions, token by token."""

    path: str
    chat: bool
    metrics = ("ttft", "tpot", "itl", "e2el")
    draws = True

    @property
    def takes_words(self) -> bool:
        return self.chat

    def body(self, sample: Sample) -> dict[str, Any]:
        said = {"messages": [{"role": "user", "content": sample.prompt}]}
        return {
            **(said if self.chat else {"prompt": sample.prompt}),
            "max_completion_tokens" if self.chat else "max_tokens": sample.output_len,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def follow(self, answer: Answer, outcome: Outcome, *, keep_text: bool) -> None:
        chunks = 0
        ended = False
        async for now, text in events(answer):
            if text == "[DONE]":
                ended = True
                continue
            chunk = json.loads(text)
            if not isinstance(chunk, dict):
                raise ValueError(f"an event is {text[:80]!r}")
            if chunk.get("error"):
                raise Failed(message_of(chunk))
            if usage := chunk.get("usage"):
                outcome.input_tokens = int(usage.get("prompt_tokens") or 0)
                outcome.output_tokens = int(usage.get("completion_tokens") or 0)
            for choice in chunk.get("choices") or ():
                chunks += self._take(choice, now - outcome.started, outcome, keep_text)
                ended = ended or choice.get("finish_reason") is not None
        if not ended:
            raise Failed("The answer broke off: it has no end.")
        if outcome.ttft is None:
            raise Failed("The answer has no token.")
        if not outcome.output_tokens:
            outcome.output_tokens, outcome.counted = chunks, False

    def _take(self, choice: Mapping[str, Any], now: float, outcome: Outcome, keep_text: bool) -> bool:
        """Whether the chunk brought tokens, as far as it can be seen.

        A role comes before the first token, and an end may come after the last. A token without text, such
        as one that the server leaves out of it, is a chunk of nothing.
        """
        delta = choice.get("delta") or {}
        spoken = [delta[field] for field in SPOKEN if delta.get(field)] if self.chat else choice.get("text")
        ends = choice.get("finish_reason") is not None
        if not spoken and ("role" in delta or (ends and outcome.ttft is not None)):
            if ends:
                outcome.latency = now
            return False
        if outcome.ttft is None:
            outcome.ttft = now
        else:
            outcome.gaps.append(now - outcome.latency)
        outcome.latency = now
        if keep_text and spoken:
            outcome.text += [spoken] if isinstance(spoken, str) else map(str, spoken)
        return True


@dataclass(frozen=True, slots=True)
class Pooled:
    """Embeddings, or what else a model makes of an input as a whole: one answer, which has no tokens."""

    path: str
    takes_words = False
    metrics = ("e2el",)
    draws = False

    def body(self, sample: Sample) -> dict[str, Any]:
        return {"input": sample.prompt}

    async def follow(self, answer: Answer, outcome: Outcome, *, keep_text: bool) -> None:
        body = await answer.read(MOST_VECTORS)
        outcome.latency = time.perf_counter() - outcome.started
        said = json.loads(body)
        vectors = said.get("data")
        if not isinstance(vectors, list) or not vectors:
            raise Failed("The answer has no vector.")
        tokens = (said.get("usage") or {}).get("prompt_tokens")
        if tokens is not None:
            outcome.input_tokens = int(tokens)
        outcome.counted = tokens is not None


FORMS: Mapping[str, Form] = {
    "openai": Streamed("/v1/completions", chat=False),
    "openai-chat": Streamed("/v1/chat/completions", chat=True),
    "openai-embeddings": Pooled("/v1/embeddings"),
    "vllm-pooling": Pooled("/pooling"),
}
"""By `--backend`."""


async def events(answer: Answer) -> AsyncIterator[tuple[float, str]]:
    """What follows each `data:`, and when it came. Raises ValueError for a line without an end."""
    rest = b""
    async for part in answer.parts():
        now = time.perf_counter()
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MOST_LINE:
            raise ValueError(f"a line is longer than {MOST_LINE} bytes")
        for line in lines:
            field, _, text = line.partition(b":")
            if field == b"data":
                yield now, text.strip().decode("utf-8", "replace")


def message_of(body: object) -> str:
    """The error's message, in OpenAI's form or as a text alone."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else ""
