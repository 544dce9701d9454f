"""The images as their users start them: the known podman line, a stranger's UID, a signal, a mistake."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from e2e.ground.patience import scaled
from e2e.ground.ports import free_port
from e2e.images import TARGETS, build, missing
from e2e.images.containers import PODMAN, Container
from slipway.args.compatibility import read_schema

REFERENCE_OPTIONS = (
    *("--rm", "-it"),
    *("--security-opt", "label=disable"),
    *("--shm-size", "4GB"),
    *("-p", "8000:8000"),
    *("-v", "./rhaiis-cache:/opt/app-root/src/.cache"),
    *("--env", "HUGGING_FACE_HUB_TOKEN=hf_secret"),
    *("--env", "HF_HUB_OFFLINE=0"),
    *("--env", "VLLM_NO_USAGE_STATS=1"),
)
"""The line that users of vLLM images know, without the two options that need a GPU and a rootless podman."""
REFERENCE_FLAGS = {
    "--model": "RedHatAI/Llama-3.2-1B-Instruct-FP8",
    "--tensor-parallel-size": "2",
    "--gpu-memory-utilization": "0.8",
    "--max-model-len": "16384",
    "--max-num-batched-tokens": "2048",
}
MODEL_FILE = "/model/SmolLM2-135M-Instruct.Q4_1.gguf"


def words(flags: dict[str, str]) -> list[str]:
    return [word for pair in flags.items() for word in pair]


@pytest.fixture(scope="session", autouse=True)
def can_build() -> None:
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def runtime() -> str:
    return build("runtime-cpu")


@pytest.fixture(scope="session")
def model() -> list[str]:
    return ["--mount", f"type=image,source={build('demo-model')},destination=/model"]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder for the group that the image runs as, as the reference has its users make one."""
    folder = tmp_path / "rhaiis-cache"
    folder.mkdir()
    folder.chmod(0o775)
    return folder


@pytest.fixture
def server(runtime: str, model: list[str], port: int, tmp_path: Path) -> Iterator[Container]:
    """A ready server under an arbitrary UID and a read-only root, as OpenShift starts it."""
    options = ["--rm", "--read-only", "--user", "123456:0", "--cap-drop", "ALL", "--tmpfs", "/cache"]
    command = [
        "podman",
        "run",
        *options,
        "-p",
        f"127.0.0.1:{port}:8000",
        *model,
        runtime,
        "serve",
        MODEL_FILE,
    ]
    command += ["--host", "0.0.0.0", "--served-model-name", "demo", "--drain-grace", "0"]
    with Container(command, tmp_path) as container:
        container.wait_for(f"http://127.0.0.1:{port}/ready")
        yield container


