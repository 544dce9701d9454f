"""Paths that say how the server is. Those of `open_router` need no key: probes and scrapers have none."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from slipway import __version__
from slipway.api.errors import ApiError
from slipway.api.frontend import Frontend, frontend
from slipway.api.responses import json_response
from slipway.metrics.registry import ServerMetrics

open_router = APIRouter()
guarded_router = APIRouter()
dev_router = APIRouter()


@open_router.get("/live")
async def live(request: Request) -> Response:
    """200 while loading or serving makes progress; else 503, and a restart is in order."""
    front = frontend(request)
    sick = _sickness(front)
    if sick is None:
        return Response(status_code=200)
    return json_response({"status": "unhealthy", "reason": sick}, status=503)


def _sickness(front: Frontend) -> str | None:
    engine, settings = front.engine, front.settings
    if (cause := front.admission.cause) is not None:
        return cause.message
    limit = settings.step_timeout if engine.state == "ready" else settings.load_timeout
    if engine.heartbeat_age > limit:
        return f"the engine has been silent for {engine.heartbeat_age:.0f} s"
    return None


@open_router.get("/ready")
@open_router.get("/health")
@open_router.get("/ping")
@open_router.post("/ping")
async def ready(request: Request) -> Response:
    """200 while a request would be admitted; else 503 with what is going on.

    One answer by three names: of readiness probes, of clients that wait for a vLLM server, of platforms.
    """
    front = frontend(request)
    if front.admission.ready:
        return Response(status_code=200)
    return json_response(front.admission.progress(), status=503)


@open_router.get("/version")
async def version() -> Response:
    return json_response({"version": __version__})


@open_router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format; empty until the model is loaded."""
    known = frontend(request).metrics
    body = known.exposition() if known is not None else b""
    return Response(body, media_type=ServerMetrics.content_type)


@guarded_router.get("/load")
async def load(request: Request) -> Response:
    """Open generating requests, where --enable-server-load-tracking is on."""
    front = frontend(request)
    tracked = front.settings.load_tracking
    return json_response({"server_load": front.admission.num_open if tracked else 0})


@guarded_router.get("/server_info")
async def server_info(request: Request) -> Response:
    """How the server was started, without secrets, and what the engine made of it."""
    front = frontend(request)
    engine: dict[str, Any] | None = None
    if front.engine.ready is not None:
        engine = msgspec.structs.asdict(front.engine.ready)
    return json_response(
        {"version": __version__, "arguments": front.settings.shown_arguments, "engine": engine}
    )


@dev_router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached prefixes that no running request uses."""
    front = frontend(request)
    front.admission.check()
    seconds = front.settings.rpc_timeout
    try:
        await front.engine.call("reset_prefix_cache", timeout=seconds)
    except TimeoutError:
        message = f"The engine did not answer within {seconds:g} s (VLLM_RPC_TIMEOUT)."
        raise ApiError(message, status=504, code="engine_timeout") from None
    return Response(status_code=200)
