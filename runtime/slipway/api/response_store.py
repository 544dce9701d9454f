"""Responses that clients may ask for again, and go on from."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.api.errors import ApiError

MAX_RESPONSES = 4096
MAX_BYTES = 64 << 20

Turns = tuple[bytes, ...]
"""Messages of a chat, each as JSON. A response shares those of the one that it goes on from."""


@dataclass(frozen=True, slots=True)
class Stored:
    answer: bytes
    turns: Turns
    """The conversation up to it and with it, without its instructions."""

    @property
    def size(self) -> int:
        """Bytes; shared ones count for each."""
        return len(self.answer) + sum(map(len, self.turns))


class ResponseStore:
    """In this process alone, and bounded: what is oldest goes first."""

    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._held: dict[str, Stored] = {}
        self._bytes = 0

    def put(self, response_id: str, stored: Stored) -> None:
        """One that is larger than the whole store goes at once."""
        self.delete(response_id)
        self._held[response_id] = stored
        self._bytes += stored.size
        while len(self._held) > self._max_responses or self._bytes > self._max_bytes:
            self.delete(next(iter(self._held)))

    def get(self, response_id: str) -> Stored | None:
        return self._held.get(response_id)

    def delete(self, response_id: str) -> bool:
        """Whether there was one."""
        stored = self._held.pop(response_id, None)
        if stored is not None:
            self._bytes -= stored.size
        return stored is not None


def not_stored(response_id: str, store: ResponseStore | None, param: str | None = None) -> ApiError:
    """The answer to who asks for a response that is not here."""
    if store is None:
        why = (
            "this server stores no responses; it does where it is started with "
            "VLLM_ENABLE_RESPONSES_API_STORE=1. Without, send the whole conversation as input."
        )
    else:
        why = "it was never stored, or has been deleted or pushed out by newer ones."
    message = f"There is no response {response_id[:80]!r} here: {why}"
    return ApiError(message, status=404, param=param, code="response_not_found")
