"""Needs of models of which only config.json is there, and of folders, planned as `slipway fit` plans them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from slipway import envs
from slipway.api.configure import engine_config
from slipway.args import Resolved, resolve
from slipway.args.data_parallel import copies_here
from slipway.engine.config import EngineConfig
from slipway.fit import Needs
from slipway.fit.describe import describe

ARCH = 90


def resolved(model: Path, arguments: tuple[str, ...], device: str) -> Resolved:
    return resolve([str(model), *arguments, "--device", device], {}, dry_run=True)


def configured(model: Path, *arguments: str, device: str = "cuda") -> EngineConfig:
    """An engine of a model's folder or file."""
    given = resolved(model, arguments, device)
    return engine_config(given, envs.read({}), frontends=given["api_server_count"])


def needs_of(model: Path, *arguments: str, device: str = "cuda", arch: int = ARCH) -> Needs:
    """Of all engines that the arguments ask for."""
    copies = copies_here(resolved(model, arguments, device))
    return describe(configured(model, *arguments, device=device), arch, engines=copies)


def write_config(folder: Path, config: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
