"""Logits that requests' own processors edit: the one draw that waits for its forward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway.engine.plan import SlotStart
from slipway.worker.device.batch import StepShape
from slipway.worker.device.pinned import sent
from slipway.worker.device.results import recorded
from slipway.worker.device.state import SlotState
from slipway.worker.processors import Asked, Processors


class ProcessedRows:
    """Takes rows of logits to the processors on the host, and brings back what they make of them.

    Steps without such rows, and requests beside them, are computed as where there are no processors.
    """

    def __init__(self, processors: Processors, state: SlotState, vocab: int) -> None:
        """vocab: of the model; requests with processors draw no token that an adapter adds"""
        self._processors = processors
        self._state = state
        self._vocab = vocab
        self._num_prompt: dict[int, int] = {}
        """By slot, of a request that has processors."""

    def start(self, start: SlotStart) -> None:
        """A request takes the slot."""
        self._processors.start(start.slot, start.params.processors)
        self._num_prompt[start.slot] = start.num_prompt

    def edited(self, shape: StepShape, logits: Tensor) -> tuple[Tensor | None, dict[int, str]]:
        """What the step launched last draws from instead of logits [requests · each, vocab], in fp32, and why
        requests cannot go on, by index in the plan.

        None where none of those that draw has processors; where one has, this waits for the forward pass.
        """
        slots = shape.slots.tolist()
        places = [
            place for place, slot in enumerate(slots) if shape.draws[place] and slot in self._processors
        ]
        if not places:
            return None, {}
        numbers = torch.tensor(places) * shape.each  # they verify no drafts: the first of their rows draws
        asked = self._asked(shape, places, logits[sent(numbers, logits.device), : self._vocab])
        self._processors.begin()
        answers = self._processors.answers(asked)
        found = [
            (number, row) for number, row in zip(numbers.tolist(), answers, strict=True) if row is not None
        ]
        edited = logits.to(torch.float32, copy=True)
        if found:
            rows = torch.stack([torch.from_numpy(row) for _, row in found])
            index = torch.tensor([number for number, _ in found])
            rows_of_vocab = edited[:, : self._vocab]
            rows_of_vocab.index_copy_(0, sent(index, logits.device), sent(rows, logits.device))
        return edited, self._processors.errors

    def _asked(self, shape: StepShape, places: list[int], logits: Tensor) -> list[Asked]:
        """What these requests are asked, of their logits and of the tokens that their slots have: on the host
        when this returns.
        """
        slots = shape.slots[places].tolist()
        lengths = (shape.first + shape.num_new)[places].tolist()
        tokens = self._state.tokens[sent(torch.tensor(slots), logits.device), : max(lengths)]
        cuda = logits.device.type == "cuda"
        rows = torch.empty(logits.shape, dtype=torch.float32, pin_memory=cuda)
        known = torch.empty(tokens.shape, dtype=torch.int32, pin_memory=cuda)
        rows.copy_(logits, non_blocking=True)
        known.copy_(tokens, non_blocking=True)
        if (ready := recorded(logits.device)) is not None:
            ready.synchronize()
        return [
            Asked(
                int(shape.order[place]),
                slot,
                known[number, :length].tolist(),
                self._num_prompt[slot],
                rows[number].numpy(),
            )
            for number, (place, slot, length) in enumerate(zip(places, slots, lengths, strict=True))
        ]
