"""Frames between processes: a 4-byte big-endian length, then one msgspec message, of no more than a limit."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 256 << 20
"""Where nothing else is said."""
_encoder = msgspec.msgpack.Encoder()


class FrameTooLarge(ValueError):
    """A message that no frame holds. What it is about is at fault, and not who sends it."""


def encode_frame(message: object, most: int | None = None) -> bytes:
    """most: bytes of the message. Raises FrameTooLarge."""
    body = _encoder.encode(message)
    if len(body) > (most := most or MAX_FRAME_BYTES):
        raise FrameTooLarge(
            f"what one process would tell another has {len(body)} bytes, over the limit of {most}"
        )
    return len(body).to_bytes(LENGTH_BYTES) + body


def length_of(head: bytes | bytearray, most: int) -> int:
    """Bytes of the message whose frame begins so. Raises ValueError for more than `most`."""
    if (length := int.from_bytes(head)) > most:
        raise ValueError(f"a frame of {length} bytes is over the limit of {most}")
    return length


def split_frames(buffer: bytearray, most: int | None = None) -> Iterator[bytes]:
    """Take the whole frames off the front of `buffer`. Raises ValueError for one of over `most` bytes."""
    start, most = 0, most or MAX_FRAME_BYTES
    while len(buffer) - start >= LENGTH_BYTES:
        end = start + LENGTH_BYTES
        length = length_of(buffer[start:end], most)
        if len(buffer) - end < length:
            break
        yield bytes(buffer[end : end + length])
        start = end + length
    del buffer[:start]
