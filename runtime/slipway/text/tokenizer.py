"""Text to tokens and back, for the API process: no torch, no transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from slipway.text.decoding import Decoding
from slipway.text.detokenizer import Detokenizer

__all__ = ["Detokenizer", "Tokenizer", "Vocabulary", "load"]

MODES = ("auto", "slow", "mistral", "custom")


class Vocabulary(Protocol):
    """What a tokenizer library offers: `fast.py` and `sentencepiece.py` wrap one each."""

    @property
    def size(self) -> int:
        """One more than the largest token id."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that `skip_special_tokens` leaves out."""

    @property
    def added_ids(self) -> frozenset[int]:
        """Tokens found in a text before it is split: the special ones and others of that kind."""

    @property
    def decoding(self) -> Decoding: ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it (`Ġthe`, `▁the`, `<0x0A>`); None where there is none."""

    def token_id(self, token: str) -> int | None: ...


class Tokenizer:
    """A model's tokenizer. Immutable once made, so that threads may share it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        max_length: int | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """`special_tokens` are the names that templates use (`bos_token`, `eos_token`, …) and their texts.

        `eos_token_ids` default to the id of `eos_token`.
        """
        self._vocabulary = vocabulary
        self._pieces: dict[int, bytes | None] = {}
        self.special_tokens = dict(special_tokens or {})
        self.vocab_size = vocabulary.size
        self.special_ids = vocabulary.special_ids
        self.added_ids = vocabulary.added_ids
        self.decoding = vocabulary.decoding
        self.chat_templates = dict(chat_templates or {})
        """By name; a model's usual one is `default`."""
        self.max_length = max_length
        """Tokens that the tokenizer's own configuration allows; None where it does not say."""
        self.warnings = tuple(warnings)
        """What was not as asked, in sentences."""
        self.bos_token_id = self._special_id("bos_token")
        eos = self._special_id("eos_token")
        self.eos_token_ids = tuple(eos_token_ids) or (() if eos is None else (eos,))

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; the tokenizer library works without the interpreter's lock.

        Raises ValueError for a lone surrogate, which is no character.
        """
        try:
            return self._vocabulary.encode(text, add_special_tokens)
        except (UnicodeEncodeError, TypeError):
            place = next((i for i, c in enumerate(text) if 0xD800 <= ord(c) < 0xE000), None)
            if place is None:
                raise
            raise ValueError(
                f"The text holds the lone surrogate U+{ord(text[place]):04X} at character {place}, "
                "which is half of a character. Send both halves of the pair, or leave it out."
            ) from None

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of token ids; ids without a token give none, broken UTF-8 gives U+FFFD."""
        stream = self.stream(
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        return stream.push(ids) + stream.finish()

    def stream(
        self,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
    ) -> Detokenizer:
        """A detokenizer for the tokens that follow `prompt_ids`."""
        return Detokenizer(
            self,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            prompt_ids=prompt_ids,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text, without what its neighbours add; none for an unknown id."""
        if token_id in self.added_ids:
            return (self._vocabulary.token(token_id) or "").encode()
        return self.piece(token_id, False) or b""

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text; parts of a character become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_id(self, text: str) -> int | None:
        """The id of a token as the vocabulary writes it, for example `<|im_end|>`."""
        return self._vocabulary.token_id(text)

    def piece(self, token_id: int, first: bool) -> bytes | None:
        """The bytes that a token adds, `first` where it begins the text; None for an unknown id."""
        if first:
            token = self._vocabulary.token(token_id)
            return None if token is None else self.decoding.piece(token, True)
        if token_id not in self._pieces:
            token = self._vocabulary.token(token_id)
            self._pieces[token_id] = None if token is None else self.decoding.piece(token, False)
        return self._pieces[token_id]

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._vocabulary.token_id(token)


def load(
    model: str | Path,
    *,
    tokenizer: str | None = None,
    mode: str = "auto",
    revision: str | None = None,
    tokenizer_revision: str | None = None,
    trust_remote_code: bool = False,
    download_dir: str | None = None,
    token: str | None = None,
) -> Tokenizer:
    """The tokenizer of a model: a folder, a `.gguf` file, or a name on the hub.

    `tokenizer` and `tokenizer_revision` replace the model's own; `trust_remote_code` changes nothing, since
    no tokenizer here runs code of a model. Raises ValueError in a sentence where there is none to be had,
    and LoadError where the hub or the GGUF file is at fault.
    """
    if mode not in MODES:
        raise ValueError(f"--tokenizer-mode {mode} is not one of {', '.join(MODES)}.")
    if mode == "custom":
        raise ValueError(
            "--tokenizer-mode custom is not supported: it runs a tokenizer that other Python code has "
            "registered. Convert that to a tokenizer.json and name its folder with --tokenizer."
        )
    if mode == "mistral":
        raise ValueError(
            "--tokenizer-mode mistral is not supported yet. "
            "Use --tokenizer-mode auto with a model folder that has a tokenizer.json or tokenizer.model."
        )
    name = str(tokenizer or model)
    path = _find(name, (tokenizer_revision if tokenizer else None) or revision, download_dir, token)
    from slipway.text import folder, gguf

    return gguf.load(path) if path.is_file() else folder.load(path, slow=mode == "slow")


def _find(name: str, revision: str | None, download_dir: str | None, token: str | None) -> Path:
    path = Path(name).expanduser()
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(
            f"{name} is a file but not a .gguf file. Give a folder with a tokenizer.json, a .gguf file "
            "or a name on the hub."
        )
    if path.is_dir():
        return _gguf_in(path) or path
    if path.exists():
        return path
    from slipway.load import hub

    return hub.locate(name, revision=revision, download_dir=download_dir, token=token, weights=False)


def _gguf_in(folder: Path) -> Path | None:
    """The one GGUF file of a folder that has no tokenizer of its own."""
    if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return None
    files = list(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 else None
