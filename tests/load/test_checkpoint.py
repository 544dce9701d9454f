"""Folders with safetensors or PyTorch files, dummy weights, and what is wrong with the others."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factory import make_model
from slipway.engine.config import EngineConfig
from slipway.load.arrays import BF16, FP16, FP32
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint, open_checkpoint
from slipway.load.errors import LoadError
from slipway.load.safetensors import table
from tensor_files import Tensors, load, numbers_of, same, save


def opened(folder: Path, **options: object) -> Checkpoint:
    settings = EngineConfig(model=str(folder), use_tqdm_on_load=False, **options)  # type: ignore[arg-type]
    return open_checkpoint(settings, lambda phase, done, total: None)


def model_folder(place: Path, tensors: Tensors | None = None) -> Path:
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text('{"model_type": "llama"}')
    if tensors is not None:
        save(tensors, place / "model.safetensors")
    return place


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_model("llama", tmp_path / "sharded", shards=3)


def test_a_folder_gives_its_configuration_and_tensors(tiny_models: Callable[[str], Path]) -> None:
    folder = tiny_models("llama")
    checkpoint = opened(folder)
    assert checkpoint.folder == folder
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.source_dtype == "float32"
    expected = load(folder / "model.safetensors")
    found = dict(numbers_of(checkpoint))
    assert found.keys() == expected.keys()
    assert all(same(found[name], weights) for name, weights in expected.items())
    assert checkpoint.total_bytes == sum(weights.nbytes for weights in expected.values())


def test_shards_are_one_checkpoint(sharded: Path, tmp_path: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) >= 3
    whole = load(make_model("llama", tmp_path / "whole") / "model.safetensors")
    found = dict(numbers_of(opened(sharded)))
    assert found.keys() == whole.keys()
    assert all(same(found[name], weights) for name, weights in whole.items())


def test_tensors_stay_valid_after_their_pages_were_released_and_the_file_closed(
    tiny_models: Callable[[str], Path],
) -> None:
    folder = tiny_models("llama")
    checkpoint = opened(folder)
    found = dict(numbers_of(checkpoint))
    checkpoint.close()
    for name, weights in load(folder / "model.safetensors").items():
        assert same(found[name], weights)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.float16, "float16"),
        (np.float32, "float32"),
        (np.float64, "float32"),
        (ml_dtypes.float8_e4m3fn, "bfloat16"),
        (ml_dtypes.float8_e5m2, "bfloat16"),
    ],
)
def test_every_stored_type_is_converted_once(stored: type, name: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((16, 8)).astype(stored)
    checkpoint = opened(model_folder(tmp_path, {"w": weights, "ids": np.arange(3)}))
    assert checkpoint.source_dtype == name
    for dtype in (FP32, BF16, FP16):
        found = dict(numbers_of(checkpoint, dtype))
        assert same(found["w"], weights.astype(dtype))
        assert found["ids"].dtype == np.int64


@pytest.mark.torch
@pytest.mark.parametrize("mapped", [True, False])
def test_pytorch_files_are_read_where_there_are_no_safetensors(mapped: bool, tmp_path: Path) -> None:
    import torch

    folder = make_model("llama", tmp_path / "model", safetensors=False)
    file = folder / "pytorch_model.bin"
    expected = torch.load(file, weights_only=True)
    torch.save(expected, file, _use_new_zipfile_serialization=mapped)
    checkpoint = opened(folder)
    found = dict(numbers_of(checkpoint))
    assert found.keys() == expected.keys()
    assert all(same(found[name], weights.numpy()) for name, weights in expected.items())
    assert checkpoint.source_dtype == "float32"


@pytest.mark.torch
def test_safetensors_are_preferred_and_pt_can_be_asked_for(tmp_path: Path) -> None:
    import torch

    folder = model_folder(tmp_path, {"w": np.zeros(2, np.float32)})
    torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
    torch.save({"step": 3}, folder / "training_args.bin")
    assert dict(numbers_of(opened(folder)))["w"].sum() == 0
    assert dict(numbers_of(opened(folder, load_format="pt")))["w"].sum() == 2


@pytest.mark.torch
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    import torch

    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path(tmp_path / "ran").touch, ())

    folder = model_folder(tmp_path)
    torch.save({"w": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(LoadError, match="cannot be read as PyTorch weights"):
        opened(folder)
    assert not (tmp_path / "ran").exists()


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(LoadError, match=f"1 of [0-9]+ weight files .* {shard.name}") as raised:
        opened(sharded)
    assert raised.value.code == "BadCheckpoint"


def test_an_index_that_names_the_wrong_shard_is_refused(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"]["model.norm.weight"] = next(
        file for file in files if file != index["weight_map"]["model.norm.weight"]
    )
    path.write_text(json.dumps(index))
    with pytest.raises(LoadError, match=r"model\.norm\.weight is in .*, but it is not"):
        opened(sharded)
    path.write_text('{"metadata": {}}')
    with pytest.raises(LoadError, match="has no weight_map"):
        opened(sharded)


def test_shards_without_an_index_are_read_and_a_name_in_two_of_them_is_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert len(list(numbers_of(opened(sharded), FP32))) == 30
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    shutil.copy(first, second)
    with pytest.raises(LoadError, match=f"both in {first.name} and in {second.name}"):
        opened(sharded)


def test_ignored_patterns_are_skipped(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {"w": np.zeros(2, np.float32)})
    shutil.copy(folder / "model.safetensors", folder / "extra.safetensors")
    with pytest.raises(LoadError, match="both in"):
        opened(folder)
    assert len(list(numbers_of(opened(folder, ignore_patterns=["extra*"]), FP32))) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "table of 0 bytes does not fit in 0"),
        (struct.pack("<Q", 2**62) + b"{}", "does not fit"),
        (struct.pack("<Q", 2) + b"[]", "cannot be read"),
        (struct.pack("<Q", 4) + b"{{{{", "cannot be read"),
        (b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', "does not lie at"),
        (b'{"w": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}', "stored as F4"),
        (b'{"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}', "does not lie at"),
        (b'{"w": {"dtype": "F32"}}', "cannot be read"),
        (
            b'{"v": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},'
            b' "w": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]}}',
            "v and w overlap",
        ),
    ],
)
def test_a_malformed_safetensors_file_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    if content.startswith(b"{"):
        content = struct.pack("<Q", len(content)) + content + b"\0" * 4
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(LoadError, match=reason) as raised:
        opened(folder)
    assert raised.value.argument == "model"


@given(data=st.data())
@settings(max_examples=200)
def test_damaged_safetensors_never_raise_anything_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.int8)}, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        entries = table(path)
    except LoadError:
        return
    assert all(entry.offset + entry.nbytes <= path.stat().st_size for entry in entries)


def test_a_folder_without_weights_or_configuration_says_so(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    with pytest.raises(LoadError, match=r"holds no weights \(\*\.safetensors, \*\.bin, \*\.pt"):
        opened(folder)
    (folder / "config.json").unlink()
    save({"w": np.zeros(2, np.float32)}, folder / "model.safetensors")
    with pytest.raises(LoadError, match=r"has no config\.json") as raised:
        opened(folder)
    assert raised.value.code == "ModelNotFound"
    (folder / "config.json").write_text("[1]")
    with pytest.raises(LoadError, match="holds a JSON list instead of an object"):
        opened(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(LoadError, match="cannot be read as JSON"):
        opened(folder)


@pytest.mark.parametrize("load_format", ["npcache", "tensorizer", "bitsandbytes", "sharded_state"])
def test_formats_that_are_not_built_yet_name_the_alternatives(load_format: str, tmp_path: Path) -> None:
    with pytest.raises(
        LoadError,
        match=r"not supported yet\. Use auto, safetensors, fastsafetensors, pt, mistral, gguf or dummy",
    ):
        opened(tmp_path, load_format=load_format)


def test_a_quantized_checkpoint_of_a_method_that_we_lack_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {"w": np.zeros(2, np.float32)})
    config = {"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=r"are quantized by 'bitsandbytes', which is not supported\. Use awq"):
        opened(folder)


def test_the_configuration_can_be_another_folders(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", {"w": np.zeros(2, np.float32)})
    other = model_folder(tmp_path / "other")
    (other / "config.json").write_text('{"model_type": "qwen3"}')
    assert opened(folder, hf_config_path=str(other)).config == {"model_type": "qwen3"}


def test_dummy_weights_need_no_files_and_depend_on_seed_and_name_only(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)

    def weights(seed: int, *names: str) -> Tensors:
        checkpoint = opened(folder, load_format="dummy", seed=seed)
        assert isinstance(checkpoint, DummyCheckpoint)
        checkpoint.shapes = dict.fromkeys(names, (8, 16)) | {"norm.weight": (8,)}
        return dict(numbers_of(checkpoint, BF16))

    both, one, other = weights(1, "a", "b"), weights(1, "b"), weights(2, "b")
    assert same(both["b"], one["b"])
    assert not same(both["a"], both["b"])
    assert not same(one["b"], other["b"])
    assert both["norm.weight"].tolist() == [1.0] * 8
    assert both["a"].dtype == BF16


def test_progress_is_shown_on_standard_error_only_where_asked(
    tiny_models: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for shown in (False, True):
        settings = EngineConfig(model=str(tiny_models("qwen2")), use_tqdm_on_load=shown)
        list(numbers_of(open_checkpoint(settings, lambda *told: None)))
        printed = capsys.readouterr()
        assert printed.out == ""
        assert ("Loading weights: " in printed.err) is shown
        assert printed.err.endswith("(100 %)\n") is shown
