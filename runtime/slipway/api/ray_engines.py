"""`python -m slipway.api.ray_engines ORDER`: engines of a node on which Ray has places for them.

ORDER is an inherited descriptor of an `EnginesOrder`. It ends with what started it, and its engines with it.
"""

from __future__ import annotations

import os
import signal
import sys

from slipway import envs
from slipway.api import headless
from slipway.api.headless import EnginesOrder
from slipway.api.server import explained
from slipway.begin import begin
from slipway.engine.several import started
from slipway.processes import STOP_SIGNALS, die_with_parent, told


def main() -> int:
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
