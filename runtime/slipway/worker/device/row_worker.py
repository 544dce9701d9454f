"""Workers whose steps leave rows, of which no token is drawn here."""

from __future__ import annotations

from torch import Tensor

from slipway.worker.device.batch import Batch
from slipway.worker.device.worker import DeviceWorker
from slipway_kernels.slots import finish


class RowWorker(DeviceWorker):
    """Its slots go on by the rows that they have computed."""

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The rows that the decoder ends with [rows, hidden], twice: they are in the place of logits."""
        self._prepare(batch)
        hidden = self._decoder.hidden(batch)
        return hidden, hidden

    def _use_all(self, batch: Batch, hidden: Tensor, logits: Tensor) -> None:
        self._advance(batch)

    def _advance(self, batch: Batch) -> None:
        """The slots' rows are computed; no token follows."""
        state, requests = self._state, len(batch.slots)
        drawn = self._results.drawn(requests).token
        finish(
            slots=batch.slots,
            query_start=batch.query_start,
            drawn=drawn.fill_(-1).view(requests, 1),
            counts=state.counts[:requests],
            tokens=state.tokens,
            num_tokens=state.num_tokens,
            num_computed=state.num_computed,
            num_drafts=state.num_drafts,
        )
