"""`slipway fit` on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.cli.main import main
from small_shapes import LLAMA

CONFIG = {**LLAMA, "max_position_embeddings": 32768}
GPU = str(Path(__file__).parents[2] / "examples" / "gpu.yaml")
MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]):
    def figures(*argv: str, status: int = 0) -> dict[str, Any]:
        assert main(["fit", *argv, "--json"]) == status
        (line,) = capsys.readouterr().out.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found

    return figures


def document(model: str, **spec: Any) -> str:
    head = {"apiVersion": "slipway.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "one"}}
    return yaml.safe_dump({**head, "spec": {"model": {"path": model}, **spec}})


def test_a_model_that_fits_ends_with_0(model, capsys):
    assert main(["fit", model, "--device", "L4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("LlamaForCausalLM on 1 × L4 with 22.36 GiB each\n")
    assert "\nIt fits.\n" in printed


def test_one_that_does_not_ends_with_1_and_says_why(model, capsys):
    assert main(["fit", model, "--device", "T4", "--device-memory", "2GiB"]) == 1
    assert "It does not fit: Weights of 2.30 GiB" in capsys.readouterr().out


def test_figures_are_one_line_of_json(model, figures):
    found = figures(model, "--device", "L4")
    assert found["fits"]
    assert found["device"] == {"name": "L4", "memory": int(23034 * 0.994 * MIB), "count": 1}


def test_arguments_are_those_of_serve(model, figures):
    plain = figures(model, "--device", "L4")
    halves = figures(model, "--device", "L4", "--tensor-parallel-size", "2", "--kv-cache-dtype=fp8")
    assert halves["device"]["count"] == 2
    assert halves["ranks"][0]["kv_cache_bytes_per_token"] == plain["ranks"][0]["kv_cache_bytes_per_token"] / 4


def test_variables_are_those_of_serve(model, figures, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    found = figures(model, "--device", "cpu", "--device-memory", "16GiB")
    assert found["ranks"][0]["kv_cache"] == 1 << 30


def test_warnings_are_printed_aside(model, capsys):
    assert main(["fit", model, "--device", "L4", "--use-v2-block-manager", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["fits"]
    assert "slipway fit: warning: --use-v2-block-manager has no effect" in shown.err


@pytest.mark.parametrize("size", ["24GiB", "24Gi", "25769803776", "25.769803776GB"])
def test_memory_is_written_as_people_write_it(model, figures, size):
    assert figures(model, "--device-memory", size)["device"]["memory"] == 24 << 30


def test_too_few_devices(model, figures):
    found = figures(model, "--device", "L4", "--devices", "1", "--tensor-parallel-size", "2", status=1)
    assert found["short"]["part"] == "devices"


def test_a_host_has_the_memory_that_is_said(model, figures):
    found = figures(model, "--device", "cpu", "--device-memory", "2GiB", status=1)
    assert found["device"] == {"name": "the container", "memory": 2 << 30, "count": 1}
    assert found["short"]["part"] == "weights"
    assert figures(model, "--device", "cpu", "--device-memory", "16GiB")["at_rest"] > 2 << 30


def test_a_document_says_model_arguments_and_memory(model, tmp_path, figures):
    file = tmp_path / "service.yaml"
    spec = {"engine": {"maxModelLen": 512}, "resources": {"memory": "12Gi"}}
    file.write_text(document(model, **spec))
    found = figures("-f", str(file))
    assert found["device"] == {"name": "the container", "memory": 12 << 30, "count": 1}
    assert found["serves_model_len"] == 512


def test_a_document_may_come_from_standard_input(model, monkeypatch, figures):
    monkeypatch.setattr("sys.stdin", io.StringIO(document(model, resources={"memory": "12Gi"})))
    assert figures("-f", "-")["fits"]


def test_what_the_profile_of_a_document_says_counts(model, tmp_path, figures):
    file, profile = tmp_path / "service.yaml", tmp_path / "profile.yaml"
    file.write_text(document(model, profile="small"))
    head = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ServingProfile", "metadata": {"name": "small"}}
    profile.write_text(json.dumps({**head, "spec": {"resources": {"memory": "3Gi"}}}))
    found = figures("-f", str(file), "--profile", str(profile))
    assert found["device"] == {"name": "the container", "memory": 3 << 30, "count": 1}


def test_the_model_of_a_document_may_be_elsewhere(model, tmp_path, figures):
    file = tmp_path / "service.yaml"
    file.write_text(document("/models/one", resources={"memory": "12Gi"}))
    assert figures("-f", str(file), model)["architecture"] == "LlamaForCausalLM"


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "gpu-1",
        "labels": {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068", "zone": "a"},
    },
}


def test_a_node_says_by_its_labels_which_device_it_has(model, tmp_path, figures, monkeypatch):
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump(NODE))
    found = figures(model, "--node", str(file))
    assert found["device"] == {"name": "NVIDIA-L40S", "memory": int(46068 * 0.994 * MIB), "count": 1}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(NODE)))
    assert figures(model, "--node", "-", "--device-memory", "40GiB")["device"]["memory"] == 40 << 30


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"zone": "a"}, "The node has neither nvidia.com/gpu.memory nor nvidia.com/gpu.product among its"),
        (None, "it is no Node with labels. `kubectl get node NAME --output yaml` prints one."),
    ],
)
def test_a_node_that_says_nothing_of_devices_is_refused(model, tmp_path, capsys, labels, words):
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump({**NODE, "metadata": {"name": "one", "labels": labels}}))
    assert main(["fit", model, "--node", str(file)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--device", "H10O"], "H10O is no device that is known"),
        (["--device", "A100"], "A100 is A100 80GB or A100 40GB. Say which."),
        (["--device-memory", "much"], "--device-memory much is no size. Write 24GiB, 24Gi, 24GB or 24e9."),
        (["--device-memory", "-1"], "--device-memory"),
        (["--device", "L4", "--devices", "0"], "--devices 0: there is one at least."),
        (["--device", "L4", "--max-model-len", "many"], "--max-model-len"),
        (["--device", "L4", "--max-modle-len", "1"], "Did you mean max-model-len"),
        (["--device", "L4", "--max-num-batched-tokens", "9", "--no-enable-chunked-prefill"], "9"),
    ],
)
def test_wrong_input_ends_with_2_and_what_is_wrong(model, capsys, argv, words):
    assert main(["fit", model, *argv]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("slipway fit: error: ")
    assert words in shown.err
    assert not shown.out


def test_a_folder_without_a_configuration(tmp_path, capsys):
    assert main(["fit", str(tmp_path), "--device", "L4"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_a_document_that_says_no_device_asks_for_one(model, capsys):
    assert main(["fit", "-f", GPU, model]) == 2
    assert "Give --device, such as H100" in capsys.readouterr().err
    assert main(["fit", "-f", GPU, model, "--device", "H100"]) == 0


def test_a_document_has_its_arguments_itself(model, tmp_path, capsys):
    file = tmp_path / "service.yaml"
    file.write_text(document(model))
    assert main(["fit", "-f", str(file), "--max-model-len", "5"]) == 2
    assert "its arguments are under spec.engine" in capsys.readouterr().err


def test_help_names_the_options(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    shown = capsys.readouterr().out
    assert all(
        f"--{name}" in shown for name in ("device", "device-memory", "devices", "node", "json", "file")
    )
