"""One request to an OpenAI server, timed from the moment it is sent to its last token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.bench.datasets import Sample
from slipway.bench.http import Answer, Client, ProtocolError, reason_of
from slipway.bench.measure import Outcome

MOST_ERROR = 1 << 16
MOST_LINE = 1 << 22
"""Bytes of an answer's line; who sends more without an end is not listened to."""
SPOKEN = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
"""Fields of a chat's delta that bring tokens."""


class Failed(Exception):
    """The request got no whole answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Asker:
    """How each sample is asked: to which path, in which API's form, with which fields beside."""

    client: Client
    path: str
    chat: bool
    fields: Mapping[str, Any]
    """Fields of every request: the model, sampling, what the user gave."""
    keep_text: bool = False

    async def ask(self, sample: Sample) -> Outcome:
        """What it met. A failure of the request is part of that, and never raised."""
        body = json.dumps(self.body(sample)).encode()
        outcome = Outcome(time.perf_counter())
        if isinstance(sample.prompt, list):
            outcome.input_tokens = len(sample.prompt)
        try:
            async with self.client.post(self.path, body) as answer:
                if answer.status != 200:
                    raise Failed(await _refusal(answer))
                await self._follow(answer, outcome)
        except (Failed, ProtocolError) as error:
            outcome.error = str(error)
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError):
            outcome.error = "The answer broke off: the server closed the connection."
        except OSError as error:
            outcome.error = f"{self.client.address} cannot be reached: {reason_of(error)}."
        except (ValueError, TypeError, AttributeError) as error:
            outcome.error = f"The answer is not what OpenAI's API gives: {error}."
        return outcome

    def body(self, sample: Sample) -> dict[str, Any]:
        said = {"messages": [{"role": "user", "content": sample.prompt}]}
        return {
            **(said if self.chat else {"prompt": sample.prompt}),
            "max_completion_tokens" if self.chat else "max_tokens": sample.output_len,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }

    async def _follow(self, answer: Answer, outcome: Outcome) -> None:
        """Take every chunk. Raises Failed where the answer is an error or has no end."""
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
                chunks += self._take(choice, now - outcome.started, outcome)
                ended = ended or choice.get("finish_reason") is not None
        if not ended:
            raise Failed("The answer broke off: it has no end.")
        if outcome.ttft is None:
            raise Failed("The answer has no token.")
        if not outcome.output_tokens:
            outcome.output_tokens, outcome.counted = chunks, False

    def _take(self, choice: Mapping[str, Any], now: float, outcome: Outcome) -> bool:
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
        if self.keep_text and spoken:
            outcome.text += [spoken] if isinstance(spoken, str) else map(str, spoken)
        return True


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


async def _refusal(answer: Answer) -> str:
    body = await answer.read(MOST_ERROR)
    try:
        said = message_of(json.loads(body))
    except ValueError:
        said = ""
    return f"The server answered {answer.status} {answer.reason}. {said}".rstrip()


def message_of(body: object) -> str:
    """The error's message, in OpenAI's form or as a text alone."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else ""
