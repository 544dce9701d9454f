"""Tokens of a text by a tokenizer on this machine; it is read when the first text comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from slipway.args import ArgumentError

Encode = Callable[[str], list[int]]


def named(name: str) -> Encode:
    """By the tokenizer that `--tokenizer` names. Raises ArgumentError where there is none."""
    return _lazy("--tokenizer", name, {})


def of_model(arguments: Mapping[str, Any]) -> Encode:
    """By the tokenizer that the engine's arguments name. Raises ArgumentError where there is none."""
    settings = {
        "tokenizer": arguments["tokenizer"],
        "mode": arguments["tokenizer_mode"],
        "revision": arguments["revision"],
        "tokenizer_revision": arguments["tokenizer_revision"],
        "download_dir": arguments["download_dir"],
        "token": arguments["hf_token"] if isinstance(arguments["hf_token"], str) else None,
    }
    return _lazy("The tokenizer of", arguments["model"], settings)


def _lazy(what: str, name: str, settings: Mapping[str, Any]) -> Encode:
    @cache
    def encode() -> Encode:
        from slipway.load.errors import LoadError
        from slipway.text.open import load

        try:
            return load(name, **settings).encode
        except (ValueError, LoadError) as error:
            raise ArgumentError(f"{what} {name} cannot be used: {error}", "tokenizer") from None

    return lambda text: encode()(text)
