"""`slipway compile`: the CUDA kernels that a server of a model launches, compiled before it starts."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipway import envs
from slipway.args import ArgumentError, resolve

if TYPE_CHECKING:
    from slipway_kernels.cuda.specialization import Specialization

ARCHITECTURES = (80, 86, 89, 90, 100, 103, 120)
"""Compute capabilities, times ten: A100, A10, L4 and L40S, H100 and H200, B200, B300, RTX 50."""

_DESCRIPTION = """Compile the CUDA kernels that a server launches, so that it compiles none. No GPU and no
weights are needed: of a model on the hub the configuration is fetched. Without a model these are the kernels
of eight models that are served most, in bf16, fp8 and four bits. Servers find them in SLIPWAY_CACHE, and in
the folders that SLIPWAY_KERNELS names."""
_EPILOG = """All other arguments are those of `slipway serve`: how a model is served decides on its kernels.
Exit status: 0 where all are compiled, 1 where one does not compile, 2 where input cannot be understood or a
package is missing."""


def run(argv: Sequence[str]) -> int:
    """Exit status 0 where all are compiled, 1 where one is not, 2 for input that cannot be understood."""
    options, words = parser().parse_known_args(argv)
    from slipway.exits import Exit
    from slipway.load.errors import LoadError

    try:
        wanted = [one for arch in dict.fromkeys(options.arch) for one in _needed(words, arch)]
    except (ArgumentError, envs.InvalidEnvironment) as error:
        return _failed(str(error))
    except (LoadError, Exit) as error:
        return _failed("\n  ".join(filter(None, (error.message, error.hint))))
    from slipway_kernels.cuda.ahead import compiled

    faults = compiled(wanted, options.jobs)
    for fault in faults:
        print(f"slipway compile: error: {fault}", file=sys.stderr)
    if options.to is not None:
        _copy(wanted, options.to)
    print(f"{len(wanted) - len(faults)} of {len(wanted)} kernels are compiled.")
    return 1 if faults else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway compile",
        usage="slipway compile [MODEL [arguments of `slipway serve`]] --arch ARCH [ARCH ...] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--arch",
        nargs="+",
        type=_architecture,
        required=True,
        help="compute capabilities of devices, times ten: 90 is H100 and H200",
    )
    parser.add_argument(
        "--to", metavar="FOLDER", type=Path, help="copy them to a folder, for SLIPWAY_KERNELS to name"
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=_count,
        default=len(os.sched_getaffinity(0)),
        help="how many are compiled at a time (default: one a processor)",
    )
    return parser


def _architecture(text: str) -> int:
    known = ", ".join(map(str, ARCHITECTURES))
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}; a model stands before --arch")
    if int(text) not in ARCHITECTURES:
        raise argparse.ArgumentTypeError(f"{text} is none of {known}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _needed(words: Sequence[str], arch: int) -> Sequence[Specialization]:
    """Raises LoadError, Exit and ArgumentError."""
    from slipway.load.extras import require_torch

    why = "Compiling CUDA kernels takes torch and Triton"
    require_torch(why, "compile on another machine", "triton", extra="cuda")
    from slipway.fit.kernels import needed_kernels, needed_most

    if not words:
        return list(needed_most(arch).values())
    from slipway.api.configure import engine_config
    from slipway.engine.tokens import token_ids_of

    resolved = resolve([*words, "--device", "cuda"], os.environ, dry_run=True)
    for warning in resolved.warnings:
        print(f"slipway compile: warning: {warning}", file=sys.stderr)
    config = engine_config(resolved, envs.read(os.environ), frontends=resolved["api_server_count"])
    return list(needed_kernels(config, arch, token_ids_of(config)).values())


def _copy(kernels: Sequence[Specialization], to: Path) -> None:
    from slipway_kernels.cuda.compiled import own_folder, place

    for path in filter(Path.is_file, (own_folder() / place(one) for one in kernels)):
        target = to / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _failed(message: str) -> int:
    print(f"slipway compile: error: {message}", file=sys.stderr)
    return 2
