"""Further hosts of an engine, which are loopback addresses here: a process each, that starts their ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from process_tree import children
from slipway.engine.config import EngineConfig

FIRST, SECOND = "127.0.0.2", "127.0.0.3"
NODE = """
import json, sys
import msgspec
from slipway.engine.config import EngineConfig
from slipway.engine.node import run_node
from slipway.exits import Exit

try:
    run_node(msgspec.convert(json.loads(sys.argv[1]), EngineConfig))
except Exit as error:
    print(error.exit_code.reason, error.message, flush=True)
    sys.exit(error.exit_code.code)
"""


@contextmanager
def second_host(fields: dict[str, Any], node: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Or another one."""
    config = EngineConfig(**(fields | {"node_rank": node, "host_ip": f"127.0.0.{2 + node}"}))
    told = json.dumps(msgspec.to_builtins(config))
    process = subprocess.Popen([sys.executable, "-c", NODE, told], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def far_ranks(node: subprocess.Popen[str]) -> list[int]:
    """Its processes."""
    return children(node.pid)
