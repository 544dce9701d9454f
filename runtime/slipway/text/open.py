"""Finds the tokenizer of a model, whatever it is stored as."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from slipway.text import custom, folder, gguf
from slipway.text.tokenizer import Tokenizer

MODES = ("auto", "slow", "mistral", "custom")


class TokenizerSettings(Protocol):
    """Where a process is told to find the tokenizer, by the names of the arguments."""

    @property
    def model(self) -> str: ...
    @property
    def tokenizer(self) -> str | None: ...
    @property
    def tokenizer_mode(self) -> str: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def tokenizer_revision(self) -> str | None: ...
    @property
    def download_dir(self) -> str | None: ...
    @property
    def hf_token(self) -> str | bool | None: ...


def load_for(settings: TokenizerSettings) -> Tokenizer:
    """`load` as the settings say."""
    return load(
        settings.model,
        tokenizer=settings.tokenizer,
        mode=settings.tokenizer_mode,
        revision=settings.revision,
        tokenizer_revision=settings.tokenizer_revision,
        download_dir=settings.download_dir,
        token=settings.hf_token if isinstance(settings.hf_token, str) else None,
    )


def load(
    model: str | Path,
    *,
    tokenizer: str | None = None,
    mode: str = "auto",
    revision: str | None = None,
    tokenizer_revision: str | None = None,
    download_dir: str | None = None,
    token: str | None = None,
) -> Tokenizer:
    """The tokenizer of a model: a folder, a `.gguf` file, or a name on the hub; or `tokenizer`, one that
    a plugin has registered, with the mode custom.

    `tokenizer` and `tokenizer_revision` replace the model's own. None runs code of a model. Raises ValueError
    in a sentence where there is none to be had, and LoadError where the hub or the GGUF file is at fault.
    """
    if mode not in MODES:
        raise ValueError(f"--tokenizer-mode {mode} is not one of {', '.join(MODES)}.")
    name = str(tokenizer or model)
    if mode == "custom":
        return custom.load(name, str(model))
    path = _find(name, (tokenizer_revision if tokenizer else None) or revision, download_dir, token)
    if mode != "mistral" and path.is_dir():
        path = gguf_in(path) or path
    if path.is_dir() and (mode == "mistral" or (mode == "auto" and _is_mistral(path))):
        from slipway.text import mistral

        return mistral.load(path)
    if mode == "mistral":
        raise ValueError(f"{path} has a tokenizer of its own. Leave --tokenizer-mode mistral out.")
    return gguf.load(path) if path.is_file() else folder.load(path, slow=mode == "slow")


def _find(name: str, revision: str | None, download_dir: str | None, token: str | None) -> Path:
    path = Path(name).expanduser()
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(
            f"{name} is a file but not a .gguf file. Give a folder with a tokenizer.json, a .gguf file "
            "or a name on the hub."
        )
    if path.exists():
        return path
    from slipway.load import hub

    return hub.locate(name, revision=revision, download_dir=download_dir, token=token, weights=False)


def _is_mistral(folder: Path) -> bool:
    """Whether a folder has a tokenizer for Mistral's own library and no other."""
    files = ("tekken.json", *(path.name for path in folder.glob("tokenizer.model.v*")))
    return not _has_own(folder) and any((folder / name).is_file() for name in files)


def _has_own(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))


def gguf_in(folder: Path) -> Path | None:
    """The one GGUF file of a folder that has no tokenizer of its own."""
    if _has_own(folder):
        return None
    files = list(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 else None
