"""`python -m slipway.cli.container`: the entry point of the images.

The server's flags may follow an image's name at once, as with other vLLM images, and the server listens on
every address: a container's own loopback is reached by no one outside.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slipway.cli.main import main

EVERYWHERE = ("--host", "0.0.0.0")
OF_THE_COMMAND = ("-h", "--help", "-v", "--version", "--print-schema")
"""Options of `slipway` itself; every other one is the server's."""


def words(argv: Sequence[str]) -> list[str]:
    """What the words after an image's name mean to `slipway`. A `--host` among them wins."""
    match list(argv):
        case ["serve", *given]:
            return ["serve", *EVERYWHERE, *given]
        case [option, *_] if option.startswith("-") and option not in OF_THE_COMMAND:
            return ["serve", *EVERYWHERE, *argv]
    return list(argv)


if __name__ == "__main__":
    sys.exit(main(words(sys.argv[1:])))
