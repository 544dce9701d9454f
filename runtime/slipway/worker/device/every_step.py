"""The steps that a worker may have, one of each kind: what they launch is all that a server launches.

Which kernel a step wants depends on its numbers of rows and requests by the bounds of tile tables, which are
powers of two, and by whether a number is 1. So padding of these sizes, and of one more, stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from slipway.worker.device.batch import StepShape, nobody
from slipway_kernels.sampling import Features

Rehearsed = tuple[StepShape, int, int]
"""A step of padding, its rows and its requests."""

SQUARE = 128
"""Rows of the largest tile: how many tiles a product has decides on their size, too."""


def sizes(most: int) -> list[int]:
    """Numbers of rows or requests up to `most`: powers of two, one more, and whole tiles."""
    powers = [1 << exponent for exponent in range(most.bit_length())]
    found = {*powers, *(power + 1 for power in powers), *range(SQUARE, most, SQUARE), most}
    return sorted(size for size in found if size <= most)


def decodes(most_requests: int, most_rows: int, each: int, length: int, adapters: int) -> Iterator[Rehearsed]:
    """Steps without prompts.

    each      rows that a request draws from
    length    of the longest context, at least
    adapters  different ones
    """
    for requests in sizes(min(most_requests, most_rows // each)):
        yield nobody(requests, each, max(length, each), each, adapters), requests * each, requests


def prompts(most_requests: int, most_rows: int, each: int, length: int, adapters: int) -> Iterator[Rehearsed]:
    """Steps with prompts; the rest is as in `decodes`."""
    for rows in sizes(most_rows):
        for requests in {min(count, most_requests, rows) for count in (1, 2, most_requests)}:
            longest = rows - requests + 1
            if longest > each:
                yield nobody(requests, longest, max(length, longest), each, adapters), rows, requests


def draws(max_top: int) -> Iterator[Features]:
    """What batches ask of the sampler, as `Sampler.features` and masks of grammars bring it."""
    switches = product((False, True), repeat=5)
    for (edits, penalties, random, filters, masked), top in product(switches, (-1, max_top)):
        possible = (edits or not (penalties or masked)) and (random or not filters)
        if possible and (random or masked or not edits):
            yield Features(edits, penalties, random, filters, top, masked)
