"""What a model on a device is made in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slipway.model.spec import Attention
from slipway.worker.device.attention import AttentionBackend
from slipway.worker.device.schemes import DeviceSchemes


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """What a decoder is given of the worker.

    attention  makes the backend for layers that ask this of attention
    on_host    layers whose weights stay in host memory, ascending
    """

    schemes: DeviceSchemes
    attention: Callable[[Sequence[Attention]], AttentionBackend]
    max_len: int
    dtype: torch.dtype
    device: torch.device
    on_host: Sequence[int] = ()
