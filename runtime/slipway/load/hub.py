"""Where a model's files are: a local path, or the Hugging Face hub's cache after a download.

The API process calls `locate` too, for configuration and tokenizer; nothing here imports torch.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.envs import read
from slipway.load.errors import LoadError
from slipway.load.folder import CONSOLIDATED, PATTERNS, SAME_FILES, ignored, skipped_beside
from slipway.load.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

METADATA = ("*.json", "*.jinja", "*.model", "*.model.v*", "*.txt", "*.tiktoken")
"""Configuration, tokenizer and chat template."""
_ADAPTER = (
    *("adapter_config.json", "adapter_model.*", "new_embeddings.*", "added_tokens.json"),
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.json", "chat_template.jinja", "additional_chat_templates/*.jinja"),
)
"""Its weights, and its tokenizer where it has one."""
_WEIGHTS = {**PATTERNS, **{name: PATTERNS[files] for name, files in SAME_FILES.items()}}
_WEIGHTS |= {"auto": PATTERNS["safetensors"] + PATTERNS["pt"] + PATTERNS["mistral"]}
"""By load format: the first pattern that matches a file is what is fetched."""
# Weights of other uses: in subfolders (ONNX, originals), and in the original layout unless it is asked for.
_NEVER = ("*/*.safetensors", "*/*.bin", "*/*.pt", CONSOLIDATED, "training_args.bin")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_GGUF_FILE = re.compile(r"([^/:]+/[^/:]+)/(.+\.gguf)|([^/:]+/[^/:]+):([\w.-]+)")
_SPARE = 64 << 20
"""Bytes that a download leaves free."""


def locate(
    model: str,
    *,
    revision: str | None = None,
    load_format: str = "auto",
    token: str | bool | None = None,
    download_dir: str | None = None,
    ignore_patterns: Sequence[str] | None = None,
    weights: bool = True,
    code: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The model's folder, or its .gguf file, downloaded where it is not there yet.

    model    a folder, a .gguf file, a repository on the hub (`owner/name`), or a GGUF file of one
             (`owner/name/file.gguf`, or `owner/name:Q4_K_M` by part of its name); the hub is
             ModelScope with VLLM_USE_MODELSCOPE
    weights  False fetches configuration and tokenizer alone (of GGUF they are in the one file)
    code     also the repository's Python files, which only `--trust-remote-code` runs
    Raises LoadError with what is wrong and what to do.
    """
    local = Path(model).expanduser()
    if local.exists():
        return local
    repository, file = model, None
    if match := _GGUF_FILE.fullmatch(model):
        repository, file = match[1] or match[3], match[2] or f"*{match[4]}*.gguf"
    if _is_path(model) or not _REPOSITORY.fullmatch(repository):
        raise LoadError(
            "ModelNotFound",
            f"There is no {'file' if local.suffix == '.gguf' else 'folder'} {model}.",
            hint="Check the path. (A model on the hub is named owner/name.)",
        )
    metadata = (*METADATA, "*.py") if code else METADATA
    gguf = file is not None or load_format == "gguf"  # its configuration and tokenizer are inside
    wanted = _WEIGHTS.get(load_format, ()) if weights or gguf else ()
    if file is not None:
        wanted = (re.sub(r"-\d{5}-of-(\d{5})\.gguf$", r"-*-of-\1.gguf", file),)
    skipped = [*_NEVER, *ignored(ignore_patterns)]
    if read(os.environ).use_modelscope:
        from slipway.load import modelscope

        source = modelscope.Repository(
            repository,
            revision,
            download_dir,
            progress,
            metadata=metadata,
            weights=wanted,
            ignored=skipped,
            check=lambda found: gguf and _one_gguf(found, model),
        )
        folder, names = source.snapshot()
        return folder / _one_gguf(names, model) if gguf else folder
    options = {"token": token, "cache_dir": download_dir, "ignore_patterns": skipped}
    folder, names = Repository(repository, revision, options, progress, metadata, wanted).snapshot()
    return folder / _one_gguf(names, model) if gguf else folder


