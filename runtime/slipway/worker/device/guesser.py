"""What guesses for a model, with its weights on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from slipway.worker.device.any_decoder import AnyDecoder
from slipway.worker.device.batch import Batch
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.products import Move


class Guesser(Protocol):
    """A second model, or what goes on from the target's rows."""

    @property
    def told(self) -> Sequence[Tensor]:
        """[most rows, hidden] each: the target's rows that it goes on from; none: it reads tokens alone."""

    def use(self, pages: DevicePages) -> None:
        """Keep keys and values in these pages of the target's from now on."""

    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor:
        """[rows, width]  of which `logits` makes logits, and from which the next draft's pass goes on

        given  [rows, width] each  what each row goes on from, where anything: the target's rows for the first
               draft, then what this has given
        ahead  drafts that have been guessed already: of several links, which one is next
        """

    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor:
        """hidden [rows, width] → [rows, vocab].   slots [rows] int32, whose they are; -1: nobody's"""

    def move(self, to: Move) -> None:
        """Have `to(tensor)` in the place of each tensor that it multiplies by or looks up."""


class Drafted:
    """A model and what guesses for it: their weights and their pages come and go together."""

    def __init__(self, target: AnyDecoder, guesser: Guesser) -> None:
        self.ranks = target.ranks
        self.graphs, self.low_rank = target.graphs, target.low_rank
        self.told, self.taken = target.told, target.taken
        self.hidden, self.logits, self.embedded = target.hidden, target.logits, target.embedded
        self._both = target, guesser

    def use(self, pages: DevicePages) -> None:
        for one in self._both:
            one.use(pages)

    def move(self, to: Move) -> None:
        for one in self._both:
            one.move(to)
