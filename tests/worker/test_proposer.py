from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipway.worker.proposer import NgramProposer


def searched(tokens: list[int], num_drafts: int, min_n: int, max_n: int) -> list[int]:
    """The definition: the longest n-gram at the end that stands before, at the first such place."""
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n :][:num_drafts]
    return []


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    num_drafts=st.integers(1, 6),
    min_n=st.integers(1, 4),
    more=st.integers(0, 4),
)
def test_drafts_continue_the_longest_ngram_at_its_first_place(
    tokens: list[int], num_drafts: int, min_n: int, more: int
) -> None:
    proposer = NgramProposer(num_drafts, min_n, min_n + more)
    drafts = proposer.propose(np.array(tokens, np.int32)).tolist()
    assert drafts == searched(tokens, num_drafts, min_n, min_n + more)
