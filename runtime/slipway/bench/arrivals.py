"""When requests arrive."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator


def arrivals(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Seconds from the start at which one request after the other is sent, without an end.

    The time between two follows a gamma distribution of mean 1 / rate and shape `burstiness`: its variance
    is 1 / (burstiness · rate²). Shape 1 is a Poisson process. At an infinite rate all are sent at once.
    """
    time = 0.0
    while True:
        yield time
        if rate < math.inf:
            time += rng.gammavariate(burstiness, 1 / (rate * burstiness))
