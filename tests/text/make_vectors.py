"""Writes `vectors/llama_cpp.json`: what llama.cpp makes of `texts.py` and of the standard library's sources.

    python tests/text/make_vectors.py MODEL.gguf

Needs the package `cyllama`, which carries llama.cpp. The model's vocabulary is tried with several
pre-tokenizers: the name in a copy of the file is changed, and another string gives or takes the bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from texts import texts

_NAMES = """
    smollm default gpt-2 llama-bpe dbrx qwen2 qwen35 gpt-4o tekken deepseek-v3 falcon bloom viking bailingmoe
    seed-coder
"""
PRE_TOKENIZERS = _NAMES.split()
SPARE = b"Smollm2 135M 8k Lc100K Mix1 Ep2"
"""The value of general.name in the model, which no tokenizer reads."""
FILES = 60


def digest(ids: list[int]) -> list[int | str]:
    """[number of ids, start of the SHA-256 of their little-endian 32-bit form]."""
    packed = struct.pack(f"<{len(ids)}I", *ids)
    return [len(ids), hashlib.sha256(packed).hexdigest()[:24]]


def library_files() -> list[Path]:
    """The same standard-library files for one version of Python: the first by name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return sorted(folder.glob("[a-z]*.py"))[:FILES]


def renamed(model: bytes, pre: bytes) -> bytes:
    """The file with another pre-tokenizer name, tensors where they were."""
    grown = len(pre) - len(b"smollm")
    spare = SPARE[:-grown] if grown > 0 else SPARE + b"x" * -grown
    for old, new in ((b"smollm", pre), (SPARE, spare)):
        packed = struct.pack("<Q", len(old)) + old
        key = b"tokenizer.ggml.pre" if old == b"smollm" else b"general.name"
        start = model.index(key) + len(key) + 4  # behind the type of the value
        assert model[start : start + len(packed)] == packed
        model = model[:start] + struct.pack("<Q", len(new)) + new + model[start + len(packed) :]
    return model


def main() -> None:
    from cyllama.llama import llama_cpp

    model = Path(sys.argv[1]).read_bytes()
    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    vectors: dict[str, Any] = {"texts": {}, "library": {"python": version, "files": {}}}
    for pre in PRE_TOKENIZERS:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(renamed(model, pre.encode()))
            file.flush()
            loaded = llama_cpp.LlamaModel(file.name, llama_cpp.LlamaModelParams())
            vocabulary = loaded.get_vocab()  # lives as long as `loaded` does
            ids = {name: list(vocabulary.tokenize(text, False, True)) for name, text in texts()}
            vectors["texts"][pre] = {name: digest(tokens) for name, tokens in ids.items()}
            if pre == "smollm":
                for path in library_files():
                    tokens = list(vocabulary.tokenize(path.read_text("utf-8"), False, True))
                    vectors["library"]["files"][path.name] = digest(tokens)
    target = Path(__file__).parent / "vectors" / "llama_cpp.json"
    one_line = re.sub(r'\[\s+(\d+),\s+"(\w+)"\s+\]', r'[\1, "\2"]', json.dumps(vectors, indent=1))
    target.write_text(one_line + "\n")
    print(target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
