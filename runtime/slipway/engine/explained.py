"""A step of the scheduler in words, for the log at the level DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from slipway.engine.grants import Grant
from slipway.engine.request import Request
from slipway.engine.scheduler import Scheduler

MOST_NAMED = 16
"""Requests of each kind; of others there is the number."""

log = logging.getLogger("slipway.engine.scheduler")


def log_step(scheduler: Scheduler) -> None:
    """Say what the last step computes and who waits for what, where the log takes it."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", ". ".join(_sentences(scheduler)))


def _sentences(scheduler: Scheduler) -> Iterator[str]:
    plan, admission, pool = scheduler.made, scheduler.admission, scheduler.cache.pool
    tokens = sum(grant.num_new for grant in plan.grants.values())
    yield (
        f"Requests in the step: {len(plan.grants)}, with {tokens} tokens and room for {plan.tokens_left}; "
        f"{len(scheduler.waiting)} wait, {pool.num_free} of {pool.num_pages} pages are free"
    )
    yield from _named("Computes", [_granted(*one, one[0] in plan.starts) for one in plan.grants.items()])
    yield from _named("Preempted", _ids(plan.preempted))
    yield from _named("Short of pages", _ids(admission.short_of_pages))
    yield from _named("Short of room for their adapter", _ids(admission.short_of_adapters))
    if admission.num_deferred:
        yield f"Wait for what another step computes: {admission.num_deferred}"


def _granted(request: Request, grant: Grant, starts: bool) -> str:
    end = request.granted - grant.num_drafts
    begin = request.granted - grant.num_new
    span = f"token {begin}" if end - begin == 1 else f"tokens {begin} to {end}"
    of_prompt = f" of a prompt of {request.num_prompt}" if begin < request.num_prompt else ""
    drafts = f" and {grant.num_drafts} to verify" if grant.num_drafts else ""
    return f"{request.id} {'starts' if starts else 'goes on'} at {span}{of_prompt}{drafts}"


def _ids(requests: Sequence[Request]) -> list[str]:
    return [request.id for request in requests]


def _named(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        yield f"{what}: {', '.join(names[:MOST_NAMED])}{more}"
