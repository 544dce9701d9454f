"""What would fit in place of what does not: every proposal does, and the document's own way is among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.published_models import PUBLISHED, beyond, engine_of, words_of
from planned_needs import write_config

from slipway.cli.main import main
from slipway.exits import MAX_BYTES
from small_shapes import LLAMA

LARGE = "qwen3-235b-a22b-fp8-tp4-h100"


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def asked(config: dict[str, Any], engine: dict[str, Any], *options: str) -> dict[str, Any]:
        folder = write_config(tmp_path, config)
        status = main(["fit", str(folder), "--json", *options, *words_of(engine)])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert status == (0 if found["fits"] else 1)
        return found

    return asked


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == LARGE else name for name in PUBLISHED],
)
def test_what_documents_run_fits_and_beyond_it_the_document_is_proposed(asked, name: str) -> None:
    document = PUBLISHED[name]
    config, device, own = document["config"], document["device"], engine_of(document)
    assert asked(config, own, "--device", device)["instead"] == []
    more = beyond(document)
    found = asked(config, more, "--device", device)
    assert not found["fits"]
    kinds = [{*change} for change in found["instead"]]
    if "max_model_len" in more and more["max_model_len"] > 1 << 20:
        assert {"max_model_len"} in kinds
    else:
        assert {"tensor_parallel_size": own["tensor_parallel_size"]} in found["instead"]
    for change in found["instead"]:
        elsewhere = change.pop("device", device)
        assert asked(config, {**more, **change}, "--device", elsewhere)["fits"], change


def test_a_node_with_two_devices_is_not_told_to_take_four(asked) -> None:
    node = "nvidia.com/gpu.product=NVIDIA-A10,nvidia.com/gpu.memory=23028,nvidia.com/gpu.count={}"
    config, engine = PUBLISHED["qwen3-30b-a3b-tp4-a10"]["config"], {"tensor_parallel_size": 2}
    of_two = asked(config, engine, "--node", node.format(2))["instead"]
    assert of_two == [{"quantization": "int4"}, {"device": "A100 40GB"}]
    assert {"tensor_parallel_size": 4} in asked(config, engine, "--node", node.format(4))["instead"]


def test_where_no_change_suffices_alone_the_least_of_two_together_is_proposed(asked) -> None:
    config = {**PUBLISHED["llama-3.1-405b-fp8-tp8-h100"]["config"], "quantization_config": None}
    found = asked(config, {"tensor_parallel_size": 2}, "--device", "H100")["instead"]
    assert found == [{"tensor_parallel_size": 4, "quantization": "int4"}]


def test_a_host_is_told_of_shorter_contexts_and_fewer_bits_alone(asked) -> None:
    config = {**LLAMA, "max_position_embeddings": 32768}
    found = asked(config, {}, "--device", "cpu", "--device-memory", "2GiB")
    assert found["instead"] == [{"quantization": "int4"}]


def test_people_read_it_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_config(tmp_path, PUBLISHED["llama-3-8b-a100-40gb"]["config"])
    assert main(["fit", str(folder), "--device", "T4"]) == 1
    said = "It would fit with --tensor-parallel-size 2, or with --quantization int4, or on A10.\n"
    assert said in capsys.readouterr().out


def test_last_words_have_room_for_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = tmp_path / "last"
    monkeypatch.setenv("SLIPWAY_TERMINATION_LOG", str(last))
    folder = write_config(tmp_path / "model", PUBLISHED["llama-3-8b-a100-40gb"]["config"])
    small = [f"nvidia.com/gpu.product=GPU-{n:050},nvidia.com/gpu.memory=9000" for n in range(20)]
    nodes = [word for node in (*small, "nvidia.com/gpu.product=NVIDIA-L4") for word in ("--node", node)]
    assert main(["fit", str(folder), *nodes]) == 0
    said = last.read_bytes()
    assert len(said) <= MAX_BYTES
    answers = json.loads(said)["fit"]
    assert 1 < len(answers) < 21
    assert [one["fits"] for one in answers] == [True, *[False] * (len(answers) - 1)]
