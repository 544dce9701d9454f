"""A folder as Mistral publishes it, served whole: weights, configuration, tokenizer and chats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

from consolidated import to_consolidated
from factory import make_model
from live_server import LiveServer, live_server
from slipway import exits
from slipway.text.open import load
from tekken import write_tekken

SIZE = 512
CHAT = [{"role": "user", "content": "Hello </s> the €"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mistral")
    own = to_consolidated(make_model("mistral", place / "hf", head_dim=24), place / "own")
    for path in own.glob("tokenizer*"):
        path.unlink()
    return write_tekken(own, size=SIZE)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(folder, "--served-model-name", "m", "--trust-request-chat-template") as started:
        yield started


def asked(server: LiveServer, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(
        f"{server.url}{path}", json={"model": "m", **body}, timeout=scaled(60)
    ).json()
    return answer


@pytest.mark.torch
def test_the_prompt_of_a_chat_is_the_librarys(server: LiveServer, folder: Path) -> None:
    writer = load(folder).chat
    assert writer is not None
    for tools in (None, [TOOL]):
        found = asked(server, "/tokenize", messages=CHAT, **({"tools": tools} if tools else {}))
        assert found["tokens"] == writer.write(CHAT, tools=tools).token_ids
    answer = asked(server, "/v1/chat/completions", messages=CHAT, max_tokens=4)
    assert answer["usage"]["prompt_tokens"] == len(writer.write(CHAT).token_ids or ())
    assert answer["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.torch
def test_an_answer_is_text_of_the_tokenizer_and_the_same_in_a_stream(
    server: LiveServer, folder: Path
) -> None:
    body = {"prompt": "the the", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = asked(server, "/v1/completions", **body, return_token_ids=True)["choices"][0]
    assert whole["text"] == load(folder).decode(whole["token_ids"])
    lines = httpx.post(f"{server.url}/v1/completions", json={"model": "m", "stream": True, **body}).text
    events = [json.loads(line[6:]) for line in lines.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]


@pytest.mark.torch
def test_an_output_keeps_to_its_form(server: LiveServer) -> None:
    answer = asked(
        server, "/v1/chat/completions", messages=CHAT, max_tokens=20, structured_outputs={"choice": ["the €"]}
    )
    assert answer["choices"][0]["message"]["content"] == "the €"


@pytest.mark.torch
def test_what_the_library_refuses_is_a_400_with_its_words(server: LiveServer) -> None:
    wrong = [*CHAT, {"role": "assistant", "content": "x"}]
    for body, words in (
        ({"messages": wrong}, "Expected last role User or Tool"),
        ({"messages": CHAT, "chat_template": "{{ 1 }}"}, "chat_template is not used"),
    ):
        error = asked(server, "/v1/chat/completions", **body)["error"]
        assert error["code"] in (400, "invalid_value")
        assert words in error["message"]


def refused(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipway", "serve", str(folder), *words, "--port", str(free_port())]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=scaled(60), env=os.environ | environ
    )


@pytest.mark.slow
def test_a_template_of_the_operators_contradicts_it(folder: Path) -> None:
    ended = refused(folder, "--chat-template", "{{ messages }}")
    assert ended.returncode == exits.BAD_ARGUMENTS.code, ended.stderr
    assert "--chat-template is not used: the model's tokenizer is of mistral_common" in ended.stderr


@pytest.mark.slow
def test_where_the_package_is_missing_the_extra_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['mistral_common'] = None")
    ended = refused(folder, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert ended.returncode == exits.MISSING_PACKAGE.code, ended.stderr
    assert "pip install '.[cpu,mistral]'" in ended.stderr
