"""Paths that say how the server is."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from slipway import __version__
from slipway.api.errors import ApiError, shown_value
from slipway.api.frontend import Frontend, frontend
from slipway.api.protocol.answers import Progress, ServerLoad, ServerState, Sleeping, Version
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute
from slipway.engine.messages import PARTS
from slipway.metrics.registry import ServerMetrics


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
        return f"{engine.quietest} has been silent for {engine.heartbeat_age:.0f} s"
    return None


async def ready(request: Request) -> Response:
    """200 while a request would be admitted; else 503. The body says what is going on.

    One answer by three names: of readiness probes, of clients that wait for a vLLM server, of platforms.
    """
    front = frontend(request)
    answer = front.admission.progress()
    answer.memory = front.memory.shown or UNSET
    if answer.phase != "ready":
        return json_response(answer, status=503)
    front.admission.idle_check.look()
    return json_response(answer)


async def version(request: Request) -> Response:
    return json_response(Version(version=__version__))


async def metrics(request: Request) -> Response:
    """Prometheus' text format; empty until the model is loaded."""
    known = frontend(request).metrics
    body = known.exposition() if known is not None else b""
    return Response(body, media_type=ServerMetrics.content_type)


async def load(request: Request) -> Response:
    """Open generating requests, where --enable-server-load-tracking is on."""
    front = frontend(request)
    tracked = front.settings.enable_server_load_tracking
    return json_response(ServerLoad(server_load=front.admission.group.num_open if tracked else 0))


async def server_info(request: Request) -> Response:
    """How the server was started, without secrets, and what the engine made of it."""
    front = frontend(request)
    engine: dict[str, Any] | None = None
    if front.engine.ready is not None:
        engine = msgspec.structs.asdict(front.engine.ready)
    arguments = dict(front.settings.shown_arguments)
    return json_response(ServerState(version=__version__, arguments=arguments, engine=engine))


async def reset_prefix_cache(request: Request) -> Response:
    """Let no request find cached prefixes: all of them, or those of the adapters that are named."""
    adapters, numbers = frontend(request).adapters, []
    for name in request.query_params.getlist("adapter"):
        served = adapters.get(name)
        if served is None:
            message = f"There is no LoRA adapter {shown_value(name)}; /v1/models names those that are loaded."
            raise ApiError(message, status=404, param="adapter", code="adapter_not_found")
        numbers.append(str(served.ref.number))
    await _called(request, "reset_prefix_cache", *numbers)
    return Response(status_code=200)


async def start_profile(request: Request) -> Response:
    """Begin a trace of the engine's steps; 409 where one is being recorded."""
    await _called(request, "start_profile")
    return Response(status_code=200)


async def stop_profile(request: Request) -> Response:
    """End the trace, and say which file it is; 409 where none is being recorded."""
    path = await _called(request, "stop_profile")
    return json_response({"trace": path})


async def sleep(request: Request) -> Response:
    """Have the engine give memory back: 1 keeps the weights, 2 drops them. 409 while requests are live."""
    level = request.query_params.get("level", "1")
    if level not in ("1", "2"):
        message = f"level is {shown_value(level)}; 1 keeps the weights, 2 drops them."
        raise ApiError(message, param="level", code="invalid_value")
    await _slept(request, "sleep", level)
    return Response(status_code=200)


async def wake_up(request: Request) -> Response:
    """Have the engine take its memory again: all of it, or the parts that are named."""
    named = [tag for tags in request.query_params.getlist("tags") for tag in tags.split(",")]
    for tag in named:
        if tag not in PARTS:
            message = f"tags has {shown_value(tag)}; what sleeps is {' and '.join(PARTS)}."
            raise ApiError(message, param="tags", code="invalid_value")
    await _slept(request, "wake_up", *(named or PARTS))
    return Response(status_code=200)


async def is_sleeping(request: Request) -> Response:
    return json_response(Sleeping(is_sleeping=frontend(request).engine.asleep))


async def _slept(request: Request, method: str, *arguments: str) -> None:
    settings = frontend(request).settings
    if not settings.enable_sleep_mode:
        message = "This server never sleeps: it was started without --enable-sleep-mode."
        raise ApiError(message, code="sleep_mode_off")
    await frontend(request).admission.idle_check.wait()  # the engine sleeps while no request is live
    # Weights are moved or read: that may take as long as a start.
    await _called(request, method, *arguments, seconds=settings.load_timeout, limit="--load-timeout")


async def _called(
    request: Request,
    method: str,
    *arguments: str,
    seconds: float | None = None,
    limit: str = "VLLM_RPC_TIMEOUT",
) -> str:
    """What the engine answers behind its ok. Raises ApiError with what else it answers.

    seconds  that it may take, where not as long as `VLLM_RPC_TIMEOUT` says but as `limit`
    """
    front = frontend(request)
    front.admission.check_engine()
    seconds = front.settings.rpc_timeout if seconds is None else seconds
    try:
        answer = await front.engine.call(method, *arguments, timeout=seconds)
    except TimeoutError:
        message = f"The engine did not answer within {seconds:g} s ({limit})."
        raise ApiError(message, status=504, code="engine_timeout") from None
    verdict, _, result = answer.partition(" ")
    if verdict == "failed:":
        raise ApiError(f"The engine could not: {result}", status=500, code="call_failed")
    if verdict != "ok":
        raise ApiError(answer, status=409, code="not_possible_now")
    return result


routes = [
    # Probes and scrapers have no key.
    ApiRoute("/live", live, public=True),
    ApiRoute("/ready", ready, answer=Progress, public=True),
    ApiRoute("/health", ready, answer=Progress, public=True),
    ApiRoute("/ping", ready, answer=Progress, public=True),
    ApiRoute("/ping", ready, "POST", answer=Progress, public=True),
    ApiRoute("/version", version, answer=Version, public=True),
    ApiRoute("/metrics", metrics, public=True),
    ApiRoute("/load", load, answer=ServerLoad),
]
profile_routes = [
    ApiRoute("/start_profile", start_profile, "POST"),
    ApiRoute("/stop_profile", stop_profile, "POST"),
]
dev_routes = [
    ApiRoute("/server_info", server_info, answer=ServerState),
    ApiRoute("/reset_prefix_cache", reset_prefix_cache, "POST"),
    ApiRoute("/sleep", sleep, "POST"),
    ApiRoute("/wake_up", wake_up, "POST"),
    ApiRoute("/is_sleeping", is_sleeping, answer=Sleeping),
]
