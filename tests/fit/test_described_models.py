"""What config.json says of a model's weights is what the headers of its files say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from planned_needs import needs_of
from quantize import quantize, recipe

from factory import model_folders
from packed_forms import as_gguf
from slipway.fit import Needs
from slipway.load.errors import LoadError

DECODERS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
)
STORED = ("awq", "gptq", "w4a16", "w8a8", "fp8", "fp8-block")
PLACES = pytest.mark.parametrize("device", ["cpu", "cuda"])


@pytest.fixture(scope="session")
def native_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny models whose heads native code takes."""
    own = {name: (name, {} if name == "qwen2" else {"head_dim": 16}) for name in DECODERS}
    return model_folders(tmp_path_factory.mktemp("native"), own)


def without_weights(model: Path, folder: Path) -> Path:
    """A copy of all but the weights."""
    return Path(shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors")))


def same(needs: Needs) -> Needs:
    """But for what is said of them."""
    return replace(needs, notes=())


@PLACES
@pytest.mark.parametrize("architecture", DECODERS)
def test_plain_ones(
    native_models: Callable[[str], Path], tmp_path: Path, architecture: str, device: str
) -> None:
    model = native_models(architecture)
    bare = needs_of(without_weights(model, tmp_path / "bare"), device=device)
    assert same(bare) == same(needs_of(model, device=device))
    assert "No weights are here: their sizes follow from config.json." in bare.notes


@PLACES
@pytest.mark.parametrize("method", STORED)
def test_quantized_ones(tiny_models: Callable[[str], Path], tmp_path: Path, method: str, device: str) -> None:
    model = quantize(tiny_models("llama"), tmp_path / method, recipe(method, group=16))
    bare = needs_of(without_weights(model, tmp_path / "bare"), device=device)
    assert same(bare) == same(needs_of(model, device=device))


def test_the_data_of_files_is_not_read(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_models("llama"), tmp_path / "cut"))
    whole = needs_of(model)
    (file,) = model.glob("*.safetensors")
    size, header = file.stat().st_size, 8 + int.from_bytes(file.read_bytes()[:8], "little")
    with file.open("r+b") as open_file:
        open_file.truncate(header)
        open_file.truncate(size)  # a hole in the place of all numbers
    assert needs_of(model) == whole


def test_a_gguf_file_tells_by_its_header(tmp_path: Path) -> None:
    four, eight = (needs_of(as_gguf(tmp_path / f"{kind}.gguf", kind)).ranks[0] for kind in ("Q4_0", "Q8_0"))
    assert four.weights < eight.weights
    assert four.kv == eight.kv


def test_what_no_family_knows_is_refused_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OrangeForCausalLM"]}))
    with pytest.raises(LoadError) as refused:
        needs_of(tmp_path)
    assert "the shapes of OrangeForCausalLM are not known without them" in refused.value.message
    assert "Fetch the model" in (refused.value.hint or "")


@pytest.mark.torch
def test_what_transformers_code_runs_is_refused(tiny_models: Callable[[str], Path]) -> None:
    with pytest.raises(LoadError, match="GPT2LMHeadModel is no decoder with native code"):
        needs_of(tiny_models("gpt2"))
