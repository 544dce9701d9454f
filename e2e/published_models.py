"""Models on GPUs of which documents of others tell, and what these GPUs cannot hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tests" / "fit" / "published"
PUBLISHED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
LONG = 2 << 20
"""Tokens of a context that none of them holds."""


def engine_of(document: dict[str, Any]) -> dict[str, Any]:
    """Its arguments by their names in the schema."""
    words = document["arguments"]
    pairs = zip(words[::2], words[1::2], strict=True)
    return {flag.removeprefix("--").replace("-", "_"): json.loads(value) for flag, value in pairs}


def beyond(document: dict[str, Any]) -> dict[str, Any]:
    """The same with half as many devices where these are too few, else with a context that is too long."""
    engine = engine_of(document)
    size = engine.get("tensor_parallel_size", 1)
    if size > 1 and "8B" not in document["model"]:
        return {**engine, "tensor_parallel_size": size // 2}
    return {**engine, "max_model_len": LONG, "hf_overrides": {"max_position_embeddings": LONG}}


def words_of(engine: dict[str, Any]) -> list[str]:
    """The command line of arguments by their names."""
    return [
        word
        for name, value in engine.items()
        for word in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value))
    ]
