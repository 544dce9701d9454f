"""What a model may guess behind the draws of a step: the slots' next drafts."""

from __future__ import annotations

from slipway.engine.grants import PlanInMaking
from slipway.engine.guesses import Guessing
from slipway.engine.kv_cache import KVCache


def look_ahead(plan: PlanInMaking, cache: KVCache, most: int, guessing: Guessing | None) -> None:
    """Grant up to `most` drafts behind each draw, and pages for them where there are some: else fewer.

    None where the request pauses them or has processors, and none for the last token that it may draw, which
    is drawn in any case.
    """
    for request, grant in list(plan.grants.items()) if most else ():
        left = min(most, request.max_computed - request.granted - 1)
        if not grant.draws or left <= 0 or request.params.processors:
            continue
        if guessing:
            left = min(left, guessing.most(request))
        pages = cache.extend(request, left) if left else None
        if left := min(left, request.capacity - request.granted):
            plan.look_ahead(request, left, pages or [])
