"""`python -m e2e.images [TARGET ...]` builds what is not built yet and prints one reference a line."""

from __future__ import annotations

import argparse

from e2e.images.build import TARGETS, ImagesUnavailable, build

parser = argparse.ArgumentParser(prog="python -m e2e.images", description=__doc__)
parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all without one")
try:
    for target in parser.parse_args().targets or TARGETS:
        print(build(target), flush=True)
except ImagesUnavailable as error:
    raise SystemExit(f"error: {error}") from None
