"""What a `quantization_config` means for a layer, and which are refused."""

from __future__ import annotations

import pytest

from slipway.args.groups.model import QUANTIZATIONS, WORKING_QUANTIZATIONS
from slipway.load.errors import LoadError
from slipway.load.quantized.awq import AwqLayout
from slipway.load.quantized.compressed import WHOLE_TENSOR, PackedLayout
from slipway.load.quantized.config import quantization
from slipway.load.quantized.gptq import GptqLayout
from slipway.load.quantized.layout import Layout
from slipway.load.quantized.on_the_fly import METHODS, ON_THE_FLY, WORKING, conversion
from slipway.load.quantized.scaled import ScaledLayout

LAYER = "model.layers.3.mlp.down_proj"
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
BY_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
MEASURED = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}


def layout(settings: dict[str, object], name: str = LAYER, pieces: tuple[str, ...] = ()) -> Layout:
    found = quantization(settings)
    assert found is not None
    return found.layout_of(name, pieces)


def compressed(form: str, weights: object, inputs: object = None, **more: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **more,
    }


def test_plain_weights_have_none() -> None:
    assert quantization({}) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, AwqLayout(64)),
        ({"bits": 4, "group_size": -1, "version": "GEMM", "backend": "autoawq"}, AwqLayout(-1)),
        ({"w_bit": 4, "q_group_size": 32, "zero_point": False}, AwqLayout(32, zero_point=False)),
        ({"bits": 4, "group_size": 128, "format": "gemm"}, AwqLayout(128)),
    ],
)
def test_awq(settings: dict[str, object], expected: Layout) -> None:
    assert layout({"quant_method": "awq", **settings}) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"bits": 4, "group_size": 128, "sym": True, "desc_act": False}, GptqLayout(4, 128)),
        ({"bits": 8, "group_size": -1, "sym": False}, GptqLayout(8, -1, symmetric=False)),
        ({"bits": 4, "group_size": 32, "desc_act": True}, GptqLayout(4, 32, act_order=True)),
        (
            {"bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"},
            GptqLayout(4, 128, zeros_less_one=False),
        ),
        ({"bits": 4, "format": "gptq", "pack_dtype": "int32"}, GptqLayout(4, 128)),
    ],
)
def test_gptq(settings: dict[str, object], expected: Layout) -> None:
    assert layout({"quant_method": "gptq", **settings}) == expected


def test_gptq_may_treat_some_layers_otherwise() -> None:
    settings = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "dynamic": {
            r"-:.*\.q_proj": {},
            r"+:.*\.down_proj": {"bits": 8, "group_size": 64},
            r".*\.up_proj": {"desc_act": True},
        },
    }
    assert layout(settings) == GptqLayout(8, 64)
    assert layout(settings, "model.layers.3.mlp.up_proj") == GptqLayout(4, 128, act_order=True)
    assert layout(settings, "model.layers.3.mlp.gate_proj") == GptqLayout(4, 128)


