"""The tokenizer of a model folder, as transformers' fast tokenizers read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from slipway.text.fast import FastVocabulary
from slipway.text.tokenizer import Tokenizer, Vocabulary

_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_NO_LIMIT = 10**15
"""A larger `model_max_length` is transformers' way to say that there is none."""


def load(folder: Path, *, slow: bool = False) -> Tokenizer:
    """Read `tokenizer.json`, or `tokenizer.model` where `slow` asks for it or nothing else is there.

    Raises ValueError where the folder has neither or a file cannot be read.
    """
    config = _read_json(folder / "tokenizer_config.json")
    config = _read_json(folder / "special_tokens_map.json") | config
    special = special_tokens(config)
    warnings: list[str] = []
    spm = folder / "tokenizer.model"
    fast = folder / "tokenizer.json"
    if slow and not spm.is_file():
        warnings.append(
            f"--tokenizer-mode slow has no effect: {folder} has no tokenizer.model, "
            "so tokenizer.json is used."
        )
    if spm.is_file() and (slow or not fast.is_file()):
        from slipway.text.sentencepiece import SentencePieceVocabulary

        pieces = SentencePieceVocabulary.load(spm, config)
        vocabulary: Vocabulary = pieces
        special = pieces.special_tokens | special
    elif fast.is_file():
        vocabulary = FastVocabulary(_with_added_tokens(_read_fast(fast), config, special))
    else:
        raise ValueError(_what_is_missing(folder))
    limit = config.get("model_max_length")
    return Tokenizer(
        vocabulary,
        special_tokens=special,
        chat_templates=chat_templates(folder, config),
        max_length=int(limit) if isinstance(limit, int | float) and limit < _NO_LIMIT else None,
        configuration=config,
        warnings=warnings,
        lower_case=_read_json(folder / "sentence_bert_config.json").get("do_lower_case") is True,
    )


def special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The named special tokens of a tokenizer_config.json, by the names that templates use."""
    return {name: _content(config[name]) for name in _NAMES if config.get(name)}


def chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """All templates of a folder; files of their own go before `chat_template` in the configuration."""
    declared = config.get("chat_template") or {}
    if isinstance(declared, str):
        declared = {"default": declared}
    elif isinstance(declared, list):
        declared = {entry["name"]: entry["template"] for entry in declared}
    templates: dict[str, str] = dict(declared)
    in_json = _read_json(folder / "chat_template.json").get("chat_template")
    if in_json:
        templates["default"] = in_json
    own = folder / "chat_template.jinja"
    if own.is_file():
        templates["default"] = own.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def _what_is_missing(folder: Path) -> str:
    weights = sorted(path.name for path in folder.glob("*.gguf"))
    if weights:
        return f"{folder} holds GGUF files ({', '.join(weights)}): give the path of one of them."
    return (
        f"{folder} has neither tokenizer.json nor tokenizer.model. "
        "Name a folder or hub model that has one with --tokenizer."
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}. Fetch the file again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, not a JSON object. Fetch it again.")
    return content


def _read_fast(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(
            f"{path} cannot be read as a tokenizer: {error}. Fetch the file again, "
            "or upgrade the `tokenizers` package if a newer one wrote it."
        ) from error


def _with_added_tokens(
    tokenizer: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]
) -> tokenizers.Tokenizer:
    """Add what the configuration knows and tokenizer.json does not, in the order of the ids."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda entry: int(entry[0])):
        if token["content"] not in known:
            tokenizer.add_tokens([_added_token(token)])
            known.add(token["content"])
    extra = [
        *special.values(),
        *(_content(token) for token in _listed(config.get("additional_special_tokens"))),
        *(_content(token) for token in _listed(config.get("extra_special_tokens"))),
    ]
    tokenizer.add_special_tokens([token for token in extra if token not in known])
    return tokenizer


def _added_token(token: dict[str, Any]) -> tokenizers.AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return tokenizers.AddedToken(token["content"], **{f: token[f] for f in flags if f in token})


def _listed(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value or [])


def _content(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else str(token)
