"""Experts' matrices, which are stacked to one."""

from __future__ import annotations

import pytest
import torch

from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Grouped, Quantized, Scaled
from slipway.model.spec import Moe
from slipway.model.weights import MlpWeights, MoeWeights
from slipway.schemes.fused import FusedLinear, stacked
from slipway.schemes.on_device import DeviceSchemes
from slipway.schemes.transfer import Transfer
from slipway.worker.device.feed_forward import Experts
from slipway_kernels.cuda.launch import device_in_use
from slipway_kernels.linear_w4a16.layout import Packed

EXPERTS, WIDE = 3, 64
FORMS: dict[str, tuple[Form | None, Quantized | torch.Tensor]] = {
    "plain": (None, torch.ones(WIDE, WIDE)),
    "fp8": (
        ScaledForm(torch.float8_e4m3fn),
        Scaled(torch.ones(WIDE, WIDE).to(torch.float8_e4m3fn), torch.ones(WIDE)),
    ),
    "fp8 by blocks": (
        ScaledForm(torch.float8_e4m3fn, (128, 128)),
        Scaled(torch.ones(WIDE, WIDE).to(torch.float8_e4m3fn), torch.ones(1, 1)),
    ),
    "int8 by row": (
        ScaledForm(torch.int8),
        Scaled(torch.ones(WIDE, WIDE, dtype=torch.int8), torch.ones(WIDE)),
    ),
    "int8": (
        GroupedForm(8, 32),
        Grouped(8, 32, torch.ones(WIDE, WIDE, dtype=torch.int8), torch.ones(WIDE, WIDE // 32).half()),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_stacked_keeps_its_form_and_is_not_held_a_second_time(form: str) -> None:
    schemes = DeviceSchemes(torch.bfloat16, Transfer(device_in_use()))

    def matrix() -> FusedLinear:
        linear = stacked(WIDE, {"it": WIDE}, schemes.of(FORMS[form][0], expert=True))
        linear.load("it", FORMS[form][1])
        linear.finish(device_in_use())
        return linear

    weights = MoeWeights(matrix(), tuple(MlpWeights(matrix(), matrix()) for _ in range(EXPERTS)), None, None)
    experts = Experts.of(Moe(EXPERTS, 2, WIDE // 2, "silu", normalize_top_k=True), weights)
    assert (
        isinstance(experts.gate_up, torch.Tensor)
        == isinstance(experts.down, torch.Tensor)
        == (form == "plain")
    )
    for expert in weights.experts:
        for linear in (expert.gate_up, expert.down):
            held = vars(linear.parts[0].scheme).values()
            assert not any(isinstance(value, torch.Tensor | Packed) for value in held)
