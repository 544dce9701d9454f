"""What starts the ranks of an engine, where the command leaves that open."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.exits import DEVICE_UNAVAILABLE, Exit
from slipway.extras import install


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the choice depends on beside the arguments."""

    places: int | None
    """Ranks that this host has room for: its GPUs; None: any number, as on CPU."""
    ray_installed: bool
    cluster: str | None
    """Where a Ray cluster is, see `ray_cluster`; None: there is none to be found."""
    hosts: int = 1
    """As --nnodes tells."""


def executor(wanted: str | None, ranks: int, around: Surroundings) -> str:
    """uni, mp, ray or external_launcher. Raises Exit where auto finds no place for the ranks.

    wanted: as --distributed-executor-backend says; unset is auto
    ranks: of one engine, on all hosts
    """
    if wanted is not None and wanted != "auto":
        return wanted
    if around.hosts > 1:
        return "mp"
    if around.places is None or ranks <= around.places:
        return "mp" if ranks > 1 else "uni"
    if around.ray_installed and around.cluster is not None:
        return "ray"
    missing = (
        "no Ray cluster was found (RAY_ADDRESS is not set, and none was started on this host)"
        if around.ray_installed
        else "the package ray is not installed"
    )
    raise Exit(
        DEVICE_UNAVAILABLE,
        f"{ranks} ranks (--tensor-parallel-size × --pipeline-parallel-size) do not fit on this host, which "
        f"has {_counted(around.places, 'GPU')}, and {missing}.",
        "Lower one of the two sizes; or start Ray on every host and name it in RAY_ADDRESS "
        f"({install('ray')}); or start the same command on every host with --nnodes, --node-rank and "
        "--master-addr.",
        "tensor_parallel_size",
    )


def ray_installed() -> bool:
    """Without importing it, which takes seconds and threads."""
    return importlib.util.find_spec("ray") is not None


def ray_cluster(environ: Mapping[str, str], read: Callable[[Path], str] = Path.read_text) -> str | None:
    """Address of the cluster that Ray's own commands would use here; None: a cluster would be started.

    RAY_ADDRESS first, which says `local` for a new one, then what `ray start` wrote on this host.
    """
    named = environ.get("RAY_ADDRESS", "").strip()
    if named == "local":
        return None
    if named and named != "auto":
        return named
    try:
        return read(Path(environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster").strip() or None
    except OSError:
        return None


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
