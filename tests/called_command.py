"""The `slipway` command, called in this process as it would run in one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from slipway.cli.main import main


def call(
    *words: str, folder: Path, environ: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Exit status and output of `slipway words…`, with an environment, a folder and streams of its own.

    A process costs 0.2 to 1.5 s of imports, the call a few milliseconds. An exception that the command does
    not catch is raised here. `slipway run` replaces its process and cannot be called.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, os.environ if environ is None else environ, clear=True),
        mock.patch("sys.stdin", io.StringIO(stdin)),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main(words)
        except SystemExit as exit:  # argparse ends this way
            status = exit.code if isinstance(exit.code, int) else 1 if exit.code else 0
    return subprocess.CompletedProcess(["slipway", *words], status, out.getvalue(), err.getvalue())
