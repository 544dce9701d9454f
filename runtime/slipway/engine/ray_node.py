"""`python -m slipway.engine.ray_node ORDER`: starts the ranks of a node on which Ray has places for them.

ORDER is an inherited descriptor of a `NodeOrder`. It ends with what started it, and its ranks with it.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import msgspec

from slipway.begin import begin
from slipway.engine.node import NodeOrder, run_node
from slipway.engine.start import describe
from slipway.envs import read
from slipway.processes import die_with_parent, told
from slipway.temporary import private_folder

log = logging.getLogger("slipway.engine")


def main() -> int:
    die_with_parent()
    order = told(int(sys.argv[1]), NodeOrder)
    begin(order.config.log_config_file, read(os.environ), f"[node {order.config.node_rank}] ")
    try:
        with private_folder("slipway-key-") as folder:
            key = Path(folder) / "key"
            key.touch(0o600)
            key.write_bytes(order.key)
            return run_node(msgspec.structs.replace(order.config, cluster_key_file=str(key)))
    except Exception as error:
        failure = describe(error)
        log.error("%s %s", failure.message, failure.hint)
        return failure.code


if __name__ == "__main__":
    sys.exit(main())
