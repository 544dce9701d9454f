"""What the answers of chat and plain completions have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from slipway.api.frontend import Frontend
from slipway.api.gather import Whole, gather
from slipway.api.generate import Run
from slipway.api.logprobs import LogprobFormat, likeliest
from slipway.api.protocol.answers import PromptLogprobs, PromptTokensDetails, RequestMetrics, Usage
from slipway.api.protocol.common import Generation

QUICK_LOGPROBS = 1000
"""Written in some 2 ms, which the event loop can spare."""
LOGPROB_BYTES = 100
"""Of one in the answer, roughly."""

T = TypeVar("T")


def logprob_format(front: Frontend, body: Generation, run: Run) -> LogprobFormat:
    """As the request wants tokens written, else the server."""
    as_ids = body.return_tokens_as_token_ids
    if as_ids is None:
        as_ids = front.settings.return_tokens_as_token_ids
    return LogprobFormat(run.order.rules.tokenizer, as_ids=as_ids)


class GeneratedAnswer:
    """Writes the outputs of a run: whole, or as the events of a stream."""

    def __init__(self, front: Frontend, body: Generation, run: Run) -> None:
        settings, options = front.settings, body.stream_options
        self._front = front
        self._run = run
        self._prompt_tokens = run.order.prompt_tokens
        self._format = logprob_format(front, body, run)
        self._head: dict[str, Any] = {
            "id": run.order.request_id,
            "created": int(time.time()),
            "model": run.model,
        }
        self._shows_ids = bool(body.return_token_ids)
        self._num_prompt_logprobs = body.prompt_logprobs
        self._prompt_logprobs: dict[int, PromptLogprobs | UnsetType] = {}
        self._details = settings.enable_prompt_tokens_details
        self._tells_times = settings.enable_per_request_metrics
        asked = options is not None and bool(options.include_usage)
        self._ends_with_usage = asked or settings.enable_force_include_usage
        self._counts_always = self._ends_with_usage and bool(options and options.continuous_usage_stats)

    async def _in_one_piece(self, make: Callable[[list[Whole]], T]) -> T:
        """What is made of the run's outputs; in a thread where log-probabilities make that long."""
        wholes, order = await gather(self._run), self._run.order
        params = order.prompts[0].params
        number = sum(len(whole.logprobs) for whole in wholes) * (params.num_logprobs + 1)
        number += self._prompt_tokens * (params.num_prompt_logprobs + 1) * order.n
        if number <= QUICK_LOGPROBS:
            return make(wholes)
        return await self._front.in_thread(lambda: make(wholes), number * LOGPROB_BYTES)

    def _logprobs_of_prompt(self, index: int) -> PromptLogprobs | UnsetType:
        """`prompt_logprobs`, where they are asked for; all choices of a prompt have the same."""
        number, found = self._num_prompt_logprobs, self._run.prompt_logprobs[index]
        if number is None or found is None:
            return UNSET
        if index not in self._prompt_logprobs:
            token_ids = self._run.order.prompts[index].token_ids
            shown = [one and likeliest(one, number) for one in found]
            self._prompt_logprobs[index] = self._format.prompt(token_ids, shown)
        return self._prompt_logprobs[index]

    def _usage(self, completion_tokens: int | None = None) -> Usage:
        """`completion_tokens` where not all of them were delivered."""
        run, prompt_tokens = self._run, self._prompt_tokens
        if completion_tokens is None:
            completion_tokens = run.num_tokens
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=(
                PromptTokensDetails(cached_tokens=run.num_cached_tokens) if self._details else UNSET
            ),
        )

    def _metrics(self) -> RequestMetrics | UnsetType:
        """Of a run with one output, which has ended, where the server tells them."""
        run = self._run
        if not self._tells_times or len(run.outputs) != 1:
            return UNSET
        timing = run.outputs[0].timing
        if timing is None:
            return RequestMetrics()
        generated, computed = timing.last_token - timing.first_token, timing.last_token - timing.scheduled
        return RequestMetrics(
            time_to_first_token_ms=(timing.first_token - timing.scheduled) * 1000,
            generation_time_ms=generated * 1000,
            queue_time_ms=(timing.scheduled - timing.arrival) * 1000,
            mean_itl_ms=generated / (run.num_tokens - 1) * 1000 if run.num_tokens > 1 else None,
            tokens_per_second=run.num_tokens / computed if computed > 0 else None,
        )
