"""`python -m slipway.engine CONFIG LISTENER PARENT [BEATS]`: inherited descriptors, see `launch`."""

from __future__ import annotations

import os
import socket
import sys
from functools import partial

from slipway.begin import begin
from slipway.dist.beats import Heartbeats
from slipway.engine.config import EngineConfig
from slipway.engine.start import run_engine
from slipway.envs import read
from slipway.processes import die_with_parent, told


def main() -> int:
    config_fd, listener_fd, parent_fd, *beats = map(int, sys.argv[1:])
    die_with_parent()
    config = told(config_fd, EngineConfig)
    process = f"[{config.name}] " if config.is_one_of_several else ""
    begun = partial(begin, config.log_config_file, read(os.environ), process)

    def beat() -> None:
        for descriptor in beats:
            Heartbeats({0: socket.socket(fileno=descriptor)}, lambda *_: None)

    return run_engine(config, socket.socket(fileno=listener_fd), parent_fd, begun, beat)


if __name__ == "__main__":
    sys.exit(main())
