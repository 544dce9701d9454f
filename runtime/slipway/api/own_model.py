"""The model as requests to an adapter meet it that has tokens, a tokenizer or a context of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slipway.api.configure import Settings
from slipway.api.texts import Texts, texts_of
from slipway.engine.messages import Ready
from slipway.exits import Exit
from slipway.load.errors import LoadError
from slipway.load.folder import read_json
from slipway.text.open import load
from slipway.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OwnModel:
    """What is not as the model alone has it."""

    texts: Texts
    max_model_len: int
    added: int = 0
    """Tokens behind the model's vocabulary."""
    same_tokens: bool = True
    """Its tokenizer has the model's tokens, and no other."""


def own_model(name: str, folder: Path, texts: Texts, ready: Ready, settings: Settings) -> OwnModel | None:
    """None: all is as the model has it. Reads files. Raises LoadError where they are unfit.

    texts, ready  of the model alone
    """
    from slipway.load.own_tokens import sizes_of  # imports numpy

    sizes = sizes_of(folder, ready.vocab_size)
    length = ready.max_model_len
    if sizes.context_length:
        length = min(max(length, ready.max_stretched_len), sizes.context_length)
    tokenizer = None
    if texts.tokenizer is not None:
        try:
            tokenizer = _tokenizer(folder, texts.tokenizer)
            own = None if tokenizer is None else texts_of(settings, tokenizer, texts.defaults, _eos(texts))
        except ValueError as error:
            raise _unfit(name, folder, f"has a tokenizer that cannot be read: {error}") from None
        except Exit as error:
            raise _unfit(name, folder, f"has a tokenizer that does not fit this server: {error}") from None
        if own is not None and own.template is None and texts.tokenizer.chat is None:
            own = replace(own, template=texts.template)
    if tokenizer is None or own is None:
        plain = length == ready.max_model_len and not sizes.added
        return None if plain else OwnModel(texts, length, sizes.added, not sizes.added)
    same = texts.tokenizer is not None and tokenizer.names_alike(texts.tokenizer)
    return OwnModel(own, length, sizes.added, same and not sizes.added)


def _tokenizer(folder: Path, of_model: Tokenizer) -> Tokenizer | None:
    """The folder's own, else the model's with `added_tokens.json`; None: there is neither."""
    if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return load(folder)
    if not (folder / "added_tokens.json").is_file():
        return None
    added: Mapping[str, object] = read_json(folder / "added_tokens.json")
    ids = {token: number for token, number in added.items() if isinstance(number, int)}
    if len(ids) < len(added):
        raise ValueError("added_tokens.json holds more than ids by token")
    return of_model.extended(ids)


def _eos(texts: Texts) -> tuple[int, ...]:
    """Those of the model's files: its tokenizer's give way to those of the adapter's."""
    of_tokenizer = texts.tokenizer.eos_token_ids if texts.tokenizer else ()
    return tuple(token for token in texts.eos_token_ids if token not in of_tokenizer) or texts.eos_token_ids


def _unfit(name: str, folder: Path, why: str) -> LoadError:
    return LoadError(
        "BadCheckpoint",
        f"The adapter {name} in {folder} {why}.",
        hint="Save the tokenizer with it again, or take it out of the folder.",
        argument="lora_modules",
    )
