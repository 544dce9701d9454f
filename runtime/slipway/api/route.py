"""A path of the API: who may ask, and what the API's document says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import UnionType
from typing import ClassVar

from msgspec import Struct
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slipway.api.protocol.answers import Error

Endpoint = Callable[[Request], Awaitable[Response]]


class ApiRoute(Route):
    """Asks for the key before all else, unless it is `public`.

    `body` is what the endpoint reads, `answer` what it answers, `chunk` each event where that is streamed.

    The guard is the route's, not the path's, so that no path can be spelled around it. Calls its endpoint at
    once: there is nothing to resolve.
    """

    failure: ClassVar[type[Struct]] = Error
    """What it answers where something is wrong."""

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        method: str = "GET",
        *,
        body: type[BaseModel] | None = None,
        answer: type[Struct] | None = None,
        chunk: type[Struct] | UnionType | None = None,
        public: bool = False,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.body = body
        self.answer = answer
        self.chunk = chunk
        self.public = public

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if not self.public:
            await scope["app"].state.guard(request)
        assert self.methods is not None
        if scope["method"] not in self.methods:  # 405, by the framework
            await super().handle(scope, receive, send)
            return
        await self.respond(request, send)

    async def respond(self, request: Request, send: Send) -> None:
        """Run the endpoint and send its answer, to who may ask."""
        response: Response = await self.endpoint(request)
        if warning := getattr(request.state, "warning", ""):
            response.headers["Warning"] = warning
        await response(request.scope, request.receive, send)
