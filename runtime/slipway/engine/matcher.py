"""What says which tokens of a request may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """Where one request stands in its grammar. What it raises ends that request and no other."""

    def advance(self, tokens: Sequence[int]) -> int | None:
        """These tokens have been drawn. The number of them that complete the text, behind which nothing may
        come; None while something may."""

    def forced(self) -> list[int]:
        """The tokens to come about which the grammar leaves no choice: they are drafts of the next step."""

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        """[1 + len(drafts), ceil(vocab / 32)]: bits of the tokens that may come next, then after each draft.

        What it says of the rows after a draft that it refuses does not matter. It advances by none of them.
        """
