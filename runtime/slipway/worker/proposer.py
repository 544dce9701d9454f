"""What guesses the tokens that a slot's next draw verifies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import Ints


@dataclass(frozen=True, slots=True)
class NgramProposer:
    """Prompt lookup: where the last tokens stood before, they may go on as they did there.

    Takes the longest n-gram at the end, of `min_n` to `max_n` tokens, that also stands before; of several
    such places the first, as vLLM does: the prompt rather than what the model made of it. It compares the
    last token with all, and longer n-grams only where the shorter one matched.
    Source: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding.
    """

    num_drafts: int
    min_n: int
    max_n: int

    def propose(self, tokens: Ints) -> Ints:
        """Drafts for what follows these tokens [known], in order; none where nothing suggests itself."""
        n = 1
        ends = np.flatnonzero(tokens[:-1] == tokens[-1])  # of the last n tokens, where they stood before
        while n < self.max_n and len(ends):
            longer = ends[ends >= n]
            longer = longer[tokens[longer - n] == tokens[-1 - n]]
            if not len(longer):
                break
            ends, n = longer, n + 1
        if n < self.min_n or not len(ends):
            return tokens[:0]
        return tokens[ends[0] + 1 :][: self.num_drafts]