@pytest.mark.parametrize(
    ("settings", "pieces", "expected"),
    [
        ({}, ("weight", "weight_scale"), ScaledLayout()),
        ({"activation_scheme": "static"}, ("weight", "weight_scale"), ScaledLayout(static=True)),
        (
            {"weight_block_size": [128, 64], "fmt": "e4m3"},
            ("weight", "weight_scale_inv"),
            ScaledLayout(block=(128, 64), scale="weight_scale_inv"),
        ),
        (
            {"activation_scheme": "static", "weight_block_size": None},
            ("weight", "weight_scale_inv", "activation_scale"),
            ScaledLayout(True, True, None, "weight_scale_inv", "activation_scale"),
        ),
    ],
)
def test_fp8(settings: dict[str, object], pieces: tuple[str, ...], expected: Layout) -> None:
    assert layout({"quant_method": "fp8", **settings}, pieces=pieces) == expected
    if not settings:
        assert layout({"quant_method": "fbgemm_fp8"}, pieces=pieces) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (compressed("pack-quantized", INT4), PackedLayout(4, 128)),
        (
            compressed("pack-quantized", INT4 | {"symmetric": False, "actorder": "group"}),
            PackedLayout(4, 128, symmetric=False, act_order=True),
        ),
        (compressed("pack-quantized", INT4 | {"actorder": "weight"}), PackedLayout(4, 128)),
        (compressed("pack-quantized", INT8), PackedLayout(8, -1)),
        (compressed("pack-quantized", INT8 | {"strategy": "tensor"}), PackedLayout(8, WHOLE_TENSOR)),
        (compressed("int-quantized", INT8, BY_TOKEN), ScaledLayout(False)),
        (compressed("int-quantized", INT8, MEASURED | {"type": "int"}), ScaledLayout(False, static=True)),
        # Asymmetric activations have a zero point; scaled token by token they need none.
        (
            compressed("int-quantized", INT8, MEASURED | {"type": "int", "symmetric": False}),
            ScaledLayout(False),
        ),
        (compressed("naive-quantized", INT8), PackedLayout(8, -1, packed=False)),
        (
            compressed("int-quantized", INT8 | {"symmetric": False}, BY_TOKEN),
            PackedLayout(8, -1, symmetric=False, packed=False),
        ),
        (compressed("float-quantized", FP8, BY_TOKEN | {"type": "float"}), ScaledLayout(True)),
        (compressed("naive-quantized", FP8), ScaledLayout(True)),
        (
            compressed("float-quantized", FP8 | {"strategy": "tensor"}, MEASURED),
            ScaledLayout(True, static=True),
        ),
        (
            compressed("float-quantized", FP8 | {"strategy": "block", "block_structure": [128, 128]}),
            ScaledLayout(True, block=(128, 128)),
        ),
        (
            compressed("float-quantized", FP8 | {"strategy": "group", "group_size": 32}),
            ScaledLayout(True, block=(1, 32)),
        ),
    ],
)
def test_compressed_tensors(settings: dict[str, object], expected: Layout) -> None:
    assert layout(settings) == expected
    unnamed = {name: value for name, value in settings.items() if name != "quant_method"}
    assert layout(unnamed) == expected


def test_groups_of_compressed_tensors_are_for_the_layers_that_they_name() -> None:
    """The exact name or a pattern before the class, whatever the order; each may have a form of its own."""
    settings: dict[str, object] = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "all": {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"},
            "down": {
                "targets": [r"re:.*\.down_proj$"],
                "weights": INT8,
                "input_activations": BY_TOKEN,
                "format": "int-quantized",
            },
            "head": {"targets": ["lm_head"], "weights": INT8, "format": "pack-quantized"},
        },
    }
    assert layout(settings) == ScaledLayout(False)
    assert layout(settings, "model.layers.3.mlp.up_proj") == PackedLayout(4, 128)
    assert layout(settings, "lm_head") == PackedLayout(8, -1)


def test_a_layer_that_no_group_is_for_is_an_error() -> None:
    settings = compressed("pack-quantized", INT4)
    settings["config_groups"]["group_0"]["targets"] = ["re:.*q_proj"]  # type: ignore[index]
    with pytest.raises(LoadError, match=rf"The layer {LAYER} is quantized, and no group of config\.json"):
        layout(settings)


