"""How much memory a served model needs, and whether it fits.

The arithmetic is pure and imports nothing heavy: `estimate(needs, device)` works where neither torch nor
numpy is installed. What a model needs is read by `slipway.fit.describe`, which plans it as the engine does.
"""

from slipway.fit.devices import Device, UnknownDevice, named, of_labels
from slipway.fit.estimate import Estimate, RankEstimate, estimate
from slipway.fit.needs import Needs, RankNeeds, Step

__all__ = [
    "Device",
    "Estimate",
    "Needs",
    "RankEstimate",
    "RankNeeds",
    "Step",
    "UnknownDevice",
    "estimate",
    "named",
    "of_labels",
]
