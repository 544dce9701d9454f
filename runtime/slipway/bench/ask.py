"""One request to a server, timed from the moment it is sent to the end of its answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.bench.datasets import Sample
from slipway.bench.forms import Failed, Form, message_of
from slipway.bench.http import Answer, Client, ProtocolError, reason_of
from slipway.bench.measure import Outcome

MOST_ERROR = 1 << 16


@dataclass(frozen=True, slots=True)
class Asker:
    """How each sample is asked: to which path, in which API's form, with which fields beside."""

    client: Client
    path: str
    form: Form
    fields: Mapping[str, Any]
    """Fields of every request: the model, sampling, what the user gave."""
    keep_text: bool = False

    async def ask(self, sample: Sample) -> Outcome:
        """What it met. A failure of the request is part of that, and never raised."""
        body = json.dumps({**self.form.body(sample), **self.fields}).encode()
        outcome = Outcome(time.perf_counter())
        if isinstance(sample.prompt, list):
            outcome.input_tokens = len(sample.prompt)
        try:
            async with self.client.post(self.path, body) as answer:
                if answer.status != 200:
                    raise Failed(await _refusal(answer))
                await self.form.follow(answer, outcome, keep_text=self.keep_text)
        except (Failed, ProtocolError) as error:
            outcome.error = str(error)
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError):
            outcome.error = "The answer broke off: the server closed the connection."
        except OSError as error:
            outcome.error = f"{self.client.address} cannot be reached: {reason_of(error)}."
        except (ValueError, TypeError, AttributeError) as error:
            outcome.error = f"The answer is not what OpenAI's API gives: {error}."
        return outcome


async def _refusal(answer: Answer) -> str:
    body = await answer.read(MOST_ERROR)
    try:
        said = message_of(json.loads(body))
    except ValueError:
        said = ""
    return f"The server answered {answer.status} {answer.reason}. {said}".rstrip()
