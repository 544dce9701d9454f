"""The comparison's arithmetic; the rest of it is run by hand."""

from __future__ import annotations

import math
import random
import statistics

from side_by_side import paired


def test_a_ratio_is_taken_round_by_round() -> None:
    drifting = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert paired([0.5 * value for value in drifting], drifting) == (0.5, 0.5, 0.5)


def test_fewer_rounds_than_an_interval_needs_give_their_whole_range() -> None:
    assert paired([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]) == (2.0, 1.0, 3.0)


def test_the_interval_holds_the_true_median_at_least_nine_times_in_ten() -> None:
    draw = random.Random(1)
    for rounds in (5, 8, 12, 40):
        held = 0
        for _ in range(2000):
            _, low, high = paired([math.exp(draw.gauss(0, 1)) for _ in range(rounds)], [1.0] * rounds)
            held += low <= 1.0 <= high
        assert held / 2000 >= 0.89, rounds


def test_the_interval_of_forty_rounds_is_no_wider_than_it_must_be() -> None:
    ranks = [float(rank) for rank in range(40)]
    middle, low, high = paired(ranks, [1.0] * 40)
    assert (middle, low, high) == (statistics.median(ranks), 14.0, 25.0)
