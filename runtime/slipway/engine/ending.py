"""How requests end: by their newest tokens, or by what keeps them from going on."""

from __future__ import annotations

import logging

from slipway.engine.adapters import AdapterError
from slipway.engine.messages import Delta
from slipway.engine.request import Request
from slipway.engine.sleeper import Asleep
from slipway.text.errors import GrammarError

log = logging.getLogger("slipway.engine")

NOT_NUMBERS = "what the model computed were no numbers (NaN); its weights or the dtype may be unfit"
NOTHING_LEFT = "no token was left to draw within its grammar, allowed_token_ids, bad_words and min_tokens"


def end(request: Request, delta: Delta, complete: int | None) -> None:
    """Say in the news why the request ends, if its newest tokens end it, and drop those that follow.

    complete  how many of them complete the text that its grammar asks for
    """
    params, tokens = request.params, delta.token_ids
    num_before = len(request.tokens) - request.num_prompt - len(tokens)
    for count, token in enumerate(tokens, 1):
        if token in request.stop_tokens and num_before + count > params.min_tokens:
            delta.finish_reason, delta.stop_token_id = "stop", token
        elif count == complete:
            delta.finish_reason = "stop"
        elif num_before + count >= params.max_tokens:
            delta.finish_reason = "length"
        else:
            continue
        delta.token_ids = tokens[:count]
        delta.logprobs = delta.logprobs and delta.logprobs[:count]
        return


def failure(request_id: str, error: Exception) -> Delta:
    """The end of a request that could not go on; the log has the traceback, where the engine is at fault."""
    if isinstance(error, Asleep):
        return Delta(request_id, [], "error", error=str(error))
    if isinstance(error, AdapterError):
        return Delta(request_id, [], "error", error=str(error), unfit=True)
    if isinstance(error, GrammarError):
        return Delta(request_id, [], "error", error=f"its grammar cannot be followed: {error}", unfit=True)
    log.error("request %s failed", request_id, exc_info=error)
    return Delta(request_id, [], "error", error=f"{type(error).__name__}: {error}")
