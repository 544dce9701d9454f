from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from slipway.worker.proposer import NgramProposer
from slipway_kernels.ngram import look_up, reference

I32 = torch.int32
MAX_LEN = 3000
"""Of a slot: several pieces of the search."""


class Slots:
    """Slots that hold these tokens, with 5 drafts of a step before behind them."""

    def __init__(self, device: torch.device, known: list[list[int]], max_len: int = MAX_LEN) -> None:
        wide = torch.full((len(known), max_len + 4), 99, device=device, dtype=I32)
        self.tokens = wide[:, :max_len]
        for row, tokens in zip(self.tokens, known, strict=True):
            row[: len(tokens)] = torch.tensor(tokens, dtype=I32)
        self.num_tokens = torch.tensor([len(tokens) for tokens in known], device=device, dtype=I32)
        self.num_drafts = torch.full((len(known),), 5, device=device, dtype=I32)

    def drafts(self, slot: int) -> list[int]:
        known = int(self.num_tokens[slot])
        return self.tokens[slot, known : known + int(self.num_drafts[slot])].tolist()


def looked_up(use: Callable[..., None], of: Slots, slots: list[int], counts: list[int], **sizes: int) -> None:
    device = of.tokens.device
    batch = (torch.tensor(values, device=device, dtype=I32) for values in (slots, counts))
    use(*batch, of.tokens, of.num_tokens, of.num_drafts, **sizes)


def repeats(length: int, alphabet: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, alphabet, (length,), generator=generator).tolist()


KNOWN = [
    *(repeats(length, 3, length) for length in (1, 2, 3, 7, 40, 1024, 1025, 2999)),
    repeats(2900, 40, 1),  # longest n-grams in several pieces
    repeats(700, 9000, 2),  # mostly nothing
    [7] * 2050,
    [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3],  # of two places the first
    [8, *([5] * 2500), 8, 6, 8],  # a place in the first piece alone
]


@pytest.mark.parametrize(("most", "min_n", "max_n"), [(5, 2, 5), (40, 1, 1), (1, 3, 30)])
def test_drafts_are_those_of_the_cpu(device: torch.device, most: int, min_n: int, max_n: int) -> None:
    slots, expected = Slots(device, KNOWN), Slots(device, KNOWN)
    every = list(range(len(KNOWN)))
    for use, of in ((look_up, slots), (reference.look_up, expected)):
        looked_up(use, of, every, [1] * len(every), most=most, min_n=min_n, max_n=max_n)
    proposer = NgramProposer(most, min_n, max_n)
    for slot, known in enumerate(KNOWN):
        drafts = proposer.propose(np.array(known, np.int32)).tolist()[: MAX_LEN - len(known)]
        assert slots.drafts(slot) == expected.drafts(slot) == drafts
    assert torch.equal(slots.tokens, expected.tokens), "nothing else is written"
    assert (slots.num_drafts > 0).any()


def test_slots_that_drew_nothing_keep_what_they_have(device: torch.device) -> None:
    slots = Slots(device, [[4, 5, 4]] * 4)
    before = slots.tokens.clone()
    looked_up(look_up, slots, [2, -1, 0], [0, 1, 2], most=3, min_n=1, max_n=2)
    assert slots.num_drafts.tolist() == [2, 5, 5, 5]
    assert torch.equal(slots.tokens[1:], before[1:])
    assert slots.drafts(0) == [5, 4]


def test_drafts_end_with_the_slot(device: torch.device) -> None:
    slots = Slots(device, [[6, 7, 8, 9, 6], [6, 7, 8, 9, 6, 1, 2, 6]], max_len=8)
    looked_up(look_up, slots, [0, 1], [1, 1], most=5, min_n=1, max_n=2)
    assert [slots.drafts(slot) for slot in (0, 1)] == [[7, 8, 9], []]


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    slots = Slots(device, [[1]])
    with pytest.raises(ValueError, match=r"There are 2 requests and 1 slots, counts are \[1\]"):
        looked_up(look_up, slots, [0, -1], [1], most=1, min_n=1, max_n=1)
    with pytest.raises(ValueError, match="n-grams have 3 to 2 tokens"):
        looked_up(look_up, slots, [0], [1], most=1, min_n=3, max_n=2)
    slots.num_drafts = slots.num_drafts.long()
    with pytest.raises(ValueError, match=r"A tensor is torch.int64 .* int32"):
        looked_up(look_up, slots, [0], [1], most=1, min_n=1, max_n=1)
