"""The outermost layer: request ids, connections that close with the server, and the last resort."""

from __future__ import annotations

import logging
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipway.api.admission import Admission
from slipway.api.errors import ApiError, error_response
from slipway.api.frontend import clean_id

logger = logging.getLogger("slipway.api")


class Edge:
    """Wraps the application. An exception that nothing inside expected becomes a 500 with an id that
    the log has too."""

    def __init__(self, app: ASGIApp, admission: Admission, root_path: str, request_id_header: bool) -> None:
        self._app = app
        self._admission = admission
        self._root_path = root_path
        self._request_id_header = request_id_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["root_path"] = self._root_path  # routes match with the prefix and without
        request_id = clean_id(Headers(scope=scope).get("x-request-id")) or uuid.uuid4().hex
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                if self._request_id_header:
                    headers["X-Request-Id"] = request_id
                if self._admission.leaving:
                    headers["Connection"] = "close"
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            logger.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
            if started:
                raise
            message = f"The server failed on this request; its log says more under {request_id}."
            error = ApiError(message, status=500, code="internal_error")
            await error_response(error)(scope, receive, send_with_headers)
