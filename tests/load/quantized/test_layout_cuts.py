"""Parts of one layer, and layers whose tensors do not fit each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize import awq, fp8, gptq, int8, packed, words

from random_codes import random
from slipway.load.arrays import E4M3, FP16, FP32
from slipway.load.cut import Cut, Part, numbered
from slipway.load.errors import LoadError
from slipway.load.quantized.awq import AwqLayout
from slipway.load.quantized.compressed import WHOLE_TENSOR, PackedLayout
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.gptq import GptqLayout
from slipway.load.quantized.layout import Layout
from slipway.load.quantized.scaled import ScaledLayout
from slipway.load.quantized.tensors import Grouped
from tensor_files import Tensors

DRAW = np.random.default_rng(0)


def integers(**zeros: np.ndarray) -> Tensors:
    """Whole bytes, with a scale for each row."""
    codes = DRAW.integers(-128, 128, (24, 96), np.int8)
    return {"weight": codes, "weight_scale": DRAW.random((24, 1)).astype(FP16), **zeros}


ZEROS = DRAW.integers(-128, 128, (24, 1), np.int8)
ONE_SCALE = {
    "weight_packed": words(DRAW.integers(256, size=(24, 96)), 8),
    "weight_scale": np.array([0.25], np.float32),
    "weight_shape": np.array([24, 96]),
}
LAYOUTS: dict[str, tuple[Layout, Tensors]] = {
    "awq": (AwqLayout(32), awq(random(24, 96, 32))),
    "awq by row": (AwqLayout(-1), awq(random(24, 96, -1))),
    **{
        f"gptq of {bits} bits{', act-order' * ordered}": (
            GptqLayout(bits, 32, symmetric=False, act_order=ordered),
            gptq(random(24, 96, 32, bits=bits, act_order=ordered)),
        )
        for bits in (4, 8)
        for ordered in (False, True)
    },
    **{
        f"compressed of {bits} bits{', act-order' * ordered}": (
            PackedLayout(bits, 32, symmetric=bits == 8, act_order=ordered),
            packed(
                random(24, 96, 32, bits=bits, symmetric=bits == 8, act_order=ordered),
                symmetric=bits == 8,
                act_order=ordered,
            ),
        )
        for bits in (4, 8)
        for ordered in (False, True)
    },
    "compressed, one scale": (PackedLayout(8, WHOLE_TENSOR), ONE_SCALE),
    "compressed, whole bytes": (
        PackedLayout(8, -1, symmetric=False, packed=False),
        integers(weight_zero_point=ZEROS),
    ),
    "int8": (ScaledLayout(floats=False), int8(DRAW.standard_normal((24, 96), np.float32))),
    "fp8 by tensor": (ScaledLayout(), fp8(DRAW.standard_normal((24, 96), np.float32), "tensor")),
    "fp8 by row": (ScaledLayout(), fp8(DRAW.standard_normal((24, 96), np.float32), "row")),
    "fp8 by groups": (
        ScaledLayout(block=(1, 32)),
        {
            "weight": DRAW.standard_normal((24, 96), np.float32).astype(E4M3),
            "weight_scale": DRAW.random((24, 3), np.float32),
        },
    ),
    "fp8 by blocks": (
        ScaledLayout(block=(8, 32)),
        {
            "weight": DRAW.standard_normal((24, 90), np.float32).astype(E4M3),
            "weight_scale": DRAW.random((3, 3), np.float32),
        },
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_cut_in_reading_is_that_part_of_the_whole(name: str, data: st.DataObject) -> None:
    """To the bit, in the form that is announced; where nothing shares a scale also in any order."""
    layout, pieces = LAYOUTS[name]
    whole, form = layout.read("layer", pieces).dequantized(FP32), layout.form("layer", pieces)

    def part(count: int, step: int) -> Part:
        if step == 1 and data.draw(st.booleans()):
            return np.array(
                data.draw(st.permutations(range(count)))[: data.draw(st.integers(1, count))], np.int32
            )
        begin, end = sorted(data.draw(st.sets(st.integers(0, -(-count // step)), min_size=2, max_size=2)))
        return slice(begin * step, min(end * step, count))

    (n, k), steps = whole.shape, form.steps
    cut = Cut(part(n, steps[0]), part(k, steps[1]))
    matrix = layout.read("layer", pieces, cut)
    assert np.array_equal(matrix.dequantized(FP32), whole[cut.rows][:, cut.columns])
    assert matrix.shape == (len(numbered(cut.rows, n)), len(numbered(cut.columns, k)))
    if isinstance(matrix, Grouped):
        announced = form.cut(cut.columns)
        assert isinstance(announced, GroupedForm)
        assert (announced.group, announced.order, matrix.order) == (matrix.group, b"", None)


def test_the_columns_of_act_order_can_be_read_as_they_stand() -> None:
    """Sorted by group: then a cut between groups leaves them whole, and nothing is left of the order."""
    layout, pieces = LAYOUTS["gptq of 4 bits, act-order"]
    form = layout.form("layer", pieces)
    assert isinstance(form, GroupedForm)
    assert form.cut(slice(0, 32)).group < 32
    stored = form.columns[32:96]  # type: ignore[index]
    assert form.cut(stored) == GroupedForm(4, 32, True, FP32)


def test_a_block_of_scales_is_not_parted() -> None:
    layout, pieces = LAYOUTS["fp8 by blocks"]
    with pytest.raises(ValueError, match="4 to 16 of 24 are no whole blocks of 8"):
        layout.read("layer", pieces, Cut(slice(4, 16)))


Change = Callable[[Tensors], object]
WRONG: list[tuple[Layout, Tensors, Change, str]] = [
    (
        AwqLayout(32),
        awq(random(16, 64, 32)),
        lambda p: p.update(scales=p["scales"][:1]),
        r"layer has scales of shape \[1, 16\], and its other tensors ask for \[2, 16\]",
    ),
    (
        AwqLayout(32),
        awq(random(16, 64, 32)),
        lambda p: p.update(qzeros=p["qzeros"].astype(np.float32)),
        "layer has qzeros stored as float32, and not as int32",
    ),
    (
        AwqLayout(48),
        awq(random(16, 64, 32)),
        lambda p: None,
        "layer has 64 columns, which groups of 48 do not divide",
    ),
    (
        GptqLayout(4, 32),
        gptq(random(16, 64, 32)),
        lambda p: None,
        r"layer has zero points other than 8, and config.json calls it symmetric. If they are right, give "
        r"--hf-overrides '\{\"quantization_config\": \{\"sym\": false\}\}'",
    ),
    (
        GptqLayout(4, 32, symmetric=False, act_order=True),
        gptq(random(16, 64, 32)),
        lambda p: p.update(g_idx=np.zeros(64, np.int32)),
        "layer has g_idx that does not deal 64 columns into 2 groups of 32",
    ),
    (
        PackedLayout(4, 32),
        packed(random(16, 64, 32, symmetric=True), symmetric=True),
        lambda p: p.update(weight_shape=np.array([16, 80])),
        r"layer has weight_packed of shape \[16, 8\], and weight_shape says \[16, 80\]",
    ),
    (
        ScaledLayout(),
        fp8(np.ones((8, 16), np.float32), "row"),
        lambda p: p.update(weight_scale=np.ones(3, np.float32)),
        "layer has weight_scale of 3 numbers, and needs one, or one for each of 8 rows",
    ),
    (
        ScaledLayout(static=True),
        fp8(np.ones((8, 16), np.float32), "row") | {"input_scale": np.ones(2, np.float32)},
        lambda p: None,
        "layer has input_scale of 2 numbers, and needs one for all activations",
    ),
    (
        ScaledLayout(),
        fp8(np.ones((8, 16), np.float32), "row"),
        lambda p: p.update(weight=p["weight"].astype("float8_e5m2")),
        "layer has weight stored as float8_e5m2, and not as float8_e4m3fn",
    ),
    (
        ScaledLayout(floats=False),
        int8(np.ones((8, 16), np.float32)),
        lambda p: p.update(weight=p["weight"][0]),
        "layer has weight of 1 dimensions, which is no matrix",
    ),
]


@pytest.mark.parametrize(("layout", "pieces", "change", "message"), WRONG)
def test_pieces_that_do_not_fit_are_named(
    layout: Layout, pieces: Tensors, change: Change, message: str
) -> None:
    changed = dict(pieces)
    change(changed)
    with pytest.raises(LoadError, match=message) as caught:
        layout.read("layer", changed)
    assert caught.value.code == "BadCheckpoint"
