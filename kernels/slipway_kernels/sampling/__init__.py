"""Sampling: from rows of logits to tokens."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.sampling.device import report, sample
    from slipway_kernels.sampling.record import MASKED, Acceptance, Features, RecordLayout

__all__ = ["MASKED", "Acceptance", "Features", "RecordLayout", "report", "sample"]

__getattr__ = exports(
    __name__, device=("report", "sample"), record=("MASKED", "Acceptance", "Features", "RecordLayout")
)
