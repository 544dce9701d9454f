"""Start, failure and end of a real server process."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

from live_server import LiveServer, live_server
from slipway import exits

pytestmark = pytest.mark.slow

new_server = partial(live_server, forked=False)

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 400, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def tiny(tiny_models: Callable[[str], Path]) -> Path:
    return tiny_models("llama")


def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def stream(server: LiveServer, n: int = 1) -> Iterator[Any]:
    """A stream that has begun."""
    chunks = iter(client(server).completions.create(model="tiny", stream=True, n=n, **LONG))
    next(chunks)
    return chunks


def test_a_signal_lets_streams_finish_and_turns_readiness(tiny: Path) -> None:
    with new_server(tiny, "--served-model-name", "tiny", "--drain-grace", "1") as server:
        chunks = [stream(server) for _ in range(3)]
        server.process.send_signal(signal.SIGTERM)
        server.wait_until("/ready", 503)
        for path in ("/health", "/ping"):
            status, body = server.get(path)
            assert (status, json.loads(body)["phase"]) == (503, "draining")
        assert server.get("/live")[0] == 200
        late = client(server).completions.with_raw_response.create(model="tiny", prompt="b", max_tokens=2)
        assert late.headers["connection"] == "close"
        assert server.get("/live")[0] == 200
        assert [list(one)[-1].choices[0].finish_reason for one in chunks] == ["length"] * 3
        assert server.process.wait(scaled(20)) == 0


def test_a_connection_that_was_never_told_of_the_end_is_served_once_more(tiny: Path) -> None:
    many = {"model": "tiny", "stream": True, "n": 32, "prompt": "a", "max_tokens": 400, "ignore_eos": True}
    with (
        new_server(tiny, "--served-model-name", "tiny", "--drain-grace", "0") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=scaled(60)) as known,
    ):
        with known.stream("POST", "/v1/completions", json=many) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_refused()
            assert sum('"finish_reason":"length"' in line for line in lines) == 32
        late = known.post("/v1/completions", json={"model": "tiny", "prompt": "b", "max_tokens": 2})
        assert (late.status_code, late.headers["connection"]) == (200, "close")
        with pytest.raises(httpx.ConnectError):
            known.get("/health")
        assert server.process.wait(scaled(20)) == 0


def test_a_second_signal_ends_at_once(tiny: Path) -> None:
    with new_server(tiny, "--served-model-name", "tiny", "--drain-grace", "600") as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_until("/ready", 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(scaled(10)) == 128 + signal.SIGTERM


def test_a_signal_while_loading_ends_at_once(tiny: Path) -> None:
    with new_server(tiny, "--drain-grace", "600", ready=False) as server:
        os.kill(server.wait_for_engine(), signal.SIGSTOP)  # its loading takes as long as we like
        server.wait_until("/live", 200)
        assert server.get("/ready")[0] == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(scaled(10)) in (0, 128 + signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_server_listens_to_any_ends_it_and_leaves_nothing(
    tiny: Path, tmp_path: Path, number: signal.Signals
) -> None:
    words = [sys.executable, "-m", "slipway", "serve", str(tiny), "--port", str(free_port())]
    server = subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        env={**os.environ, "VLLM_RPC_BASE_PATH": str(tmp_path)},
        start_new_session=True,
    )
    while not list(tmp_path.iterdir()):  # the engine's folder, made just before its process
        assert server.poll() is None
    os.killpg(server.pid, number)
    assert b"Traceback" not in server.communicate(timeout=scaled(30))[1]
    assert server.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_server_answers_though_the_folder_for_temporary_files_has_a_long_path(
    tiny: Path, tmp_path: Path
) -> None:
    long = tmp_path / ("a" * 60) / ("b" * 60)
    long.mkdir(parents=True)
    with new_server(tiny, "--api-server-count", "2", env={"TMPDIR": str(long)}) as server:
        assert server.post("/v1/completions", b'{"prompt": "a", "max_tokens": 2}')[0] == 200


READ_ONLY = """
mount -o remount,ro,bind / && mount -t tmpfs -o "$1" shm /dev/shm && shift && exec "$@"
"""


@pytest.mark.skipif(bool(os.geteuid()), reason="Mounts need root.")
@pytest.mark.parametrize("shared", ["rw", "ro"])
def test_on_a_read_only_root_a_server_uses_shared_memory_or_says_what_it_needs(
    tiny: Path, tmp_path: Path, shared: str
) -> None:
    port = free_port()
    serve = [sys.executable, "-m", "slipway", "serve", str(tiny), "--port", str(port)]
    words = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", shared, *serve]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        if shared == "rw":
            waits = time.monotonic() + scaled(60)
            ready = 0
            while ready != 200 and server.poll() is None and time.monotonic() < waits:
                with contextlib.suppress(httpx.TransportError):
                    ready = httpx.get(f"http://127.0.0.1:{port}/ready").status_code
                time.sleep(0.05)
            assert ready == 200
            server.send_signal(signal.SIGINT)
        printed = server.communicate(timeout=scaled(60))[1]
    finally:
        server.kill()
    assert "Traceback" not in printed
    assert server.returncode == (0 if shared == "rw" else exits.BAD_ARGUMENTS.code)
    assert ("There is no folder for the sockets of the server. " in printed) == (shared == "ro")


def test_loading_that_stands_still_ends_the_server_with_the_cause(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "termination"
    env = {"SLIPWAY_TERMINATION_LOG": str(log)}
    with new_server(tiny, "--load-timeout", "1", ready=False, env=env) as server:
        os.kill(server.wait_for_engine(), signal.SIGSTOP)
        assert server.process.wait(scaled(30)) == exits.LOAD_STALLED.code
    cause = json.loads(log.read_bytes())
    assert cause["reason"] == "LoadStalled"
    assert cause["message"].startswith("Loading made no progress for")


def test_a_killed_engine_ends_streams_then_the_server_with_the_cause(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "termination"
    env = {"SLIPWAY_TERMINATION_LOG": str(log)}
    with new_server(tiny, "--served-model-name", "tiny", env=env) as server:
        chunks = stream(server)
        os.kill(server.engine_pid(), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine has gone"):
            list(chunks)
        server.wait_until("/live", 503)
        seen = time.monotonic()
        assert server.get("/health")[0] == 503
        assert server.process.wait(scaled(5)) == exits.WORKER_KILLED.code
        assert time.monotonic() - seen >= 1
    cause = json.loads(log.read_bytes())
    assert (cause["code"], cause["reason"]) == (exits.WORKER_KILLED.code, "WorkerKilled")


def test_a_package_that_is_missed_when_the_engine_has_started_is_named(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['uvicorn'] = None")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = serve(str(tiny), "--port", str(free_port()), PYTHONPATH=path)
    assert ended.returncode == exits.MISSING_PACKAGE.code, ended.stderr
    assert "The Python package uvicorn" in ended.stderr
    assert "pip install '.[cpu]'" in ended.stderr
    assert "the server failed" not in ended.stderr  # which goes with a traceback


def test_that_prompts_are_logged_in_full_is_said_once_at_the_start(tiny: Path) -> None:
    told = "as --enable-log-requests says; --max-log-len N cuts them"
    with live_server(tiny, "--api-server-count", "2", "--enable-log-requests") as server:
        assert server.wait_until_said("Ready after").count(told) == 1
    with live_server(tiny, "--enable-log-requests", "--max-log-len", "10") as server:
        assert told not in server.wait_until_said("Ready after")


def test_the_server_may_stay_to_be_looked_at(tiny: Path) -> None:
    shown = {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1", "VLLM_SERVER_DEV_MODE": "1"}
    with new_server(tiny, env=shown) as server:
        os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait_until("/live", 503)
        server.wait(2.5)
        assert server.process.poll() is None
        assert server.get("/server_info")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(scaled(10)) == exits.WORKER_KILLED.code


def serve(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipway", "serve", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=scaled(60), env=os.environ | environ
    )


def test_a_taken_port_is_said_before_anything_is_loaded(tiny: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = serve(str(tiny), "--port", str(port))
    assert ended.returncode == exits.PORT_IN_USE.code
    assert f"Port {port}" in ended.stderr
    assert "--port" in ended.stderr
    assert "Loading" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["/nowhere/model"], exits.MODEL_NOT_FOUND, "/nowhere/model"),
        (["{tiny}", "--host", "192.0.2.1"], exits.ADDRESS_UNUSABLE, "192.0.2.1"),
        (["{tiny}", "--ssl-certfile", "/no/cert", "--ssl-keyfile", "/no/key"], exits.TLS_FILES_BAD, "TLS"),
        (["{tiny}", "--middleware", "no.such.Thing"], exits.BAD_ARGUMENTS, "no.such.Thing"),
        (["{tiny}", "--worker-cls", "no.such.Thing"], exits.BAD_ARGUMENTS, "no.such.Thing"),
        (["{tiny}", "--generation-config", "/nowhere"], exits.BAD_ARGUMENTS, "/nowhere"),
        (
            ["{tiny}", "--override-generation-config.top_k", "-9"],
            exits.BAD_ARGUMENTS,
            "top_k must be at least -1, got -9",
        ),
        (["{tiny}", "--tokenizer", "/nowhere"], exits.BAD_TOKENIZER, "/nowhere"),
        (["{three_bytes}.gguf"], exits.BAD_CHECKPOINT, "it ends at byte 3, its header goes on"),
        (["{three_bytes}.gguf", "--tokenizer", "{tiny}"], exits.BAD_CHECKPOINT, "it ends at byte 3"),
        (["{three_bytes}.bin"], exits.UNSUPPORTED_FORMAT, "is a file but not a .gguf file"),
    ],
    ids=lambda case: str(case)[:30],
)
def test_a_start_that_cannot_succeed_ends_with_its_code_and_says_why_once(
    tiny: Path, tmp_path: Path, arguments: list[str], code: exits.ExitCode, words: str
) -> None:
    """Engine and API look at the model at the same time: whoever comes first, the end is the same."""
    three_bytes = tmp_path / "model"
    for suffix in (".gguf", ".bin"):
        three_bytes.with_suffix(suffix).write_bytes(b"GGU")
    filled = [argument.format(tiny=tiny, three_bytes=three_bytes) for argument in arguments]
    ended = serve(*filled, "--port", str(free_port()))
    assert ended.returncode == code.code, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if words in line)
    assert line.startswith("slipway: ")


def test_a_failure_is_said_before_probes_have_seen_it(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGU")
    with new_server(model, env={"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}, ready=False) as server:
        server.wait_until_said("slipway: ")
        server.wait_until("/live", 503)


@pytest.mark.parametrize(
    ("arguments", "template", "command", "path"),
    [
        ([], True, "slipway chat --url", "/v1/chat/completions"),
        ([], False, "slipway complete --url", "/v1/completions"),
        (["--skip-tokenizer-init"], True, None, "/v1/completions"),
    ],
    ids=["chat", "no chat template", "no tokenizer"],
)
def test_the_ready_lines_say_what_this_model_answers(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    template: bool,
    command: str | None,
    path: str,
) -> None:
    monkeypatch.delenv("SLIPWAY_COMMAND", raising=False)  # set by make, for a newcomer's clone
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    if not template:
        settings = json.loads((model / "tokenizer_config.json").read_text())
        del settings["chat_template"]
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
    with new_server(model, *arguments) as server:
        printed = server.wait_until_said("Ctrl-C ends the server.").partition("Ready after")[2]
        address, *_, body = shlex.split(printed.partition("curl ")[2].partition("Ctrl-C")[0])
        answer = httpx.post(
            address, content=body, headers={"Content-Type": "application/json"}, timeout=scaled(60)
        )
    assert printed.partition("Ctrl-C")[0].count("\n") <= 5
    assert (f"Open {server.url}/console in a browser" in printed) == path.endswith("/chat/completions")
    assert (f"  {command} {server.url}/v1\n" in printed) if command else ("--url" not in printed)
    assert address == server.url + path
    assert answer.status_code == 200, answer.text


def test_engine_and_api_can_share_one_process(tiny: Path) -> None:
    with new_server(tiny, "--served-model-name", "tiny", "--disable-frontend-multiprocessing") as server:
        asked: dict[str, Any] = {"prompt": "a", "max_tokens": 3, "extra_body": {"ignore_eos": True}}
        answer = client(server).completions.create(model="tiny", **asked)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(scaled(10)) == 0


def test_whole_and_streamed_answers_of_a_real_engine_are_equal(tiny: Path) -> None:
    with live_server(tiny, "--served-model-name", "tiny") as server:
        talk = client(server).chat.completions
        question: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24}
        for sampling in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 5, "n": 2}):
            whole = talk.create(**question, **sampling)
            texts = [""] * len(whole.choices)
            for chunk in talk.create(**question, **sampling, stream=True):
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
            assert texts == [choice.message.content for choice in whole.choices]
        told = talk.create(**question, logprobs=True, top_logprobs=3, temperature=0)
        assert told.choices[0].logprobs is not None
        for token in told.choices[0].logprobs.content or ():
            assert token.logprob == token.top_logprobs[0].logprob
