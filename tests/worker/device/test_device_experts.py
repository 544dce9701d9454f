"""Experts' matrices, which are stacked to one, and passes over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipway.load.arrays import BF16, E4M3, INT8, Array
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Grouped, Quantized, Scaled
from slipway.model.spec import Moe
from slipway.model.weights import MlpWeights, MoeWeights
from slipway.schemes.fused import FusedLinear, stacked
from slipway.worker.device.feed_forward import Experts, with_stacked_experts
from slipway.worker.device.schemes import DeviceDense, DeviceSchemes
from slipway.worker.device.transfer import Transfer
from slipway_kernels.cuda.launch import device_in_use
from slipway_kernels.linear_w4a16 import Packed

EXPERTS, WIDE = 3, 64
ONES = np.ones((WIDE, WIDE), np.float32)
FORMS: dict[str, tuple[Form | None, Quantized | Array]] = {
    "plain": (None, ONES),
    "fp8": (
        ScaledForm(E4M3),
        Scaled(ONES.astype(E4M3), np.ones(WIDE, np.float32)),
    ),
    "fp8 by blocks": (
        ScaledForm(E4M3, (128, 128)),
        Scaled(ONES.astype(E4M3), np.ones((1, 1), np.float32)),
    ),
    "int8 by row": (
        ScaledForm(INT8),
        Scaled(ONES.astype(np.int8), np.ones(WIDE, np.float32)),
    ),
    "int8": (
        GroupedForm(8, 32),
        Grouped(8, 32, ONES.astype(np.int8), np.ones((WIDE, WIDE // 32), np.float16)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_stacked_keeps_its_form_and_is_not_held_a_second_time(form: str) -> None:
    schemes = DeviceSchemes(BF16, Transfer(device_in_use()))

    def matrix() -> FusedLinear:
        linear = stacked(WIDE, {"it": WIDE}, {"it": schemes.of(FORMS[form][0], expert=True)})
        linear.load("it", FORMS[form][1])
        linear.finish(schemes.placed)
        return linear

    moe = Moe(EXPERTS, 2, WIDE // 2, "silu", normalize_top_k=True)
    mlps = tuple(MlpWeights(moe.expert, matrix(), matrix()) for _ in range(EXPERTS))
    weights = MoeWeights(moe, matrix(), mlps, None, None)
    experts = with_stacked_experts(weights, device_in_use())
    assert isinstance(experts, Experts)
    assert (
        isinstance(experts.gate_up, DeviceDense) == isinstance(experts.down, DeviceDense) == (form == "plain")
    )
    for expert in weights.experts:
        for linear in (expert.gate_up, expert.down):
            held = vars(linear.parts[0].scheme).values()
            assert not any(isinstance(value, torch.Tensor | Packed) for value in held)
