"""`python -m slipway.engine.ray_node ORDER`: starts the ranks of a node on which Ray has places for them.

ORDER is an inherited descriptor of a `NodeOrder`. It ends with what started it, and its ranks with it.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile

import msgspec

from slipway.begin import begin
from slipway.engine.node import NodeOrder, run_node
from slipway.engine.start import describe
from slipway.envs import read
from slipway.processes import die_with_parent, told

log = logging.getLogger("slipway.engine")


def main() -> int:
    die_with_parent()
    order = told(int(sys.argv[1]), NodeOrder)
    begin(order.config.log_config_file, read(os.environ), f"[node {order.config.node_rank}] ")
    with tempfile.NamedTemporaryFile(prefix="slipway-key-") as key:  # for this user alone
        key.write(order.key)
        key.flush()
        try:
            return run_node(msgspec.structs.replace(order.config, cluster_key_file=key.name))
        except Exception as error:
            failure = describe(error)
            log.error("%s %s", failure.message, failure.hint)
            return failure.code


if __name__ == "__main__":
    sys.exit(main())