REFUSED = [
    ({"quant_method": "bitsandbytes"}, r"quantized by 'bitsandbytes', .* Use awq, gptq, compressed-tensors"),
    ({"quant_method": "awq", "bits": 3}, "AWQ with 3 bits"),
    ({"quant_method": "awq", "version": "gemv"}, "AWQ's packing gemv, .* the version gemm"),
    ({"quant_method": "awq", "backend": "llm-awq"}, "AWQ's packing llm-awq"),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, r"GPTQ with 3 bits, .* of 4 or 8 bits"),
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "in the form of marlin"),
    ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "in the form of marlin"),
    ({"quant_method": "gptq", "bits": 4, "pack_dtype": "int16"}, "packed in int16"),
    ({"quant_method": "gptq", "dynamic": {"+:.*": {"bits": 2}}}, "GPTQ with 2 bits"),
    ({"quant_method": "fp8", "activation_scheme": "guess"}, "the activation_scheme 'guess'"),
    ({"quant_method": "fp8", "expert_dtype": "fp4"}, "experts in fp4"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 weights in e5m2"),
    (compressed("marlin-24", INT4), "The form marlin-24 of compressed-tensors"),
    (compressed("nvfp4-pack-quantized", INT4), "The form nvfp4-pack-quantized"),
    (
        compressed("pack-quantized", INT4, sparsity_config={"format": "sparse-24-bitmask"}),
        "the sparsity sparse-24-bitmask",
    ),
    (compressed("pack-quantized", INT4, transform_config={"config_groups": {}}), "activations rotated"),
    (compressed("pack-quantized", INT4 | {"num_bits": 3}), "compressed-tensors with 3 bits"),
    (compressed("pack-quantized", INT4 | {"strategy": "tensor_group"}), "with scales by tensor_group"),
    (compressed("float-quantized", FP8 | {"num_bits": 4}), "floats of 4 bits"),
    (compressed("float-quantized", FP8 | {"strategy": "attn_head"}), "fp8 weights with scales by attn_head"),
    ({"quant_method": "compressed-tensors", "config_groups": {"W8A8": ["Linear"]}}, "names a preset"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_we_lack_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        quantization(settings)
    assert caught.value.code == "UnsupportedFormat"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quant_method": "awq", "group_size": 0},
            "group_size .* is 0, and must be a whole number above 0, or",
        ),
        ({"quant_method": "awq", "group_size": "a"}, "group_size .* is 'a', and must be a whole number"),
        (
            {"quant_method": "fp8", "weight_block_size": [128]},
            r"weight_block_size .* is \[128\], and must be two",
        ),
        ({"quant_method": "gptq", "dynamic": {"+:(": {}}}, r"is '\(', and must be a regular expression"),
    ],
)
def test_a_malformed_configuration_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        quantization(settings)
    assert caught.value.code == "BadCheckpoint"


def test_the_arguments_know_which_names_work() -> None:
    assert WORKING == WORKING_QUANTIZATIONS
    assert set(WORKING) <= set(QUANTIZATIONS)


@pytest.mark.parametrize(("asked", "methods"), METHODS.items())
def test_a_name_that_the_checkpoint_bears_changes_nothing(asked: str, methods: tuple[str, ...]) -> None:
    assert all(conversion(asked, method) is None for method in methods)
    assert all(conversion(None, method) is None for method in (*methods, ""))


@pytest.mark.parametrize("asked", ["fp8", "ptpc_fp8", "int8", "int4", "experts_int8"])
def test_plain_weights_can_be_converted(asked: str) -> None:
    made = conversion(asked, "")
    assert made is not None
    assert made is ON_THE_FLY[asked]


@pytest.mark.parametrize(
    ("asked", "method", "message"),
    [
        ("awq", "gptq", "--quantization awq contradicts the checkpoint, .* quantized by gptq. Leave it out"),
        ("fp8", "compressed-tensors", "quantized by compressed-tensors. Leave it out, or give compressed-te"),
        ("int8", "gguf", "--quantization int8 contradicts the checkpoint"),
        ("awq", "", "wants a checkpoint that is quantized so, .* can be made fp8, ptpc_fp8, int8, int4, exp"),
        ("gguf", "", "this one's weights are plain"),
        ("bitsandbytes", "", "--quantization bitsandbytes is not supported yet. Use one of awq, "),
    ],
)
def test_a_name_that_contradicts_the_checkpoint_is_refused(asked: str, method: str, message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        conversion(asked, method)
    assert caught.value.argument == "quantization"
