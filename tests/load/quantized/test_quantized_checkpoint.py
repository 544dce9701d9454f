"""Quantized folders as checkpoints: what is yielded, in what memory, and what is wrong with others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from quantize import quantize, recipe, rounded

from factory import make_model
from model.stepping import plan
from slipway.engine.config import EngineConfig
from slipway.load.arrays import BF16, E4M3, FP16, FP32, Array
from slipway.load.checkpoint import Checkpoint, open_checkpoint
from slipway.load.errors import LoadError
from slipway.load.quantized.checkpoint import Layers
from slipway.load.quantized.form import GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Grouped, Scaled
from tensor_files import Tensors, load, numbers_of, pickle, same, save

Q_PROJ = "model.layers.0.self_attn.q_proj"


def opened(folder: Path, **options: object) -> Checkpoint:
    settings = EngineConfig(model=str(folder), use_tqdm_on_load=False, **options)  # type: ignore[arg-type]
    return open_checkpoint(settings, lambda phase, done, total: None)


@pytest.fixture
def quantized(tiny_models: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A tiny Llama, quantized by a method of bench/quantize.py."""

    def make(method: str, **options: object) -> Path:
        how = recipe(method, **{"group": 32, **options})  # type: ignore[arg-type]
        return quantize(tiny_models("llama"), tmp_path / method, how)

    return make


