"""What is asked of a server before it is measured: which models it has, and how many tokens a text is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from slipway.bench.forms import message_of
from slipway.bench.http import Address, merged, reason_of
from slipway.bench.printable import printable

PATIENCE = 60
"""Seconds for an answer."""
AGAIN = 0.2
"""Seconds between two attempts at a server that does not answer yet."""

NOT_READY = (502, 503, 504)
"""Statuses of a server that comes up, and of a proxy whose server does."""


class ServerError(Exception):
    """Why the measurement cannot begin, in a sentence, whatever the server put into it."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class Server:
    """One connection, for one question after the other."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        kind = HTTPSConnection if address.tls else HTTPConnection
        self._connection = kind(address.host, address.port, timeout=PATIENCE)
        self._address = address
        self._headers = merged({"Content-Type": "application/json"}, headers)

    def models(self, ready_within: float = 0) -> list[str]:
        """The models that it lists; none where it has no such list.

        Raises ServerError where it is not ready within so many seconds, or refuses the key.
        """
        end = time.monotonic() + ready_within
        while True:
            try:
                status, listed = self._ask("GET", "/v1/models")
                if status in NOT_READY:
                    raise ServerError(
                        f"The server is not ready: {self._address}/v1/models answered {status}."
                    )
                break
            except ServerError:
                if time.monotonic() >= end:
                    raise
            time.sleep(AGAIN)
        if status in (401, 403):
            raise ServerError(
                f"The server refuses the API key, or that there is none ({status}). Set VLLM_API_KEY, or for "
                f"another machine than this OPENAI_API_KEY. {message_of(listed)}".rstrip()
            )
        entries = listed.get("data") if isinstance(listed, dict) else None
        return [str(entry["id"]) for entry in entries or () if isinstance(entry, dict) and "id" in entry]

    def count(self, text: str, model: str) -> int:
        """Tokens of a text, as the server's /tokenize tells. Raises ServerError where it has none."""
        status, told = self._ask("POST", "/tokenize", {"model": model, "prompt": text})
        count = told.get("count") if isinstance(told, dict) else None
        if status != 200 or not isinstance(count, int):
            raise ServerError(
                f"The server counts no tokens: {self._address}/tokenize answered {status}. Name the model's "
                "tokenizer with --tokenizer."
            )
        return count

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status, and the JSON of the answer or None.

        Once more over a new connection, where the server has closed an old one that nobody used.
        """
        sent = None if body is None else json.dumps(body).encode()
        while True:
            used = self._connection.sock is not None
            try:
                self._connection.request(method, self._address.prefix + path, sent, self._headers)
                answer = self._connection.getresponse()
                text = answer.read()
                break
            except (OSError, HTTPException) as error:
                self._connection.close()
                if used and isinstance(error, ConnectionError):
                    continue
                said = reason_of(error) if isinstance(error, OSError) else error
                raise ServerError(f"{self._address} cannot be reached: {said}.") from None
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, None
