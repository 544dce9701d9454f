"""How two processes on different hosts make sure that both have the cluster's key, before either reads more.

Four frames, none longer than a kilobyte: the caller greets, saying what it is and wants; the acceptor
answers with a nonce; the caller proves that it has the key; the acceptor proves it too, and says whether the
caller may stay. A proof is the HMAC-SHA256 of everything said so far and of who proves, so that none fits
another conversation, nor the other side of the same one. Who proves nothing is told nothing but a nonce.

What follows is neither encrypted nor signed: the key keeps strangers out, not who can read or change traffic.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import stat
import time
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import msgspec

from slipway.dist.frames import LENGTH_BYTES, encode_frame, length_of
from slipway.exits import BAD_ARGUMENTS, Exit

log = logging.getLogger("slipway.dist")

MAX_BYTES = 1 << 10
"""Of a frame before both are trusted."""
PATIENCE = 10.0
"""Seconds that a challenge may take from end to end."""
KEY_BYTES = 32
"""Fewest of a key."""
NONCE_BYTES = 32
VERSION = 1
"""Of the challenge itself."""
OTHER_KEY = "--cluster-key-file holds another key there than here, or only one of both has one"

T = TypeVar("T", bound=msgspec.Struct)


class Greeting(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    purpose: str
    """What the connection is for."""
    claim: bytes
    """What the caller says that it is."""
    nonce: bytes


class Nonce(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    nonce: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    code: bytes
    refusal: str = ""
    """Of the acceptor, why a caller that has the key may not stay; its proof covers that."""


class Distrusted(Exception):
    """The other end may not be talked to, and why."""


class Refused(Distrusted):
    """The other end has the key, and will not have this one."""


def read_key(path: str | None) -> bytes:
    """The key in a file, without white space around it; none: without a file. Raises Exit."""
    if path is None:
        return b""
    try:
        key = Path(path).expanduser().read_bytes().strip()
        mode = Path(path).expanduser().stat().st_mode
    except OSError as error:
        raise _bad_key(f"--cluster-key-file {path} cannot be read: {error.strerror}.") from error
    if len(key) < KEY_BYTES:
        raise _bad_key(f"--cluster-key-file {path} holds {len(key)} bytes, fewer than {KEY_BYTES}.")
    if mode & stat.S_IROTH:
        log.warning("--cluster-key-file %s can be read by every user of this host; `chmod 600` it.", path)
    return key


def _bad_key(message: str) -> Exit:
    hint = "`openssl rand -hex 32` makes a key; every node of the server needs the same."
    return Exit(BAD_ARGUMENTS, message, hint, "cluster_key_file")


class Caller:
    """The side that connects."""

    def __init__(self, key: bytes, purpose: str, claim: bytes) -> None:
        self._key = key
        self._has_proved = False
        self._greeting = Greeting(VERSION, purpose, claim, secrets.token_bytes(NONCE_BYTES))

    def challenge(self, connection: socket.socket, patience: float = PATIENCE) -> None:
        """Raises Refused, Distrusted, and OSError where the other end cannot be reached."""
        end = time.monotonic() + patience
        turn = self._turn(connection)
        wanted = next(turn)
        try:
            while True:
                wanted = turn.send(_received(connection, wanted, end))
        except StopIteration:
            connection.settimeout(None)
        except ConnectionError as error:
            if self._has_proved:
                raise Distrusted(f"it hung up on this end's proof: {OTHER_KEY}") from error
            raise

    def _turn(self, connection: socket.socket) -> Generator[int, bytes, None]:
        connection.sendall(encode_frame(self._greeting, MAX_BYTES))
        nonce = _nonce((yield from _frame(Nonce)).nonce)
        code = _code(self._key, "caller", self._greeting, nonce)
        connection.sendall(encode_frame(Proof(code), MAX_BYTES))
        self._has_proved = True
        proof = yield from _frame(Proof)
        expected = _code(self._key, "acceptor", self._greeting, nonce, proof.refusal)
        if not hmac.compare_digest(proof.code, expected):
            raise Distrusted(f"its proof is wrong: {OTHER_KEY}")
        if proof.refusal:
            raise Refused(proof.refusal)


class Acceptor:
    """The side that listens, of one connection. That may be one that never waits: what is sent fits in."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def proven(self, connection: socket.socket) -> Generator[int, bytes, Greeting]:
        """Asks for so many bytes and is sent them, until the caller has proved that it has the key.

        Raises Distrusted.
        """
        greeting = yield from _frame(Greeting)
        if greeting.version != VERSION:
            raise Distrusted(f"it speaks version {greeting.version} of the challenge, this end {VERSION}")
        _nonce(greeting.nonce)
        connection.sendall(encode_frame(Nonce(self._nonce), MAX_BYTES))
        proof = yield from _frame(Proof)
        if not hmac.compare_digest(proof.code, _code(self._key, "caller", greeting, self._nonce)):
            raise Distrusted(f"its proof is wrong: {OTHER_KEY}")
        return greeting

    def answer(self, connection: socket.socket, greeting: Greeting, refusal: str = "") -> None:
        """Prove it to the caller, too, who stays where there is no refusal."""
        code = _code(self._key, "acceptor", greeting, self._nonce, refusal)
        connection.sendall(encode_frame(Proof(code, refusal), MAX_BYTES))


def _code(key: bytes, who: str, greeting: Greeting, nonce: bytes, refusal: str = "") -> bytes:
    return hmac.digest(key, msgspec.msgpack.encode(("slipway", who, greeting, nonce, refusal)), "sha256")


def _nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise Distrusted(f"its nonce has {len(nonce)} bytes and not {NONCE_BYTES}")
    return nonce


def _frame(kind: type[T]) -> Generator[int, bytes, T]:
    """No byte behind it is read: that belongs to whoever reads next."""
    try:
        length = length_of((yield LENGTH_BYTES), MAX_BYTES)
        return msgspec.msgpack.decode((yield length), type=kind)
    except (ValueError, msgspec.DecodeError) as error:
        raise Distrusted(f"it speaks otherwise: {error}") from error


def _received(connection: socket.socket, count: int, end: float) -> bytes:
    received = b""
    while len(received) < count:
        if (left := end - time.monotonic()) <= 0:
            raise Distrusted("it is too slow")
        connection.settimeout(left)
        try:
            chunk = connection.recv(count - len(received))
        except TimeoutError as error:
            raise Distrusted("it is too slow") from error
        if not chunk:
            raise ConnectionResetError("it hung up in the midst of the challenge")
        received += chunk
    return received
