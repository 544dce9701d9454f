"""Seeds of requests that name none."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from itertools import count

Draw = Callable[[], int]
"""Gives an unsigned number of 64 bits: the seed of a request's next prompt."""


def random_seed() -> int:
    return secrets.randbits(64)


class Seeds:
    """Drawn at random; with a seed of the server's a function of it and of the request's place in the order
    of arrival, so that the same requests in the same order are answered alike after every start."""

    def __init__(self, server_seed: int | None, next_arrival: Callable[[], int]) -> None:
        """next_arrival  of how many requests a place was asked before, in all processes of the server"""
        self._server_seed = server_seed
        self._next_arrival = next_arrival

    def of_next_request(self) -> Draw:
        """Called as a request arrives, before threads may overtake one another."""
        if self._server_seed is None:
            return random_seed
        return partial(_mixed, self._server_seed, self._next_arrival(), count())


def _mixed(server_seed: int, request: int, prompts: count[int]) -> int:
    data = struct.pack("<qQQ", server_seed, request, next(prompts))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
