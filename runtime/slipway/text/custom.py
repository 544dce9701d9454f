"""Tokenizers of other Python code, for `--tokenizer-mode custom`: plugins register them by name."""

from __future__ import annotations

from collections.abc import Callable

from slipway.text.tokenizer import Tokenizer

Read = Callable[[str], Tokenizer]
"""Of the model's name or path, as the server was given it."""

_registered: dict[str, Read] = {}
"""Of this process: a plugin runs in each that tokenizes."""


def register(name: str, read: Read) -> None:
    """Have `--tokenizer NAME --tokenizer-mode custom` read a tokenizer so.

    read  makes the `Tokenizer` of a `Vocabulary`, whose tokens tell their bytes: streams, stop strings,
          log-probabilities and grammars are made of these. It is called once in each process; ValueError
          says in a sentence why there is none.
    Raises ValueError where the name is another's.
    """
    if _registered.setdefault(name, read) is not read:
        raise ValueError(f"There are two tokenizers named {name}: register one of them under another name.")


def load(name: str, model: str) -> Tokenizer:
    """The tokenizer that was registered under that name. Raises ValueError in a sentence."""
    read = _registered.get(name)
    if read is None:
        known = ", ".join(sorted(_registered)) or "none"
        raise ValueError(
            f"No tokenizer is registered as {name}; there are: {known}. A plugin registers one "
            "by slipway.text.custom.register: name it in VLLM_PLUGINS, and the tokenizer with --tokenizer."
        )
    try:
        tokenizer = read(model)
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"The tokenizer {name} of {model} cannot be made: {reason}") from error
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"The tokenizer {name} is a {type(tokenizer).__name__}, and has to be a "
            "slipway.text.tokenizer.Tokenizer: give that a Vocabulary over yours."
        )
    return tokenizer
