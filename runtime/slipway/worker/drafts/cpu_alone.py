"""What guesses on CPU, and is refused on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.engine.config import EngineConfig
from slipway.load.errors import LoadError

if TYPE_CHECKING:
    import torch

    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.proposer import DeviceProposer
    from slipway.worker.device.sampler import Sampler
    from slipway.worker.device.state import SlotState


class CpuAlone:
    """The half of a `DraftPlan` for a device, of heads: they read rows that a captured forward pass drops."""

    __slots__ = ()
    settings: EngineConfig

    def on_device(self, state: SlotState, sampler: Sampler, token_budget: int) -> DeviceProposer:
        raise self._not_there

    def read_on_device(self, device: torch.device) -> AnyDecoder:
        raise self._not_there

    @property
    def _not_there(self) -> LoadError:
        return LoadError(
            "UnsupportedModel",
            f"{self.settings.model} has heads, and on CUDA n-grams and draft models alone guess yet.",
            hint="Name a draft model or the method ngram, or serve with --device cpu.",
            argument="speculative_config",
        )
