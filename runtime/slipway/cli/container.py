"""`python -m slipway.cli.container`: the entry point of the images.

The server's flags may follow an image's name at once, as with other vLLM images, and the server listens on
every address: a container's own loopback is reached by no one outside. Here alone, and where nothing else
says it, MODEL names the model and VLLM_USE_DUMMY_WEIGHTS asks for random weights, as compose files have them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

from slipway import sockets
from slipway.args import ArgumentError
from slipway.args.resolved import given_in
from slipway.cli.main import main
from slipway.envs import BY_NAME, InvalidEnvironment

EVERYWHERE = ("--host", sockets.EVERYWHERE)
OF_THE_COMMAND = ("-h", "--help", "-v", "--version", "--print-schema", "--print-schema=short")
"""Options of `slipway` itself; every other one is the server's."""


def words(argv: Sequence[str], environ: MutableMapping[str, str]) -> list[str]:
    """What the words after an image's name mean to `slipway`. A `--host` among them wins.

    What is taken from `environ` is taken out of it: to the server itself these variables say nothing.
    """
    match list(argv):
        case ["serve", *given]:
            return ["serve", *EVERYWHERE, *_from_environment(given, environ), *given]
        case [option, *_] if option.startswith("-") and option not in OF_THE_COMMAND:
            return ["serve", *EVERYWHERE, *_from_environment(argv, environ), *argv]
        case [] if environ.get("MODEL"):
            return ["serve", *EVERYWHERE, *_from_environment([], environ)]
    return list(argv)


def _from_environment(argv: Sequence[str], environ: MutableMapping[str, str]) -> list[str]:
    """Arguments for what the command line and its configuration file leave open."""
    try:
        given = given_in(argv, environ)
        dummy = bool(BY_NAME["VLLM_USE_DUMMY_WEIGHTS"].parse(environ.get("VLLM_USE_DUMMY_WEIGHTS")))
    except (ArgumentError, InvalidEnvironment):
        return []  # the server says what is wrong with it
    added: list[str] = []
    model = environ.pop("MODEL", "")
    if model and not given & {"model", "model_tag"}:
        added.append(f"--model={model}")
        _log(f"MODEL={model} names the model, as nothing else does.")
    environ.pop("VLLM_USE_DUMMY_WEIGHTS", None)
    if dummy and "load_format" not in given:
        added.append("--load-format=dummy")
        _log("VLLM_USE_DUMMY_WEIGHTS=1 asks for random weights (--load-format dummy).")
    return added


def _log(sentence: str) -> None:
    print(f"slipway: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(words(sys.argv[1:], os.environ)))
