from __future__ import annotations

import pytest
import torch

from slipway_kernels.activation import activate, add_gated, gated, reference
from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.quantize.reference import quantize

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("rows", "width", "run", "kind", "dtype"),
    [
        (1, 64, 0, "silu", BF16),
        (3, 100, 0, "gelu", FP32),
        (2, 40, 16, "gelu_tanh", BF16),
        (2, 96, 16, "silu", FP16),
        (1, 1100, 1, "relu", FP32),
        (2, 1040, 8, "relu2", FP16),
        (2, 1030, 0, "gelu_tanh", FP32),
        (0, 64, 0, "silu", BF16),
    ],
)
def test_a_gate_is_activated_and_multiplied_in_either_layout(
    device: torch.device, rows: int, width: int, run: int, kind: str, dtype: torch.dtype
) -> None:
    columns = 2 * (-(-width // run) * run if run else width)
    x = (torch.randn(rows, columns + 8, device=device) * 2).to(dtype)[:, :columns]
    out = torch.empty(rows, width + 3, device=device, dtype=dtype)[:, :width]
    assert gated(x, out, kind, run=run) is out
    expected = reference.gated(x, width, kind, run)
    assert row_error(out, expected) <= rounding(dtype)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "tanh"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_an_activation_works_in_place(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-12, 12, 200, device=device).to(dtype).view(100, 2).T.contiguous()
    expected = reference.activate(x.float(), kind)
    assert activate(x, x, kind) is x
    assert row_error(x, expected) <= rounding(dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("width", "group", "run"), [(100, 0, 0), (300, 128, 0), (144, 64, 16)])
def test_a_quantized_output_is_the_quantized_reference(
    device: torch.device, dtype: torch.dtype, width: int, group: int, run: int
) -> None:
    x = torch.randn(3, 2 * width, device=device, dtype=BF16)
    out = torch.empty(3, width, device=device, dtype=dtype)
    scales = torch.empty((3, -(-width // group)) if group else (3,), device=device)
    gated(x, out, "silu", run=run, scales=scales, group=group)
    exact = reference.gated(x, width, "silu", run)
    _, expected = quantize(exact, dtype, group)
    torch.testing.assert_close(scales.view(expected.shape), expected, rtol=1e-5, atol=0)
    each = scales.view(expected.shape).repeat_interleave(group or width, 1)[:, :width]
    step = each * 0.51 if dtype == torch.int8 else exact.abs() / 15 + each * 2**-9
    assert ((out.float() * each - exact).abs() <= step).all()


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_a_gated_row_is_added(device: torch.device, dtype: torch.dtype) -> None:
    out, y = torch.randn(2, 3, 1100, device=device, dtype=dtype)
    gate = torch.randn(3, 5, device=device, dtype=dtype)[:, 2:3]
    expected = reference.add_gated(out.float(), y.float(), gate.float())
    assert add_gated(out, y, gate) is out
    assert row_error(out, expected) <= rounding(dtype)


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    x, out = torch.zeros(2, 96, device=device), torch.zeros(2, 40, device=device)
    with pytest.raises(
        ValueError, match=r"x has 96 columns, for 40 of out there are 80: .* before the others"
    ):
        gated(x, out, "silu")
    gated(x, out, "silu", run=16)
    with pytest.raises(ValueError, match=r"The activation is 'swish': there are silu, gelu"):
        activate(out, out, "swish")
    with pytest.raises(ValueError, match=r"x is \[2, 96\] and out \[2, 40\]"):
        activate(x, out, "relu")
