"""Asks /live as a kubelet does, from a process of its own, and says how long the answers took.

    python tests/soak/probe.py URL

Ends when its standard input does, with one line of JSON: how many answers, and milliseconds.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

INTERVAL = 0.02
"""Seconds from one answer to the next question."""


def seconds_to_live(address: str) -> float:
    """Over a connection of its own. Raises AssertionError where the answer is not 200."""
    begun = time.perf_counter()
    client = http.client.HTTPConnection(address, timeout=60)
    try:
        client.request("GET", "/live")
        answer = client.getresponse()
        answer.read()
    finally:
        client.close()
    assert answer.status == 200, answer.status
    return time.perf_counter() - begun


def figures(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * value for value in seconds)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {
        name: ordered[min(int(len(ordered) * share), len(ordered) - 1)] for name, share in shares.items()
    }
    return {
        "answers": len(ordered),
        **{name: round(value, 1) for name, value in found.items()},
        "worst": round(ordered[-1], 1),
    }


def main() -> None:
    address = urlsplit(sys.argv[1]).netloc
    took = [seconds_to_live(address)]
    while not select.select([sys.stdin], [], [], INTERVAL)[0]:
        took.append(seconds_to_live(address))
    print(json.dumps(figures(took)))


if __name__ == "__main__":
    main()
