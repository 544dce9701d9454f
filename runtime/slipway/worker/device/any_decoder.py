"""What the worker on a device wants of a model, whoever's code computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from slipway.worker.device.batch import Batch
from slipway.worker.device.low_rank import LowRank, SlotAdapters
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.products import Move
from slipway.worker.device.ranks import Ranks


class AnyDecoder(Protocol):
    """The model on the device: our code's `Decoder`, or transformers'."""

    graphs: bool
    """Whether steps can be captured in CUDA graphs."""

    ranks: Ranks
    """With whom its matrices are shared."""

    @property
    def told(self) -> Sequence[Tensor]:
        """[most rows, hidden] each: rows of the last step, as `ModelPlan.taps` asks for what guesses.

        Of a stage before another, the rows that it ends with. They lie in no graph's pool, and do not move
        once the largest step has run.
        """

    @property
    def taken(self) -> Sequence[Tensor]:
        """[most rows, hidden]  of a stage behind another, the rows that a step begins with; likewise."""

    @property
    def low_rank(self) -> LowRank | None:
        """What adapters add to it; None where none are served."""

    def use(self, pages: DevicePages) -> None:
        """Keep keys and values in these pages from now on."""

    def hidden(self, batch: Batch) -> Tensor:
        """[rows, hidden], of which `logits` makes logits."""

    def logits(self, hidden: Tensor, slots: Tensor, adapters: SlotAdapters | None) -> Tensor:
        """hidden [rows, hidden] → [rows, vocab], or wider where adapters have tokens of their own

        slots     [rows] int32, whose they are; -1: nobody's
        adapters  of the step; None: it has none
        """

    def embedded(self, token_ids: Tensor) -> Tensor:
        """[rows, hidden]  rows of the embedding, as they are stored; for what guesses"""

    def move(self, to: Move) -> None:
        """Have `to(tensor)` in the place of each tensor that it multiplies by or looks up."""
