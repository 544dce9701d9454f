"""The header of a GGUF file is read lazily, without heavy imports, and never trusted."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.load.errors import LoadError
from slipway.load.gguf.header import StringArray, read


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("header") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_float64("test.float64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_int8("test.int8", -7)
    writer.add_string("test.text", "naïve ☃")
    writer.add_array("test.strings", ["a", "", "ß"])
    writer.add_array("test.numbers", [1, 2, -3])
    writer.add_array("test.flags", [True, False])
    writer.add_array("test.nested", [["x"], ["y", "z"]])
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("output_norm.weight", np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def build(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    data: bytes = b"\0" * 256,
) -> bytes:
    keys, tensors = keys or [], tensors or []
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + b"\0" * (-len(header) % 32) + data


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, dimensions: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def test_every_kind_of_value_is_read(small: Path) -> None:
    header = read(small)
    assert header.architecture == "llama"
    assert header.get("block_count") == 3
    values = {key[5:]: value for key, value in header.metadata.items() if key.startswith("test.")}
    assert values["float64"] == 0.1
    assert values["bool"] is True
    assert values["int8"] == -7
    assert values["text"] == "naïve ☃"
    assert isinstance(values["strings"], StringArray)
    assert list(values["strings"]) == ["a", "", "ß"]
    assert values["strings"][-1] == "ß"
    assert len(values["strings"]) == 3
    assert list(values["numbers"]) == [1, 2, -3]  # type: ignore[call-overload]
    assert values["flags"] == [True, False]
    assert [list(inner) for inner in values["nested"]] == [["x"], ["y", "z"]]  # type: ignore[attr-defined]


def test_the_tensor_table_gives_the_bytes(small: Path) -> None:
    entry = read(small).tensors["token_embd.weight"]
    assert entry.shape == (3, 4)
    raw = small.read_bytes()[entry.offset : entry.offset + entry.nbytes]
    assert np.frombuffer(raw, np.float32).tolist() == list(range(12))


@pytest.mark.slow
def test_it_agrees_with_the_reference_reader_on_the_demo_model(demo_model: Path) -> None:
    header, reader = read(demo_model), gguf.GGUFReader(demo_model)
    assert {
        name: (entry.offset, entry.nbytes, entry.type.name) for name, entry in header.tensors.items()
    } == {
        tensor.name: (tensor.data_offset, tensor.n_bytes, tensor.tensor_type.name)
        for tensor in reader.tensors
    }
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert list(tokens) == reader.fields["tokenizer.ggml.tokens"].contents()  # type: ignore[call-overload]
    types = header.metadata["tokenizer.ggml.token_type"]
    assert list(types) == reader.fields["tokenizer.ggml.token_type"].contents()  # type: ignore[call-overload]


def test_reading_it_imports_neither_torch_nor_numpy(small: Path) -> None:
    code = (
        "import sys, pathlib, slipway.load.gguf.header as header, slipway.load.gguf.config\n"
        "import slipway.load.demo, slipway.load.hub\n"
        "header.read(pathlib.Path(sys.argv[1]))\n"
        "print({'torch', 'numpy', 'transformers'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code, small], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


HUGE = 2**62
BAD = {
    "begins with": (b"GGML" + b"\0" * 60, "does not begin with 'GGUF'"),
    "empty": (b"", "empty"),
    "truncated at once": (b"GGUF\3\0", "its header goes on"),
    "version 1": (build(version=1), "version is 1"),
    "big-endian": (build(version=3 << 24), "big-endian"),
    "huge key count": (build(num_keys=HUGE), f"claims {HUGE} metadata keys"),
    "huge tensor count": (build(num_tensors=HUGE), f"claims {HUGE} tensors"),
    "huge string": (build(keys=[text("k") + struct.pack("<IQ", 8, HUGE)]), "its header goes on"),
    "huge array": (build(keys=[text("k") + struct.pack("<IIQ", 9, 4, HUGE)]), "its header goes on"),
    "huge string array": (
        build(keys=[text("k") + struct.pack("<IIQ", 9, 8, HUGE)]),
        f"claims {HUGE} strings",
    ),
    "string array with a huge string": (
        build(keys=[text("k") + struct.pack("<IIQQ", 9, 8, 2, HUGE)]),
        "ends before its header does",
    ),
    "nested too deep": (
        build(keys=[text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9]),
        "nested more than 4 deep",
    ),
    "unknown value type": (build(keys=[text("k") + struct.pack("<I", 77)]), "unknown type 77"),
    "key twice": (build(keys=[text("k") + struct.pack("<IB", 0, 1)] * 2), "'k' occurs twice"),
    "odd alignment": (
        build(keys=[text("general.alignment") + struct.pack("<II", 4, 48)]),
        "general.alignment is 48",
    ),
    "unknown tensor type": (build(tensors=[tensor("t", (4,), kind=4)]), "unknown type number 4"),
    "no dimension": (build(tensors=[tensor("t", ())]), "0 dimensions"),
    "nine dimensions": (build(tensors=[tensor("t", (1,) * 9)]), "9 dimensions"),
    "zero rows": (build(tensors=[tensor("t", (4, 0))]), r"shape \(4, 0\)"),
    "part of a block": (build(tensors=[tensor("t", (33,), kind=2)]), "impossible for Q4_0"),
    "beyond the file": (build(tensors=[tensor("t", (65,))]), "of a file of"),
    "overflowing shape": (build(tensors=[tensor("t", (HUGE, HUGE, HUGE, 4))]), "of a file of"),
    "offset beyond the file": (build(tensors=[tensor("t", (4,), offset=HUGE)]), "of a file of"),
    "unaligned": (build(tensors=[tensor("t", (4,), offset=8)]), "not aligned to 32"),
    "tensor twice": (
        build(tensors=[tensor("t", (4,)), tensor("t", (4,), offset=32)]),
        "'t' occurs twice",
    ),
    "overlapping": (
        build(tensors=[tensor("a", (16,)), tensor("b", (4,), offset=32)]),
        "tensors a and b overlap",
    ),
    "a part that is not named so": (
        build(keys=[text("split.count") + struct.pack("<IH", 2, 2)]),
        "one of 2 parts and not named",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_file_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    content, reason = BAD[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=reason) as raised:
        read(path)
    assert raised.value.code in ("BadCheckpoint", "UnsupportedFormat")
    assert str(path) in raised.value.message


@given(data=st.data())
@settings(max_examples=300)
def test_damaged_bytes_never_raise_anything_else(
    data: st.DataObject, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        header = read(path)
    except LoadError:
        return
    assert all(entry.offset + entry.nbytes <= path.stat().st_size for entry in header.tensors.values())
