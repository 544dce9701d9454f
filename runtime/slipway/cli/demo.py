"""`slipway demo`: fetch the demo model and serve it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SHORT_NAME = "demo"
SAMPLING = {"temperature": 0}
"""For requests that ask for nothing else: at temperature 1 so small a model answers beside the point."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every word belongs to `slipway serve`, `--help` too."""
    parser.prefix_chars = ""  # nothing here is an option of this parser
    parser.add_argument("words", nargs=argparse.REMAINDER, help="arguments of `slipway serve`")


def run(arguments: argparse.Namespace) -> int:
    """The exit status of `slipway serve`, or of a model that cannot be fetched."""
    from slipway import exits
    from slipway.cli import serve
    from slipway.load.demo import FILE_NAME, MODEL_NAME, cache_folder, fetch
    from slipway.load.errors import LoadError

    model = cache_folder() / "demo" / FILE_NAME
    if not asks_for_no_model(arguments.words):
        import slipway.api.server  # noqa: F401  # a package that it misses is told of before the download

        begun = time.monotonic() if not model.is_file() else None
        if begun is not None:
            print(f"Fetching {MODEL_NAME} (98 MB) into {model.parent} …", file=sys.stderr)
        try:
            model = fetch()
            if begun is not None:
                print(f"Fetched in {time.monotonic() - begun:.0f} s.", file=sys.stderr)
        except LoadError as error:
            print(f"slipway demo: error: {error}", file=sys.stderr)
            return exits.BY_REASON[error.code].code
    return serve.run(serve_words(model, MODEL_NAME, arguments.words))


def asks_for_no_model(words: Sequence[str]) -> bool:
    """Help and a dry run must not wait for a download."""
    names = {word.partition("=")[0].replace("_", "-") for word in words}
    return bool(names & {"-h", "--help", "--dry-run"})


def serve_words(model: Path, name: str, words: Sequence[str]) -> list[str]:
    """The words for `slipway serve`. What the user gave comes last and wins."""
    # One JSON array and not several words, which would take the model for one more name.
    names = f"--served-model-name={json.dumps([name, SHORT_NAME])}"
    return [names, f"--override-generation-config={json.dumps(SAMPLING)}", str(model), *words]
