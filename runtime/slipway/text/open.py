"""Finds the tokenizer of a model, whatever it is stored as."""

from __future__ import annotations

from pathlib import Path

from slipway.text import folder, gguf
from slipway.text.tokenizer import Tokenizer

MODES = ("auto", "slow", "mistral", "custom")


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
