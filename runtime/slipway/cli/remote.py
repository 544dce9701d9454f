"""A running server, as `chat` and `complete` talk to it: OpenAI's API over HTTP, answers as they come."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from slipway.bench.printable import printable

DEFAULT_URL = "http://localhost:8000/v1"
KEY_VARIABLES = ("OPENAI_API_KEY", "VLLM_API_KEY")
KEY_VARIABLES_AT_HOME = ("VLLM_API_KEY",)
"""OpenAI's own key is not for whatever listens on a port of this machine."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""Without a byte of an answer; a busy server lets a question wait. As long as OpenAI's client."""


class ServerError(Exception):
    """What went wrong, in a sentence for the one at the terminal, whatever a server put into it."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class Server:
    """One server. `url` ends in /v1; `key` is sent as a bearer token where there is one.

    Raises ServerError where `url` is none.
    """

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._opener = _opener(self.url)

    def first_model(self) -> str:
        """The first model that the server lists. Raises ServerError."""
        with closing(self._open("/models", None)) as response:
            try:
                listed = _json(response.read())
            except (OSError, HTTPException) as error:
                raise ServerError(f"{self.url}/models broke off: {error}.") from None
        try:
            return str(listed["data"][0]["id"])
        except (LookupError, TypeError):
            raise ServerError(f"{self.url}/models lists no model. Is this an OpenAI API?") from None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The answer's chunks. Raises ServerError, also where the answer breaks off."""
        with closing(self._open(path, {**body, "stream": True})) as response:
            try:
                for line in response:
                    field, _, text = line.decode("utf-8", "replace").strip().partition(":")
                    if field != "data":
                        continue
                    if text.strip() == "[DONE]":
                        return
                    chunk = _json(text)
                    if chunk.get("error"):
                        raise ServerError(_message(chunk) or f"The server broke off with {text.strip()}.")
                    yield chunk
            except TimeoutError:
                raise ServerError(f"The answer broke off: nothing came for {READ_SECONDS:g} s.") from None
            except (OSError, HTTPException) as error:
                raise ServerError(f"The answer broke off: {error}.") from None
        raise ServerError("The answer broke off: the server closed the connection.")

    def _open(self, path: str, body: Mapping[str, Any] | None) -> HTTPResponse:
        sent = None if body is None else json.dumps(body).encode()
        try:
            request = Request(self.url + path, data=sent, headers=self._headers)
            response: HTTPResponse = self._opener.open(request, timeout=CONNECT_SECONDS)
        except HTTPError as error:
            raise ServerError(self._refused(error)) from None
        except URLError as error:
            raise ServerError(self._unreachable(error.reason)) from None
        except TimeoutError:
            raise ServerError(f"{self.url} said nothing for {READ_SECONDS:g} s.") from None
        except (ValueError, OSError, HTTPException) as error:
            raise ServerError(f"{self.url} cannot be used: {str(error).strip()}.") from None
        return response

    def _refused(self, error: HTTPError) -> str:
        message = ""
        with closing(error), suppress(OSError, HTTPException):
            message = _message(_json(error.read()))
        if 300 <= error.code < 400:
            where = error.headers.get("Location", "nowhere")
            return f"The server sends its clients to {where}. If you trust that one, name it with --url."
        if error.code == 401:
            names = " or ".join(key_variables(self.url))
            return f"The server wants another API key: give --api-key or set {names}. {message}".rstrip()
        return f"The server answered {error.code} {error.reason}. {message}".rstrip()

    def _unreachable(self, reason: object) -> str:
        if isinstance(reason, ConnectionRefusedError):
            command = os.environ.get("SLIPWAY_COMMAND", "slipway")
            return (
                f"Nothing listens at {self.url}. Start a server with `{command} demo` or "
                f"`{command} serve MODEL`, or name a running one with --url."
            )
        if isinstance(reason, TimeoutError):
            return f"{self.url} took no connection within {CONNECT_SECONDS:g} s."
        return f"{self.url} cannot be reached: {reason}."


class _Connection(HTTPConnection):
    """Has little time to connect and much to answer."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_SECONDS)


class _TlsConnection(HTTPSConnection):
    """The same."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_SECONDS)


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _Https(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_TlsConnection, req)


class _StayHere(HTTPRedirectHandler):
    """Follows no redirect: it would take the key along."""

    def redirect_request(self, *_: object) -> None:
        return None


def _opener(url: str) -> OpenerDirector:
    """What opens `url`; a proxy of the environment is for other machines than this one."""
    try:
        scheme, at_home = urlsplit(url).scheme, is_at_home(url)
    except ValueError as error:
        raise ServerError(f"--url {url} is no URL: {error}.") from None
    if scheme not in ("http", "https"):
        raise ServerError(f"--url {url} is no URL of a server: it begins with http:// or https://.")
    return build_opener(_Http, _Https, _StayHere, *([ProxyHandler({})] if at_home else []))


def is_at_home(url: str) -> bool:
    """Whether this machine is meant. Raises ValueError for what is no URL."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def key_variables(url: str) -> tuple[str, ...]:
    """Where the key for a server may stand. OpenAI's own is not for whatever listens on this machine."""
    return KEY_VARIABLES_AT_HOME if is_at_home(url) else KEY_VARIABLES


def environments_key(url: str) -> str | None:
    """What the environment has for a server. Raises ServerError where no header can carry it, and
    ValueError for what is no URL."""
    keys = (_checked(os.environ.get(name, ""), name) for name in key_variables(url))
    return next(filter(None, keys), None)


def _checked(key: str, source: str) -> str | None:
    """Without the line's end that files of keys have; None for an empty one. Raises ServerError."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ServerError(
            f"{source} holds no API key: it has characters that no HTTP header takes, such as the end of a "
            "line or a letter with an accent. Copy the key once more."
        )
    return key or None


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help="server, with /v1 (default: %(default)s)")
    parser.add_argument("--model-name", metavar="NAME", help="model (default: the server's first)")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"key to send (default: {' or '.join(KEY_VARIABLES)}; to this machine the latter alone)",
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="0 takes the likeliest token (default: the server's)"
    )


def sampling(arguments: argparse.Namespace) -> dict[str, float]:
    """What the command line says of how tokens are drawn; the server decides the rest."""
    return {} if arguments.temperature is None else {"temperature": arguments.temperature}


def connect(arguments: argparse.Namespace) -> tuple[Server, str]:
    """The server that the command line names, with the key that it or the environment gives, and the
    model to ask for. Raises ServerError."""
    key = _checked(arguments.api_key or "", "--api-key")
    with suppress(ValueError):  # `Server` says what is wrong
        key = key or environments_key(arguments.url)
    server = Server(arguments.url, key)
    return server, arguments.model_name or server.first_model()


def _json(text: str | bytes) -> dict[str, Any]:
    """The object in the text, empty where there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else ""
