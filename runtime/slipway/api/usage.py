"""The `usage` of an answer."""

from __future__ import annotations

from typing import Any

from slipway.api.generate import Run


def usage(run: Run, *, with_details: bool, completion_tokens: int | None = None) -> dict[str, Any]:
    """Tokens of the prompts and of what was delivered; `completion_tokens` where not all of it is."""
    prompt_tokens = run.order.prompt_tokens
    if completion_tokens is None:
        completion_tokens = sum(output.transcript.num_tokens for output in run.outputs)
    counted: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if with_details:
        counted["prompt_tokens_details"] = {"cached_tokens": run.num_cached_tokens}
    return counted