def client(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def ended(image: str, *arguments: str, folder: Path, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit status and output of a container that ends by itself."""
    with Container(["podman", "run", "--rm", *options, image, *arguments], folder) as container:
        return container.wait(scaled(120)), container.output()


def inspected(image: str) -> dict:
    told = subprocess.run([*PODMAN, "image", "inspect", image], capture_output=True, check=True)
    return json.loads(told.stdout)[0]


@pytest.mark.parametrize("target", ["runtime-cpu", "runtime-cuda", "operator"])
def test_an_image_names_a_numeric_user_and_no_variable_of_the_server(target):
    config = inspected(build(target))["Config"]
    assert config["User"] == "1001:0"
    names = [entry.partition("=")[0] for entry in config["Env"]]
    assert not [name for name in names if name.startswith(("VLLM_", "SLIPWAY_"))]
    assert "HOME=/cache" in config["Env"]


@pytest.mark.parametrize("target", ["runtime-cpu", "runtime-cuda"])
def test_a_runtime_carries_the_schema_that_it_prints(target, tmp_path):
    label = inspected(build(target))["Config"]["Labels"]["dev.slipway.schema"]
    status, printed = ended(build(target), "--print-schema=short", folder=tmp_path)
    assert (status, printed.strip()) == (0, label)
    assert "maxModelLen" in read_schema(json.loads(label)).fields


@pytest.mark.parametrize("target", ["runtime-cpu", "runtime-cuda", "operator"])
def test_our_code_is_the_last_layer_and_a_small_one(target):
    listed = subprocess.run(
        [*PODMAN, "history", "--format", "json", build(target)], capture_output=True, check=True
    )
    sizes = [layer["size"] for layer in json.loads(listed.stdout) if layer["size"]]  # the newest first
    code, dependencies, *_ = sizes
    assert code < 60e6
    assert dependencies > code


@pytest.mark.product
@pytest.mark.parametrize("target", ["runtime-cpu", "operator"])
def test_an_image_without_torch_is_small_enough_to_pull_anywhere(target):
    assert inspected(build(target))["Size"] < 400e6


def test_a_change_of_nothing_builds_nothing():
    for target in TARGETS:
        assert build(target) == build(target)


@pytest.mark.product
def test_the_operator_carries_no_torch_and_starts(tmp_path):
    image = build("operator")
    code = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('kopf') is not None)"
    assert ended(image, "-c", code, folder=tmp_path, options=("--entrypoint", "python"))[1].split() == [
        "None",
        "True",
    ]
    status, told = ended(image, "--help", folder=tmp_path, options=("--read-only", "--user", "123456:0"))
    assert status == 0, told
    assert "--settings" in told


@pytest.mark.product
def test_the_image_for_devices_carries_what_commands_of_vllms_documents_need(tmp_path):
    code = "import importlib.util as u; print(all(map(u.find_spec, ('mistral_common', 'ray'))))"
    _, told = ended(build("runtime-cuda"), "-c", code, folder=tmp_path, options=("--entrypoint", "python"))
    assert told.split() == ["True"]


def test_the_image_for_devices_compiles_what_triton_asks_of_it(tmp_path):
    code = """
import pathlib, subprocess, sysconfig, torch, triton
source = pathlib.Path("/tmp/launcher.c")
source.write_text("#include <Python.h>\\nint version(void) { return PY_VERSION_HEX; }\\n")
headers = sysconfig.get_path("include")
subprocess.run(["gcc", "-shared", "-fPIC", f"-I{headers}", "-o", "/tmp/launcher.so", source], check=True)
print(torch.version.cuda is not None, triton.__version__)
"""
    options = ("--entrypoint", "python", "--read-only", "--tmpfs", "/tmp")
    status, told = ended(build("runtime-cuda"), "-c", code, folder=tmp_path, options=options)
    assert status == 0, told
    assert told.split()[0] == "True"


def test_the_image_for_devices_finds_a_driver_that_is_mounted_beside_it(tmp_path):
    """A false one, where GKE mounts the real one: by the loader, and by Triton, which links against it."""
    code = """
import ctypes, pathlib, subprocess
from triton.backends.nvidia.driver import libcuda_dirs
source = pathlib.Path("/tmp/driver.c")
source.write_text("int cuInit(unsigned flags) { return 4242; }")
place = "/usr/local/nvidia/lib64"
subprocess.run(["gcc", "-shared", "-fPIC", "-o", f"{place}/libcuda.so.1", source], check=True)
print(ctypes.CDLL("libcuda.so.1").cuInit(0), place in libcuda_dirs())
"""
    driver = tmp_path / "driver"
    driver.mkdir()
    driver.chmod(0o777)
    mounted = ("--volume", f"{driver}:/usr/local/nvidia/lib64")
    options = ("--entrypoint", "python", "--read-only", "--tmpfs", "/tmp", *mounted)
    status, told = ended(build("runtime-cuda"), "-c", code, folder=tmp_path, options=options)
    assert status == 0, told
    assert told.split() == ["4242", "True"]


def test_the_demo_model_is_one_file_and_nothing_else():
    image = inspected(build("demo-model"))
    assert len(image["RootFS"]["Layers"]) == 1
    assert 90e6 < image["Size"] < 110e6


def test_every_word_of_the_references_podman_line_is_accepted(runtime, cache, port, tmp_path):
    options = [word.replace("8000:8000", f"127.0.0.1:{port}:8000") for word in REFERENCE_OPTIONS]
    command = ["podman", "run", *options, runtime, *words(REFERENCE_FLAGS), "--dry-run"]
    with Container(command, tmp_path) as container:
        assert container.wait() == 0, container.output()
        resolved = json.loads(container.output().splitlines()[-1])
    assert resolved["model"] == "RedHatAI/Llama-3.2-1B-Instruct-FP8"
    assert resolved["tensor_parallel_size"] == 2
    assert (resolved["max_model_len"], resolved["max_num_batched_tokens"]) == (16384, 2048)
    assert "unknown" not in container.output()


@pytest.mark.product
@pytest.mark.parametrize(
    "command", [["vllm", "serve"], ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model"]]
)
def test_commands_of_vllms_documents_run_in_it(runtime, tmp_path, command):
    program, *rest = command
    status, told = ended(
        runtime, *rest, "org/name", "--dry-run", folder=tmp_path, options=("--entrypoint", program)
    )
    assert status == 0, told
    assert '"model": "org/name"' in told


def test_the_references_podman_line_serves_the_demo_model(runtime, model, cache, port, tmp_path):
    """On CPU and so with one worker. The demo model was made for 8192 tokens: the variable allows more."""
    options = [word.replace("8000:8000", f"127.0.0.1:{port}:8000") for word in REFERENCE_OPTIONS]
    options += [*model, "--env", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"]
    flags = {**REFERENCE_FLAGS, "--model": MODEL_FILE, "--tensor-parallel-size": "1", "--device": "cpu"}
    with Container(["podman", "run", *options, runtime, *words(flags)], tmp_path) as container:
        container.wait_for(f"http://127.0.0.1:{port}/ready")
        asked = {"prompt": "The sky is", "max_tokens": 4, "extra_body": {"ignore_eos": True}}
        answer = client(port).completions.create(model=MODEL_FILE, **asked)
        assert answer.usage.completion_tokens == 4
        container.inside("sh", "-c", "touch $HOME/written")
    assert (cache / "written").exists()


def test_an_arbitrary_user_with_a_read_only_root_is_served(server, port):
    assert server.inside("id", "-u").strip() == "123456"
    answer = client(port).completions.create(model="demo", prompt="One, two,", max_tokens=3, temperature=0)
    assert answer.choices[0].text


def test_sigterm_lets_a_stream_finish_and_ends_with_0(server, port):
    stream = client(port).completions.create(
        model="demo", prompt="Once", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
    )
    first = next(stream)
    server.signal("TERM")
    chunks = [first, *stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.wait(scaled(30)) == 0, server.output()


def test_a_killed_container_cuts_its_streams_and_none_looks_complete(server, port):
    stream = client(port).completions.create(
        model="demo", prompt="Once", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    reasons = [next(stream).choices[0].finish_reason]
    server.signal("KILL")
    with pytest.raises(openai.APIConnectionError):
        reasons += [chunk.choices[0].finish_reason for chunk in stream]
    assert set(reasons) == {None}
    assert server.wait(scaled(30)) == 137


def test_sigterm_during_the_start_ends_the_container_too(runtime, model, tmp_path):
    """The first process of a container has no default action for it: only a handler ends it."""
    # On a fifth of a core the start takes seconds. On a fast machine it would end between two signals.
    slowly = ["podman", "run", "--rm", "--cpus", "0.2"]
    command = [*slowly, *model, runtime, "serve", MODEL_FILE, "--drain-grace", "0"]
    with Container(command, tmp_path) as container:
        container.wait_until_running()
        status = None
        for _ in range(60):  # again and again: until Python itself is up, there is no handler
            container.signal("TERM")
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = container.wait(0.5)
                break
        assert status == 0, container.output()
        assert "Ready after" not in container.output()


def test_a_mistaken_argument_is_named_and_ends_with_2(runtime, tmp_path):
    status, told = ended(runtime, "--max-modle-len", "5", folder=tmp_path)
    assert status == 2
    assert "Did you mean max-model-len" in told


def test_a_model_that_is_not_there_is_told_in_the_termination_message(runtime, tmp_path):
    message = tmp_path / "termination-log"
    message.touch()
    message.chmod(0o666)
    options = ("--volume", f"{message}:/dev/termination-log")
    status, told = ended(runtime, "serve", "/nowhere", folder=tmp_path, options=options)
    cause = json.loads(message.read_text())
    assert (status, cause["reason"]) == (10, "ModelNotFound"), told
    assert "/nowhere" in cause["message"]
