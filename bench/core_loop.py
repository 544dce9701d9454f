"""What a step costs beside the model: inbox, scheduling, plan, results, frames. Prints JSON.

    python bench/core_loop.py [--requests 32 256 1024] [--groups 1]

The worker knows its tokens (no model); a client on the real socket reads every frame. A step of decodes may
take 0.2 ms at 32 requests, 1 ms at 256 and 4 ms at 1,024.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

from slipway.dist.frames import encode_frame
from slipway.engine.core import EngineCore
from slipway.engine.executor import Executor, NullWorker
from slipway.engine.kv_cache import KVCache, block_hash
from slipway.engine.messages import PROTOCOL_VERSION, AddRequest, Hello
from slipway.engine.page_pool import PagePool
from slipway.engine.params import SamplingParams
from slipway.engine.scheduler import Scheduler, SchedulerLimits
from slipway.engine.wire import Hub
from slipway.model.kv import KVGroup

BLOCK, PROMPT = 16, 50
SPARE = 100
"""Steps beyond those measured, in which the requests arrive."""


def talk(client: socket.socket, frames: list[bytes]) -> None:
    """The API process: send, then read whatever comes."""
    for frame in frames:
        client.sendall(frame)
    received = bytearray(1 << 20)
    while client.recv_into(received):
        pass


def measure(requests: int, groups: int, steps: int) -> float:
    """Median seconds of a decode step."""
    blocks = -(-(PROMPT + steps + SPARE) // BLOCK)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "engine.sock")
        listener.bind(path)
        listener.listen()
        hub = Hub(listener)
        cache = KVCache(
            PagePool(requests * groups * blocks),
            [KVGroup(BLOCK, window) for window in (0, *[64] * (groups - 1))],
            prefix_caching=True,
            hash_block=block_hash("builtin"),
        )
        limits = SchedulerLimits(token_budget=2048, max_requests=requests)
        core = EngineCore(Scheduler(cache, limits), Executor(NullWorker(requests)), hub)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            params = SamplingParams(steps + SPARE)
            messages = [AddRequest(str(i), [i] * PROMPT, params) for i in range(requests)]
            frames = [encode_frame(message) for message in (Hello(PROTOCOL_VERSION, 0), *messages)]
            # A process, as in life: a thread would take turns with the core.
            api = os.fork()
            if not api:
                talk(client, frames)
                os._exit(0)
            while len(core.scheduler.running) < requests:
                core.run_once()
            times = []
            for _ in range(steps):
                started = time.perf_counter()
                core.run_once()
                times.append(time.perf_counter() - started)
            client.shutdown(socket.SHUT_RDWR)
            os.waitpid(api, 0)
        hub.close()
    return statistics.median(times)


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--requests", type=int, nargs="*", default=[32, 256, 1024])
    parser.add_argument("--groups", type=int, default=1, help="of layers: one full, the others sliding")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    for requests in arguments.requests:
        seconds = measure(requests, arguments.groups, arguments.steps)
        print(json.dumps({"requests": requests, "step_ms": round(seconds * 1000, 4)}))


if __name__ == "__main__":
    main()