def locate_adapter(place: str, *, token: str | bool | None = None, download_dir: str | None = None) -> Path:
    """An adapter's folder, downloaded where `place` is a repository on the hub and not a folder.

    Raises LoadError with what is wrong and what to do.
    """
    local = Path(os.path.expanduser(place))
    try:
        if local.is_dir():
            return local.absolute()
    except OSError as error:  # a name that no file system takes
        raise LoadError("ModelNotFound", f"The folder {place} cannot be read: {error.strerror}.") from None
    if local.exists() or _is_path(place) or not _REPOSITORY.fullmatch(place):
        raise LoadError("ModelNotFound", f"There is no folder {place}.", hint="Check the path.")
    if read(os.environ).use_modelscope:
        from slipway.load import modelscope

        source = modelscope.Repository(
            place,
            None,
            download_dir,
            None,
            metadata=_ADAPTER,
            weights=(),
            ignored=(),
            check=lambda found: None,
        )
        return source.snapshot()[0]
    options = {"token": token, "cache_dir": download_dir, "ignore_patterns": ()}
    return Repository(place, None, options, None, _ADAPTER).snapshot()[0]


def _is_path(model: str) -> bool:
    """Whether a name that does not exist was meant as a path and not as a repository."""
    first = model.split("/", 1)[0]
    return (
        model.startswith(("/", "./", "../", "~", "."))
        or model.endswith("/")
        or (model.endswith(".gguf") and model.count("/") < 2)
        or ("/" in model and Path(first).is_dir())
    )


def _one_gguf(names: Sequence[str], model: str) -> str:
    """The only GGUF model among `names`, by its first part where it is split."""
    found = [name for name in names if name.endswith(".gguf")]
    whole = [name for name in found if "-of-" not in name or "-00001-of-" in name]
    if len(whole) == 1:
        return whole[0]
    raise LoadError(
        "ModelNotFound",
        f"{model} names {len(whole)} GGUF models: {', '.join(sorted(whole)[:20])}.",
        hint="Name one of them as owner/name/file.gguf.",
    )


