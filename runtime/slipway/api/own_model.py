"""The model as requests to an adapter meet it that has tokens, a tokenizer or a context of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from weakref import WeakValueDictionary

from slipway.api.configure import Settings
from slipway.api.texts import Texts, texts_of
from slipway.engine.messages import Ready
from slipway.exits import Exit
from slipway.load.errors import LoadError
from slipway.load.folder import read_json
from slipway.load.hub import METADATA
from slipway.text.open import load
from slipway.text.tokenizer import Tokenizer

_WHOLE = ("tokenizer.json", "tokenizer.model")
_TOKENIZERS = (*_WHOLE, "added_tokens.json")
"""Files of which a folder has one where it has a tokenizer."""


@dataclass(frozen=True, slots=True)
class OwnModel:
    """What is not as the model alone has it."""

    texts: Texts
    max_model_len: int
    added: int = 0
    """Tokens behind the model's vocabulary."""
    same_tokens: bool = True
    """Its tokenizer has the model's tokens, and no other."""


class OwnModels:
    """What adapters have. Tokenizers of the same files are one, as PEFT saves the model's beside each."""

    def __init__(self, texts: Texts, ready: Ready, settings: Settings) -> None:
        """texts, ready  of the model alone"""
        self._texts = texts
        self._ready = ready
        self._settings = settings
        self._read: WeakValueDictionary[bytes, Texts] = WeakValueDictionary()
        """By what their files hold."""

    def of(self, name: str, folder: Path) -> OwnModel | None:
        """None: all is as the model has it. Reads files. Raises LoadError where they are unfit."""
        from slipway.load.own_tokens import sizes_of  # imports numpy

        sizes = sizes_of(folder, self._ready.vocab_size)
        length = most = self._ready.max_model_len
        if sizes.context_length:
            length = min(max(length, self._ready.max_stretched_len), sizes.context_length)
        texts = self._texts_of(name, folder)
        if texts is None:
            plain = length == most and not sizes.added
            return None if plain else OwnModel(self._texts, length, sizes.added, not sizes.added)
        assert texts.tokenizer is not None, "it was read of the folder"
        same = self._texts.tokenizer is not None and texts.tokenizer.names_alike(self._texts.tokenizer)
        return OwnModel(texts, length, sizes.added, same and not sizes.added)

    def _texts_of(self, name: str, folder: Path) -> Texts | None:
        """By the folder's tokenizer, where it has one and texts are tokenized at all."""
        of_model = self._texts.tokenizer
        if of_model is None or not any((folder / file).is_file() for file in _TOKENIZERS):
            return None
        try:
            digest = _digest(folder)
            texts = self._read.get(digest)
            if texts is None:
                texts = self._read[digest] = self._new_texts(_tokenizer(folder, of_model))
        except ValueError as error:
            raise _unfit(name, folder, f"has a tokenizer that cannot be read: {error}") from None
        except Exit as error:
            raise _unfit(name, folder, f"has a tokenizer that does not fit this server: {error}") from None
        return texts

    def _new_texts(self, tokenizer: Tokenizer) -> Texts:
        """With a tokenizer of an adapter, whose chats the model's template writes where it has none."""
        of_model = self._texts
        own_chats = of_model.tokenizer is not None and of_model.tokenizer.chat is not None
        return texts_of(
            self._settings,
            tokenizer,
            of_model.defaults,
            _eos(of_model),
            model_type=of_model.model_type,
            template=None if own_chats else of_model.template,
        )


def _digest(folder: Path) -> bytes:
    """Of all files that a tokenizer may be read from."""
    digest = sha256()
    for pattern in METADATA:
        for path in sorted({*folder.glob(pattern), *folder.glob(f"additional_chat_templates/{pattern}")}):
            if path.name != "adapter_config.json":
                octets = path.read_bytes()
                digest.update(f"{path.relative_to(folder)}\0{len(octets)}\0".encode())
                digest.update(octets)
    return digest.digest()


def _tokenizer(folder: Path, of_model: Tokenizer) -> Tokenizer:
    """The folder's own, else the model's with `added_tokens.json`."""
    if any((folder / name).is_file() for name in _WHOLE):
        return load(folder)
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
