"""Files of `prompt_embeds`, made without torch. Invalid ones are refused before they reach the engine."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from slipway.api import prompt_embeds
from slipway.api.errors import ApiError
from slipway.api.prompt_embeds import rows_of

HIDDEN = 64
ROWS = np.zeros((2, HIDDEN), np.float32)


def text(file: bytes) -> str:
    return base64.b64encode(file).decode()


def table(**entry: Any) -> bytes:
    """A safetensors file of a table that may lie, with the bytes of two embeddings."""
    given = {"dtype": "F32", "shape": [2, HIDDEN], "data_offsets": [0, 8 * HIDDEN], **entry}
    words = json.dumps({"x": given}).encode()
    return struct.pack("<Q", len(words)) + words + bytes(8 * HIDDEN)


def number(value: int) -> bytes:
    """Its opcode in a pickle."""
    return b"J" + struct.pack("<i", value)


def archived(program: bytes, numbers: int = 2 * HIDDEN, entries: int = 0) -> bytes:
    """A file like torch.save's with this pickle, so many float32 zeros and so many empty records."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, record in (("data.pkl", program), ("data/0", bytes(4 * numbers)), ("version", b"3")):
            archive.writestr(f"archive/{name}", record)
        for entry in range(entries):
            archive.writestr(f"archive/{entry}", b"")
    return out.getvalue()


def rebuilt(
    count: int = 2 * HIDDEN,
    shape: bytes = number(2) + number(HIDDEN) + b"\x86",
    strides: bytes = number(HIDDEN) + number(1) + b"\x86",
    offset: int = 0,
    kind: bytes = b"ctorch\nFloatStorage\n",
    key: bytes = b"X\x01\0\0\x000",
) -> bytes:
    """The pickle of a tensor. With the default arguments it is what torch.save writes."""
    storage = b"(X\x07\0\0\0storage" + kind + key + b"X\x03\0\0\0cpu" + number(count) + b"tQ"
    rest = number(offset) + shape + strides + b"\x89ccollections\nOrderedDict\n)RtR."
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest


DEEP = b")" + b"q\x00h\x00\x86" * 64
"""A tuple of pairs, 64 levels deep. Its hash and its text take 2^64 steps."""
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing of the kind": (b"hello, this is no tensor", "is neither a safetensors file"),
    "too short": (b"abc", "is neither a safetensors file"),
    "a table of lies about its length": (struct.pack("<Q", 1 << 60) + b"{}", "is neither a safetensors file"),
    "two tensors": (save({"a": ROWS, "b": ROWS + 1}), "is no safetensors file of one tensor"),
    "integers": (save({"a": np.zeros((2, HIDDEN), np.int32)}), "holds I32"),
    "a type that is none": (table(dtype=["F32"]), r"holds \['F32'\]"),
    "one dimension": (save({"a": ROWS[0]}), r"has the shape \[64\]"),
    "dimensions without end": (table(shape=[2, HIDDEN, *[1] * 9999]), "whose shape is not that of its bytes"),
    "another width": (
        save({"a": np.zeros((2, 63), np.float32)}),
        r"has the shape \[2, 63\], and must be \[tokens, 64\]",
    ),
    "no tokens": (save({"a": ROWS[:0]}), r"has the shape \[0, 64\]"),
    "more shape than bytes": (table(shape=[1 << 20, HIDDEN]), "whose shape is not that of its bytes"),
    "a shape of no numbers": (table(shape=[True, HIDDEN]), "whose shape is not that of its bytes"),
    "a negative shape": (table(shape=[-2, -HIDDEN]), "whose shape is not that of its bytes"),
    "offsets beyond the end": (table(data_offsets=[0, 1 << 40]), "whose shape is not that of its bytes"),
    "a table that is a list": (struct.pack("<Q", 2) + b"[]", "is no safetensors file of one tensor"),
    "no number": (save({"a": ROWS * np.float32(np.nan)}), "infinite, or none"),
    "a number": (archived(b"\x80\x02K\x01."), "holds something else and not one dense tensor"),
    "memory": (
        archived(b"\x80\x02cbuiltins\nbytearray\n\x8a\x06" + (1 << 44).to_bytes(6, "little") + b"\x85R."),
        "holds what calls builtins.bytearray",
    ),
    "a key of a table that is hashed for years": (archived(b"\x80\x02}" + DEEP + b"Ns."), "needs EMPTY_DICT"),
    "a type that is hashed for years": (archived(rebuilt(kind=DEEP)), "is no whole file of torch.save"),
    "a key that is written for years": (archived(rebuilt(key=DEEP)), "is no whole file of torch.save"),
    "a shape that is no shape": (archived(rebuilt(shape=DEEP)), "is no whole file of torch.save"),
    "a program without an end": (archived(b"\x80\x02" + b"K\x01" * 4000), "holds a pickle of 8002 bytes"),
    "a broken program": (archived(rebuilt()[:40] + b"."), "is no whole file of torch.save"),
    "more numbers than bytes": (
        archived(rebuilt(4 * HIDDEN, number(4) + number(HIDDEN) + b"\x86")),
        "whose shape is not that of its bytes",
    ),
    "fewer numbers than bytes": (archived(rebuilt(), 3 * HIDDEN), "whose shape is not that of its bytes"),
    "a tensor larger than its storage": (archived(rebuilt(HIDDEN)), "is a view of other numbers"),
    "an offset": (archived(rebuilt(offset=1)), "is a view of other numbers"),
    "strides of one dimension": (
        archived(rebuilt(strides=number(1) + b"\x85")),
        "is a view of other numbers",
    ),
    "a record of another name": (archived(rebuilt(key=b"X\x01\0\0\x001")), "is no whole file of torch.save"),
    "entries without end": (archived(rebuilt(), entries=1000), "is no whole file of torch.save"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_prompt_is_refused_with_the_reason(case: str) -> None:
    file, message = REFUSED[case]
    with pytest.raises(ApiError, match=message) as raised:
        rows_of(text(file), HIDDEN, "prompt_embeds")
    assert raised.value.param == "prompt_embeds"


def test_a_program_that_does_not_lie_is_read() -> None:
    """Which the cases above change in one thing each."""
    assert rows_of(text(archived(rebuilt())), HIDDEN, "x") == bytes(8 * HIDDEN)


@pytest.mark.parametrize("given", ["€", "ab!d", "abcde"])
def test_what_is_not_base64_is_refused(given: str) -> None:
    with pytest.raises(ApiError, match="is not base64"):
        rows_of(given, HIDDEN, "prompt_embeds")


def test_base64_is_decoded_in_parts_that_end_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_embeds, "_DECODED_AT_ONCE", 64)
    rows = np.random.default_rng(0).standard_normal((3, HIDDEN), np.float32)
    given = text(save({"x": rows}))
    assert rows_of(given, HIDDEN, "x") == rows.tobytes()
    for place in (62, 63, 126, 127):
        broken = f"{given[:place]}{'=' * (2 - place % 2)}{given[place + 2 - place % 2 :]}"
        with pytest.raises(ApiError, match="is not base64"):
            rows_of(broken, HIDDEN, "x")
