"""The parallel ones of the commands that people use, really started, on tiny models of at most four ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from quantize import quantize, recipe

from factory import make_model
from followers import EPS, HEAD_DIM, INTERMEDIATE, THETA, Mtp
from live_server import live_server
from random_heads import drawing
from tensor_files import load, save
from worked_commands import PARALLEL, Command

pytestmark = pytest.mark.slow

MODELS = {
    "podman-run": ("llama", "fp8"),
    "parallel-llama-70b": ("llama", "awq"),
    "parallel-mixtral": ("mixtral", ""),
    "parallel-moe": ("qwen2_moe", ""),
    "pattern-multi-gpu": ("llama", "awq"),
}
"""Architecture and stored form of a command's own model, or of one that has as much to share; llama else."""
DRAFTING = ("pattern-reasoning", "step-3.5-flash")
"""Their model brings layers that draft."""


def with_layers_that_draft(folder: Path) -> Path:
    """A tiny MiMo: Qwen2, and a layer more."""
    make_model(
        "qwen2",
        folder,
        head_dim=HEAD_DIM,
        intermediate_size=INTERMEDIATE,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
    )
    weights = folder / "model.safetensors"
    save(load(weights) | Mtp(1).tensors(drawing(1)), weights)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("command", PARALLEL, ids=[command.name for command in PARALLEL])
def test_a_parallel_command_starts_and_answers(
    command: Command, tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    kind, form = MODELS.get(command.name, ("llama", ""))
    model = with_layers_that_draft(tmp_path / "mimo") if command.name in DRAFTING else tiny_models(kind)
    if form:
        model = quantize(model, tmp_path / "quantized", recipe(form, group=32))
    words = command.cut(model)
    if words[0] == "--model":
        del words[0]
    env = command.env | {"OMP_NUM_THREADS": "1"}
    body = {"model": words[0], "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    forked = "HF_HUB_OFFLINE" not in env  # which the hub's client reads when it is imported
    with live_server(*words, env=env, forked=forked) as server:
        status, answer = server.post("/v1/completions", json.dumps(body).encode())
        said = "".join(server.lines)
    assert status == 200, said
    assert json.loads(answer)["usage"]["completion_tokens"] == 4
