"""Embeddings that come with requests: rows of a step that are in no table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipway.engine.plan import SlotStart
from slipway.load.arrays import Floats
from slipway.load.torch_arrays import tensor
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.pinned import sent

Chunk = tuple[int, Floats]
"""A request's place in the batch, and what is given of the first rows that the step computes of it."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """The given rows of a step.

    places      [n]  of their requests in the batch
    numbers     [n]  of each among its request's rows
    embeddings  [n, hidden] fp32
    """

    places: Tensor
    numbers: Tensor
    embeddings: Tensor

    def enter(self, residual: Tensor, batch: Batch) -> None:
        """Take the place of rows [rows, hidden] that were made of tokens.

        Only the device knows where a request's rows begin: before them may be fewer drafts than planned.
        """
        rows = batch.query_start[self.places] + self.numbers
        residual.index_copy_(0, rows, self.embeddings.to(residual.dtype))


class GivenEmbeddings:
    """What is given to the requests in the slots. It waits on the host for the steps that compute it."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        self._hidden = hidden
        self._device = device
        self._left: dict[int, Floats] = {}
        """By slot, all that its request was given, until the last of it goes to the device."""

    def start(self, start: SlotStart) -> None:
        """A request takes the slot."""
        self._left.pop(start.slot, None)
        if start.given:
            self._left[start.slot] = np.frombuffer(start.given, np.float32).reshape(-1, self._hidden)

    def chunks(self, shape: StepShape) -> list[Chunk]:
        """What the step that is about to be launched computes of it."""
        found: list[Chunk] = []
        for place, slot in enumerate(shape.slots.tolist() if self._left else ()):
            if slot in self._left:
                given, first = self._left[slot], int(shape.first[place])
                end = first + int(shape.num_new[place])
                if end >= len(given):
                    del self._left[slot]
                if first < len(given):
                    found.append((place, given[first:end]))
        return found

    def rows(self, chunks: list[Chunk]) -> GivenRows:
        """On their way to the device. They lie in memory of their own, so that nobody waits for the copy."""
        counts = [len(rows) for _, rows in chunks]
        places = np.repeat([place for place, _ in chunks], counts)
        numbers = np.concatenate([np.arange(count) for count in counts])
        index = sent(tensor(np.stack((places, numbers))), self._device)
        host = torch.empty(sum(counts), self._hidden, pin_memory=self._device.type == "cuda")
        np.concatenate([rows for _, rows in chunks], out=host.numpy())
        return GivenRows(index[0], index[1], sent(host, self._device))

    def most(self, rows: int) -> GivenRows:
        """As if all rows of a step were given, to one request."""
        return self.rows([(0, np.zeros((rows, self._hidden), np.float32))])