@dataclass(frozen=True, slots=True)
class Repository:
    """Downloads from one repository, with errors that say what to do.

    options   of the client: token, folder, patterns of what is skipped
    metadata  patterns of what is fetched
    weights   patterns, of which the first that matches a file is fetched, too; none: no weights
    """

    name: str
    revision: str | None
    options: Mapping[str, Any]
    progress: Progress | None
    metadata: Sequence[str] = ()
    weights: Sequence[str] = ()

    def snapshot(self) -> tuple[Path, list[str]]:
        """The folder with what was fetched, and its names."""
        from huggingface_hub.errors import DryRunError

        planned = False
        try:
            plan = self._plan()
            names = [file.filename for file in plan]
            if any(name.endswith(".gguf") for name in names):
                _one_gguf(names, self.name)  # before every variant is downloaded
            needed = sum(file.file_size or 0 for file in plan if file.will_download)
            self._check_space(needed)
            planned = True
            return Path(self._client(names, tqdm_class=_bar_class(self.progress, needed))), names
        except DryRunError as error:
            return self._cached(error)
        except LoadError:
            raise
        except KeyboardInterrupt:
            raise self._broken_off("it was interrupted") from None
        except Exception as error:  # the client's transport errors differ between its versions
            explained = self.explain(error)
            if planned and explained.code == "NoNetwork":
                explained = self._broken_off(str(error))
            raise explained from error

    def _client(self, patterns: list[str], **how: Any) -> Any:
        from huggingface_hub import snapshot_download

        wanted = [pattern for pattern in patterns if pattern]
        skipped = skipped_beside(wanted, self.options["ignore_patterns"])
        options = {**self.options, "ignore_patterns": skipped, **how}
        return snapshot_download(self.name, revision=self.revision, allow_patterns=wanted, **options)

    def _broken_off(self, why: str) -> LoadError:
        return LoadError(
            "Interrupted",
            f"The download of {self._named()} broke off: {why}.",
            hint="Start again: it continues where it stopped.",
        )

    def _plan(self) -> list[DryRunFileInfo]:
        for pattern in self.weights or [""]:
            patterns = [*self.metadata, pattern]
            plan: list[DryRunFileInfo] = self._client(patterns, dry_run=True, tqdm_class=_bar_class())
            if not pattern or fnmatch.filter((file.filename for file in plan), pattern):
                return plan
        raise LoadError(
            "ModelNotFound",
            f"The repository {self._named()} has no weights ({', '.join(self.weights)}).",
            hint="Choose another --load-format, or a repository that has them.",
            argument="load_format",
        )

    def _cached(self, error: Exception) -> tuple[Path, list[str]]:
        """What an earlier download left, as the hub cannot be asked."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        explained = self.explain(error.__cause__ or error)
        if explained.code != "NoNetwork":
            raise explained from error
        for pattern in self.weights or [""]:
            try:
                folder = Path(self._client([*self.metadata, pattern], local_files_only=True))
            except LocalEntryNotFoundError:
                break
            names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
            if not pattern or fnmatch.filter(names, pattern):
                return folder, names
        raise explained from error

    def _check_space(self, needed: int) -> None:
        from huggingface_hub.constants import HF_HUB_CACHE

        folder = Path(self.options["cache_dir"] or HF_HUB_CACHE).expanduser().absolute()
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        free = shutil.disk_usage(existing).free
        if needed and needed + _SPARE > free:
            raise _no_space(
                f"{self.name} needs {needed / 1e9:.2f} GB in {folder}, where {free / 1e9:.2f} GB are free."
            )

    def _named(self) -> str:
        return f"{self.name} (revision {self.revision})" if self.revision else self.name

    def explain(self, error: BaseException) -> LoadError:
        """The client's exception as one of ours."""
        from huggingface_hub import errors

        chain = _chain(error)
        if any(isinstance(link, OSError) and link.errno in _FULL for link in chain):
            return _no_space(f"The disk became full while {self.name} was downloaded.")
        if isinstance(error, errors.GatedRepoError):
            return LoadError(
                "ModelGated",
                f"The model {self.name} is gated: its owner must give you access.",
                hint=f"Ask for it at https://huggingface.co/{self.name}, then pass a token "
                "of that account by HF_TOKEN or --hf-token.",
                argument="hf_token",
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return LoadError(
                "ModelNotFound",
                f"The model {self.name} has no revision {self.revision!r}.",
                hint="Name a branch, tag or commit that it has.",
                argument="revision",
            )
        if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
            return LoadError(
                "ModelNotFound",
                f"There is no model {self.name} on the hub, or it is private, "
                "and there is no such folder here.",
                hint="Check the spelling (owner/name); for a private one pass a token "
                "by HF_TOKEN or --hf-token.",
            )
        if isinstance(error, errors.LocalTokenNotFoundError):
            return LoadError(
                "ModelGated",
                "--hf-token asks for the stored token, but none is stored.",
                hint="Run `hf auth login`, or pass the token by HF_TOKEN.",
                argument="hf_token",
            )
        offline = any(isinstance(link, errors.OfflineModeIsEnabled) for link in chain)
        reason = "HF_HUB_OFFLINE is set" if offline else f"the hub did not answer: {error}"
        return LoadError(
            "NoNetwork",
            f"{self._named()} is not completely in the cache, and {reason}",
            hint="Unset HF_HUB_OFFLINE once to download it."
            if offline
            else "Check the network and the proxy; for a mirror set HF_ENDPOINT.",
        )


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _no_space(message: str) -> LoadError:
    return LoadError(
        "NoSpace",
        message,
        hint="Free some, or name another place by --download-dir.",
        argument="download_dir",
    )


def _chain(error: BaseException | None) -> list[BaseException]:
    """An exception and those that led to it."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links


def _bar_class(progress: Progress | None = None, total: int = 0) -> Any:
    """A progress bar class that draws nothing and tells the progress of the bytes that it is told of."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.in_bytes = options.get("unit") == "B"
            self.done = 0
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if progress is not None and total and self.in_bytes:
                self.done += int(n or 0)
                progress("download", min(self.done, total), total)

    return Bar
