"""How many drafts of a slot may be used."""

from __future__ import annotations

import numpy as np

from slipway.engine.plan import StepPlan
from slipway.load.arrays import Ints
from slipway_kernels.cpu import Slots, StepResult


def wanted_drafts(slots: Slots, plan: StepPlan, result: StepResult, length: int) -> Ints:
    """[requests of the plan]  as many as it grants and `length` tokens allow; 0 where the step drew nothing.

    length  tokens of a request that the proposer may read: the last draft is never read
    """
    if not plan.ahead:
        return np.zeros(len(plan.slots), np.int32)
    drew = (result.requests["num_drawn"] > 0) & (result.requests["failed"] == 0)
    left = length + 1 - slots.num_tokens[plan.slots]
    wanted: Ints = np.maximum(np.minimum(plan.ahead, left), 0) * drew
    return wanted
