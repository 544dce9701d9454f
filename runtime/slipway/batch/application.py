"""The server's own application, asked in this process; and its state on a port for who asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message

from slipway.api import errors
from slipway.api.connections import Connection, HttpServer
from slipway.api.frontend import Frontend
from slipway.api.route import ApiRoute
from slipway.api.routes import state

ATTEMPTS = 10
"""Of a request that is told to come again later."""
LATER = (429, 503)


def batch_paths(app: Starlette) -> tuple[str, ...]:
    """What a line may ask: every route under /v1 that takes a body and answers with JSON."""
    return tuple(
        route.path
        for route in app.routes
        if isinstance(route, ApiRoute) and route.body and route.answer and route.path.startswith("/v1/")
    )


async def post(app: ASGIApp, path: str, body: bytes, request_id: str) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer. Asks again where the application has too much to do."""
    for _ in range(ATTEMPTS - 1):
        status, headers, answer = await _once(app, path, body, request_id)
        if status not in LATER:
            break
        await asyncio.sleep(float(headers.get(b"retry-after", b"1")))
    else:
        status, _, answer = await _once(app, path, body, request_id)
    return status, orjson.loads(answer)


async def _once(
    app: ASGIApp, path: str, body: bytes, request_id: str
) -> tuple[int, dict[bytes, bytes], bytes]:
    asked = False
    status = 500
    headers: dict[bytes, bytes] = {}
    answer = bytearray()

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()  # nobody hangs up
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(message["headers"])
        else:
            answer.extend(message.get("body", b""))

    await app(_scope(path, len(body), request_id), receive, send)
    return status, headers, bytes(answer)


def _scope(path: str, length: int, request_id: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"batch"),
            (b"content-type", b"application/json"),
            (b"content-length", str(length).encode()),
            (b"x-request-id", request_id.encode()),
        ],
        "client": None,
        "server": None,
    }


def state_server(front: Frontend) -> HttpServer:
    """What probes and scrapers may ask, /metrics among it."""
    routes = [route for route in state.routes if route.public]
    app = Starlette(routes=routes, exception_handlers={HTTPException: errors.answer})
    app.state.frontend = front
    return HttpServer(
        uvicorn.Config(
            app,
            loop="none",
            http=Connection,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
