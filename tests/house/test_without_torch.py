"""A CPU server in which nobody can import torch or transformers, and nobody tries to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.ground.patience import scaled
from quantize import quantize, recipe

from factory import make_model
from gguf_convert import to_gguf
from live_server import live_server

BLOCKER = '''
import os, sys

class Blocked:
    """Says of torch and transformers that they are not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def watch(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] in ("torch", "transformers"):
        with open(os.environ["TORCH_WAS_WANTED"], "a") as file:
            file.write(f"{sys.argv} imports {arguments[0]}\\n")

sys.meta_path.insert(0, Blocked())
sys.addaudithook(watch)
'''
"""Run by every Python that starts with it on its path: `sitecustomize`."""


@pytest.fixture
def blocked(tmp_path: Path) -> dict[str, str]:
    """The environment in which imports of torch fail, and are written down."""
    place = tmp_path / "blocker"
    place.mkdir()
    (place / "sitecustomize.py").write_text(BLOCKER)
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "TORCH_WAS_WANTED": str(tmp_path / "wanted")}


def test_a_server_on_cpu_answers_and_no_process_of_it_wants_torch(
    tiny_models: Callable[[str], Path], blocked: dict[str, str]
) -> None:
    with live_server(tiny_models("llama"), "--max-model-len", "128", env=blocked, forked=False) as server:
        fields = {"model": "", "prompt": "def main", "max_tokens": 4, "guided_regex": ".{9,}"}
        body = json.dumps(fields)
        asked = urllib.request.Request(
            f"{server.url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=scaled(60)) as answered:
            assert json.load(answered)["usage"]["completion_tokens"] == 4
        assert server.engine_pid() != server.process.pid
    assert not Path(blocked["TORCH_WAS_WANTED"]).exists()


RUN = """
import sys
from local_engine import LocalEngine
from slipway.engine.params import SamplingParams

for model, settings in %r:
    with LocalEngine(model, max_model_len=64, **settings) as engine:
        (answer,) = engine.run([([5, 6, 7], SamplingParams(3, temperature=0.0))])
    assert len(answer.tokens) == 3, model
assert not {"torch", "transformers"} & {*sys.modules}
"""


def in_blocked_process(code: str, blocked: dict[str, str]) -> subprocess.CompletedProcess[str]:
    tests = str(Path(__file__).parents[1])
    env = os.environ | blocked | {"PYTHONPATH": os.pathsep.join([blocked["PYTHONPATH"], tests])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)


@pytest.mark.slow
def test_every_form_of_a_native_model_runs_without_torch(
    tiny_models: Callable[[str], Path], tmp_path: Path, blocked: dict[str, str]
) -> None:
    source = tiny_models("llama")
    work: list[tuple[str, dict[str, Any]]] = [(str(source), {}), (str(tiny_models("qwen2_moe")), {})]
    for dtype in ("float16", "bfloat16"):
        work.append((str(make_model("llama", tmp_path / dtype, dtype=dtype)), {}))
    for method in ("awq", "gptq", "w4a16", "w8a8", "fp8", "fp8-block"):
        work.append((str(quantize(source, tmp_path / method, recipe(method, group=32))), {}))
    for kind in ("Q4_1", "Q8_0", "MXFP4"):
        work.append((str(to_gguf(source, tmp_path / f"{kind}.gguf", kind)), {}))
    work += [(str(source), {"quantization": name}) for name in ("fp8", "int8", "int4")]
    work += [(str(source), {"load_format": "dummy", "device": "auto"})]
    ran = in_blocked_process(RUN % (work,), blocked)
    assert ran.returncode == 0, ran.stderr
    assert not Path(blocked["TORCH_WAS_WANTED"]).exists()


def test_the_demo_model_runs_without_torch(demo_model: Path, blocked: dict[str, str]) -> None:
    ran = in_blocked_process(RUN % ([(str(demo_model), {})],), blocked)
    assert ran.returncode == 0, ran.stderr


REFUSED = """
from local_engine import LocalEngine
from slipway.engine.start import describe

try:
    LocalEngine(%r, **%r)
except Exception as error:
    told = describe(error)
    print(told.reason, told.message, told.hint)
"""


@pytest.mark.torch
def test_what_needs_torch_says_which_extra_and_which_image_have_it(
    tiny_models: Callable[[str], Path], tmp_path: Path, blocked: dict[str, str]
) -> None:
    folder = make_model("llama", tmp_path / "pt", safetensors=False)
    fallback = {"model_impl": "transformers"}
    for model, settings in ((folder, {}), (tiny_models("opt"), {}), (tiny_models("llama"), fallback)):
        said = in_blocked_process(REFUSED % (str(model), settings), blocked)
        assert "cannot be imported here" in said.stdout, said.stderr
        assert "'.[torch]' in a clone of Slipway, use the image runtime-cpu-torch, or" in said.stdout
    device = in_blocked_process(REFUSED % (str(tiny_models("llama")), {"device": "cuda"}), blocked)
    assert "'.[cuda]' in a clone of Slipway, use the image runtime-cuda, or use --device cpu" in device.stdout