def changed(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """The folder with other tensors."""
    tensors = load(folder / "model.safetensors")
    change(tensors)
    save(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("method", ["awq", "gptq", "gptq-asym", "w4a16", "w8a8", "fp8", "fp8-block"])
def test_every_linear_layer_is_one_matrix_under_its_own_name(
    quantized: Callable[..., Path], tiny_models: Callable[[str], Path], method: str
) -> None:
    plain = load(tiny_models("llama") / "model.safetensors")
    checkpoint = opened(quantized(method))
    stored = {name: found.read() for name, found in checkpoint.stored(BF16)}
    assert stored.keys() == plain.keys()
    matrices = {name for name, matrix in stored.items() if isinstance(matrix, Grouped | Scaled)}
    assert matrices == {name for name in plain if "_proj" in name} == set(checkpoint.forms())
    for name, matrix in stored.items():
        assert matrix.shape == plain[name].shape
        if not isinstance(matrix, Grouped | Scaled):
            assert same(matrix, plain[name])


def test_a_checkpoint_says_how_it_is_quantized(quantized: Callable[..., Path]) -> None:
    assert opened(quantized("awq")).quantization == "awq"
    assert opened(quantized("w8a8")).quantization == "compressed-tensors"


def test_forms_are_known_before_a_matrix_is_read(quantized: Callable[..., Path]) -> None:
    forms = opened(quantized("gptq", act_order=True)).forms()
    ordered = forms[f"{Q_PROJ}.weight"]
    assert isinstance(ordered, GroupedForm)
    assert ordered == GroupedForm(4, 32, False, FP16, ordered.order)
    assert sorted(np.frombuffer(ordered.order, np.int32)) == list(range(64))
    forms = opened(quantized("awq")).forms()
    assert forms[f"{Q_PROJ}.weight"] == GroupedForm(4, 32, True, FP32)
    assert set(opened(quantized("fp8-block")).forms().values()) == {ScaledForm(E4M3, (128, 128))}


def test_tensors_are_what_the_codes_mean(
    quantized: Callable[..., Path], tiny_models: Callable[[str], Path]
) -> None:
    plain = load(tiny_models("llama") / "model.safetensors")
    tensors = dict(numbers_of(opened(quantized("gptq", act_order=True))))
    for name, weights in plain.items():
        if "_proj" in name:
            weights = rounded(weights, 4, 32, symmetric=True, act_order=True).weights()
        assert same(tensors[name], weights)


@pytest.mark.parametrize("shards", [1, 3])
def test_pieces_may_lie_in_any_file_and_order(tmp_path: Path, shards: int) -> None:
    """safetensors sorts by type, so that all scales of a file stand far from their codes."""
    source = make_model("llama", tmp_path / "source")
    folder = quantize(source, tmp_path / "quantized", recipe("awq", group=32))
    tensors = list(load(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    for shard in range(shards):
        save(dict(tensors[shard::shards]), folder / f"model-{shard}.safetensors")
    assert set(dict(opened(folder).stored(BF16))) == set(load(source / "model.safetensors"))


@pytest.mark.torch
def test_pytorch_files_are_read_too(quantized: Callable[..., Path]) -> None:
    folder = quantized("awq")
    expected = dict(numbers_of(opened(folder)))
    pickle(load(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    found = dict(numbers_of(opened(folder)))
    assert found.keys() == expected.keys()
    assert all(same(found[name], expected[name]) for name in expected)


class Counted:
    """Tensors in memory, with the number of those that were viewed and not yet released."""

    def __init__(self, tensors: dict[str, Array]) -> None:
        self.entries = tensors
        self.held: set[str] = set()
        self.released: list[str] = []
        self.announced: list[str] = []

    def reading(self, names: Sequence[str]) -> AbstractContextManager[None]:
        self.announced += names
        return nullcontext()

    def view(self, name: str) -> Array:
        self.held.add(name)
        return self.entries[name]

    def release(self, name: str) -> None:
        self.held.remove(name)
        self.released.append(name)


def test_no_more_than_one_layer_is_held_and_each_tensor_is_released_once(
    quantized: Callable[..., Path],
) -> None:
    checkpoint = opened(quantized("gptq", act_order=True))
    tensors = load(Path(str(checkpoint.folder)) / "model.safetensors")
    counted = Counted(tensors)
    from slipway.load.quantized.config import quantization

    how = quantization(checkpoint.config["quantization_config"])  # type: ignore[arg-type]
    assert how is not None
    for name, _ in Layers(counted, how).stored(BF16):
        layer = name.removesuffix(".weight")
        assert {held.rpartition(".")[0] for held in counted.held} <= {layer}
    assert sorted(counted.released) == sorted(tensors)
    assert counted.announced == counted.released


def test_progress_counts_every_byte_once(quantized: Callable[..., Path]) -> None:
    told: list[tuple[int, int]] = []
    settings = EngineConfig(model=str(quantized("awq")), use_tqdm_on_load=False)
    checkpoint = open_checkpoint(settings, lambda phase, done, total: told.append((done, total)))
    checkpoint.forms()
    list(checkpoint.stored(BF16))
    assert told[-1] == (checkpoint.total_bytes, checkpoint.total_bytes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(
    ("method", "piece", "others"),
    [
        ("awq", "qzeros", "qweight, scales"),
        ("gptq", "scales", "g_idx, qweight, qzeros"),
        ("w4a16", "weight_shape", "weight_packed, weight_scale"),
        ("w8a8", "weight_scale", "weight"),
        ("fp8", "weight_scale", "weight"),
    ],
)
def test_a_missing_piece_is_named(
    quantized: Callable[..., Path], method: str, piece: str, others: str
) -> None:
    folder = changed(quantized(method), lambda tensors: tensors.pop(f"{Q_PROJ}.{piece}"))
    message = rf"layer {Q_PROJ} has no {piece}, only {others}; \S+ needs it"
    with pytest.raises(LoadError, match=message) as caught:
        opened(folder)
    assert caught.value.code == "BadCheckpoint"


def test_act_order_without_its_groups_is_an_error(quantized: Callable[..., Path]) -> None:
    folder = changed(quantized("gptq", act_order=True), lambda tensors: tensors.pop(f"{Q_PROJ}.g_idx"))
    with pytest.raises(LoadError, match="has no g_idx"):
        opened(folder)


def test_a_piece_of_another_format_is_named(quantized: Callable[..., Path]) -> None:
    folder = changed(quantized("awq"), lambda t: t.update({f"{Q_PROJ}.weight_scale": np.ones(1, np.float32)}))
    message = f"layer {Q_PROJ} has a tensor weight_scale, and awq as config.json describes it has none"
    with pytest.raises(LoadError, match=message):
        opened(folder)


def test_a_layer_that_was_left_alone_stays_plain(quantized: Callable[..., Path]) -> None:
    def restore(tensors: Tensors) -> None:
        for piece in ("qweight", "qzeros", "scales"):
            tensors.pop(f"{Q_PROJ}.{piece}")
        tensors[f"{Q_PROJ}.weight"] = np.ones((64, 64), np.float32)

    stored = dict(opened(changed(quantized("awq"), restore)).stored(FP32))
    assert isinstance(stored[f"{Q_PROJ}.weight"].read(), np.ndarray)


@pytest.mark.parametrize(("method", "file"), [("gptq", "quantize_config.json"), ("awq", "quant_config.json")])
def test_older_checkpoints_keep_the_configuration_in_a_file_of_its_own(
    quantized: Callable[..., Path], method: str, file: str
) -> None:
    folder = quantized(method)
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config")
    del settings["quant_method"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / file).write_text(json.dumps(settings))
    checkpoint = opened(folder)
    assert checkpoint.quantization == method
    assert f"{Q_PROJ}.weight" in checkpoint.forms()


def test_the_configuration_can_be_overridden(quantized: Callable[..., Path]) -> None:
    folder = quantized("gptq-asym")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["sym"] = True
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match="zero points other than 8"):
        dict(numbers_of(opened(folder), BF16))
    dict(numbers_of(opened(folder, hf_overrides={"quantization_config": {"sym": False}}), BF16))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"self_attn.kv_scale": 0.5}, (0.5, 0.5)),
        ({"self_attn.k_scale": 0.5, "self_attn.v_scale": 0.25}, (0.5, 0.25)),
        ({"self_attn.attn.k_scale": 0.5, "self_attn.attn.v_scale": 0.25}, (0.5, 0.25)),
        ({"self_attn.k_proj.output_scale": 0.5, "self_attn.v_proj.output_scale": 0.25}, (0.5, 0.25)),
        ({"self_attn.k_proj.k_scale": 0.5, "self_attn.v_proj.v_scale": 0.25}, (0.5, 0.25)),
        ({"self_attn.q_scale": 0.5, "self_attn.prob_scale": 2.0, "self_attn.v_scale": 0.25}, (1.0, 0.25)),
    ],
)
def test_scales_of_a_kv_cache_are_no_weights(
    quantized: Callable[..., Path], names: dict[str, float], expected: tuple[float, float]
) -> None:
    plain = set(dict(opened(quantized("fp8")).stored(BF16)))
    added = {f"model.layers.1.{name}": np.array(value, np.float32) for name, value in names.items()}
    checkpoint = opened(changed(quantized("fp8"), lambda tensors: tensors.update(added)))
    assert set(dict(checkpoint.stored(BF16))) == plain
    assert checkpoint.kv_scales() == {1: expected}


def test_a_models_plan_takes_the_checkpoints_scales(quantized: Callable[..., Path]) -> None:
    scales = {f"model.layers.2.self_attn.{kind}_scale": np.array(0.5, np.float32) for kind in "kv"}
    folder = changed(quantized("fp8"), lambda tensors: tensors.update(scales))
    assert plan(folder, kv_cache_dtype="fp8").kv_scales == {2: (0.5, 0.5)}
    asked = plan(folder, kv_cache_dtype="fp8", calculate_kv_scales=True)
    assert (asked.kv_scales, asked.kv_divisors) == ({2: (0.5, 0.5)}, None)
    notice = "--calculate-kv-scales has no effect: the checkpoint gives scales of keys and values."
    assert notice in asked.warnings
