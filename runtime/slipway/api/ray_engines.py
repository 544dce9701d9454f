"""`python -m slipway.api.ray_engines ORDER`: engines of a node on which Ray has places for them.

ORDER is an inherited descriptor of an `EnginesOrder`. It ends with what started it, and its engines with it.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from slipway import envs
from slipway.begin import begin
from slipway.engine.config import EngineConfig
from slipway.engine.launch import STOP_SIGNALS, die_with_parent, told
from slipway.engine.several import started


class EnginesOrder(msgspec.Struct, frozen=True):
    """What Ray carries to a node."""

    config: EngineConfig
    ranks: list[int]
    """Of this node's engines, among all."""
    size: int
    """Of all."""
    head: tuple[str, int]
    """Where the server is."""
    key: bytes
    """The cluster's, which lies in no file that all nodes have."""


def main() -> int:
    from slipway.api import headless
    from slipway.api.server import explained

    die_with_parent()
    order = told(int(sys.argv[1]), EnginesOrder)
    begin(order.config.log_config_file, envs.read(os.environ))
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def life() -> int:
        with started(order.config, order.ranks, order.size, alone=False, in_process=False) as engines:
            return headless.run(order.size, order.key, engines, order.head)

    return explained(life)


if __name__ == "__main__":
    sys.exit(main())
