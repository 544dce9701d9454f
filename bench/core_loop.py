"""What a step costs beside the model: inbox, scheduling, plan, results, frames. Prints JSON.

    python bench/core_loop.py [--requests 32]

The worker knows its tokens (no model); a client on the real socket reads every frame. The architecture
allows 0.2 ms a step at 32 requests.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from slipway.engine.core import EngineCore
from slipway.engine.executor import InTurn, NullWorker
from slipway.engine.kv_cache import KVCache
from slipway.engine.messages import PROTOCOL_VERSION, AddRequest, Hello
from slipway.engine.page_pool import PagePool
from slipway.engine.params import SamplingParams
from slipway.engine.scheduler import Scheduler, SchedulerLimits
from slipway.engine.wire import Hub, encode_frame


def drain(client: socket.socket) -> None:
    while client.recv(1 << 20):
        pass


def measure(requests: int, steps: int) -> float:
    """Median seconds of a decode step."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "engine.sock")
        listener.bind(path)
        listener.listen()
        hub = Hub(listener)
        cache = KVCache(PagePool(1 << 14), 16, (0,), prefix_caching=True, hash_name="builtin")
        limits = SchedulerLimits(token_budget=2048, max_requests=requests)
        core = EngineCore(Scheduler(cache, limits), InTurn(NullWorker(requests)), hub)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(encode_frame(Hello(PROTOCOL_VERSION, 0)))
            for i in range(requests):
                params = SamplingParams(steps + 100)
                client.sendall(encode_frame(AddRequest(str(i), [i] * 50, params)))
            reader = threading.Thread(target=drain, args=(client,), daemon=True)
            reader.start()
            while len(core.scheduler.running) < requests:
                core.run_once()
            times = []
            for _ in range(steps):
                started = time.perf_counter()
                core.run_once()
                times.append(time.perf_counter() - started)
            client.shutdown(socket.SHUT_RDWR)
            reader.join(5)
        hub.close()
    return statistics.median(times)


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    seconds = measure(arguments.requests, arguments.steps)
    print(json.dumps({"requests": arguments.requests, "step_ms": round(seconds * 1000, 4)}))


if __name__ == "__main__":
    main()
