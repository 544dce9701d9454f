"""In place of a rank: says where it is, and stays until it is ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

from slipway.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    with os.fdopen(int(sys.argv[1]), "rb") as told:
        folder, rank = json.load(told)
    said = Path(folder, f"{rank}.new")
    names = ("SLIPWAY_CACHE", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE")
    said.write_text(json.dumps([socket.gethostname(), {name: os.environ.get(name) for name in names}]))
    said.rename(Path(folder, str(rank)))
    signal.pause()
