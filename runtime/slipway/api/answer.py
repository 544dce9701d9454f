"""What the answers of chat and plain completions have in common."""

from __future__ import annotations

import time
from typing import Any

from msgspec import UNSET

from slipway.api.frontend import Frontend
from slipway.api.generate import Run
from slipway.api.logprobs import LogprobFormat
from slipway.api.protocol.answers import PromptTokensDetails, Usage
from slipway.api.protocol.common import Generation


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
        self._run = run
        self._format = logprob_format(front, body, run)
        self._head: dict[str, Any] = {
            "id": run.order.request_id,
            "created": int(time.time()),
            "model": settings.name,
        }
        self._shows_ids = bool(body.return_token_ids)
        self._shows_prompt_logprobs = body.prompt_logprobs is not None
        self._details = settings.enable_prompt_tokens_details
        self._ends_with_usage = options is not None and bool(options.include_usage)
        self._counts_always = self._ends_with_usage and bool(options and options.continuous_usage_stats)

    def _usage(self, completion_tokens: int | None = None) -> Usage:
        """`completion_tokens` where not all of them were delivered."""
        run = self._run
        prompt_tokens = run.order.prompt_tokens
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
