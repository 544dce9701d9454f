"""`slipway fetch`: a model of an S3 bucket as files, before a server starts."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from slipway import exits

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
"""How names of files with weights end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where from and where to. Credentials are in the standard AWS_* variables."""
    parser.add_argument("source", metavar="SOURCE", help="folder or object such as s3://bucket/folder")
    parser.add_argument("target", metavar="TARGET", type=Path, help="folder or file that it becomes")
    parser.add_argument("--endpoint", metavar="URL", help="of a store that is not Amazon's")
    parser.add_argument(
        "--without-weights",
        action="store_true",
        help="bring configuration and tokenizer alone, which is what `slipway fit` reads",
    )


def run(arguments: argparse.Namespace) -> int:
    """A status of the catalogue of exit codes, whose cause is in the termination log too."""
    from slipway.load.errors import LoadError
    from slipway.load.progress import announced
    from slipway.service.bucket import Bucket
    from slipway.service.fetch import fetch

    source, target = arguments.source, arguments.target
    if not re.fullmatch(r"s3://[^\s/]+(/[^\s/]+)*/?", source):
        return _failed(exits.BAD_ARGUMENTS, f"{source!r} is not a URI such as s3://bucket/folder.", "source")
    try:
        bucket, skip = Bucket(source, arguments.endpoint), WEIGHTS if arguments.without_weights else ()
        done = fetch(bucket, target, announced(lambda *_: None), skip)
    except LoadError as error:
        return _failed(exits.BY_REASON[error.code], error.message, hint=error.hint)
    except OSError as error:
        hint = "In a cluster check the claim of spec.model.cache and spec.security.fsGroup."
        where = error.filename or target
        return _failed(exits.BAD_ARGUMENTS, f"{where} cannot be written: {error.strerror}.", "target", hint)
    print(f"{source} is in {target}: {done.files} files, {done.octets / 1e6:.1f} MB", file=sys.stderr)
    return 0


def _failed(known: exits.ExitCode, message: str, argument: str = "", hint: str = "") -> int:
    print(f"slipway fetch: error: {message} {hint}".rstrip(), file=sys.stderr)
    exits.write_termination(os.environ, known.code, message, hint, argument)
    return known.code
