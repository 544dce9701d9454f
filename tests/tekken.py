"""Makes a small tokenizer of Mistral's own kind: every byte, some words, and special tokens in front."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

WORDS = (
    *(b"th", b"he", b" t", b" th", b" the", b"in", b"ing", b"  "),
    *(b"\xc3\xa9", b"\xe2\x82", b"\xe2\x82\xac"),
)
SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
NUM_SPECIAL = 24
SIZE = NUM_SPECIAL + 256 + len(set(WORDS))


def write_tekken(folder: Path, version: str = "v7", size: int = SIZE) -> Path:
    """Writes tekken.json of `size` tokens into a folder, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [bytes([byte]) for byte in range(256)] + sorted(set(WORDS), key=lambda word: (len(word), word))
    words += [b"zz%d" % number for number in range(size - NUM_SPECIAL - len(words))]
    vocabulary: list[dict[str, Any]] = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate(words)
    ]
    special = [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(SPECIAL)]
    config = {
        "pattern": r"\p{L}+| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
        "num_vocab_tokens": len(words),
        "default_vocab_size": size,
        "default_num_special_tokens": NUM_SPECIAL,
        "version": version,
    }
    made = {"config": config, "vocab": vocabulary, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(made))
    return folder
