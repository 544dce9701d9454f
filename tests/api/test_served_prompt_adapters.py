"""Prompt adapters through a server of their own: what clients see of tokens that they have not sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from lora_folder import lora_folder
from prompt_folder import prompt_folder

CONTEXT, VIRTUAL = 64, 20
ARGUMENTS = (
    *("--dtype", "float32", "--max-model-len", str(CONTEXT), "--num-gpu-blocks-override", "100"),
    *("--served-model-name", "base", "--enable-prompt-adapter", "--max-prompt-adapter-token", str(VIRTUAL)),
)
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def server(
    tiny_models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """With two prompt adapters, of which memory holds one, and a low-rank one."""
    model, folder = tiny_models("llama"), tmp_path_factory.mktemp("adapters")
    tuned = [
        f"{name}={prompt_folder(folder / name, tokens, seed=tokens)}"
        for name, tokens in (("short", 3), ("tuned", VIRTUAL))
    ]
    low_rank = f"low={lora_folder(model, folder / 'low')}"
    words = ("--prompt-adapters", *tuned, "--enable-lora", "--lora-modules", low_rank)
    env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    with live_server(model, *ARGUMENTS, *words, env=env) as found:
        yield found


def post(server: LiveServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=scaled(60))


def completed(server: LiveServer, model: str, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0} | fields
    answer = post(server, "/v1/completions", model=model, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_each_name_has_its_text_and_the_usage_of_what_was_sent(server: LiveServer) -> None:
    found = {name: completed(server, name) for name in ("base", "low", "short", "tuned")}
    assert len({one["choices"][0]["text"] for one in found.values()}) == 4
    assert {name: one["model"] for name, one in found.items()} == {name: name for name in found}
    assert all(one["usage"] == found["base"]["usage"] for one in found.values())
    assert found["tuned"] | {"id": "", "created": 0} == completed(server, "tuned") | {"id": "", "created": 0}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    base, tuned = (
        post(server, "/v1/chat/completions", model=name, **chat).json()["usage"] for name in ("base", "tuned")
    )
    assert base == tuned


def test_echo_and_log_probabilities_are_of_the_prompt_that_was_sent(server: LiveServer) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 2, "prompt_logprobs": 1}
    base, tuned = (completed(server, name, **fields)["choices"][0] for name in ("base", "tuned"))
    assert tuned["text"].startswith(PROMPT)
    sent = len(base["prompt_logprobs"])
    assert len(tuned["prompt_logprobs"]) == sent
    assert tuned["prompt_logprobs"][0] is None
    assert tuned["logprobs"]["tokens"][:sent] == base["logprobs"]["tokens"][:sent]
    assert tuned["logprobs"]["token_logprobs"][1:sent] != base["logprobs"]["token_logprobs"][1:sent]
    assert tuned["logprobs"]["text_offset"][0] == 0


def test_virtual_tokens_take_room_in_the_context(server: LiveServer) -> None:
    cards = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [(card["id"], card["parent"], card["max_model_len"]) for card in cards] == [
        ("base", None, CONTEXT),
        ("low", "base", CONTEXT),
        ("short", "base", CONTEXT - 3),
        ("tuned", "base", CONTEXT - VIRTUAL),
    ]
    prompt, left = list(range(5, 45)), CONTEXT - VIRTUAL - 40
    fields: dict[str, Any] = {"ignore_eos": True, "prompt": prompt}
    assert completed(server, "tuned", max_tokens=left, **fields)["usage"]["completion_tokens"] == left
    cut = completed(server, "tuned", truncate_prompt_tokens=-1, max_tokens=10, **fields)
    assert cut["usage"]["prompt_tokens"] == CONTEXT - VIRTUAL - 10
    refused = post(server, "/v1/completions", model="tuned", prompt=prompt, max_tokens=left + 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "its prompt adapter takes 20 of them" in refused.json()["error"]["message"]


def test_beams_continue_behind_virtual_tokens(server: LiveServer) -> None:
    asked: dict[str, Any] = {"use_beam_search": True, "n": 2, "max_tokens": 6}
    base, tuned = (completed(server, name, **asked)["choices"][0]["text"] for name in ("base", "tuned"))
    assert base != tuned == completed(server, "tuned", **asked)["choices"][0]["text"]


def test_routes_of_low_rank_adapters_leave_prompt_adapters_alone(server: LiveServer, tmp_path: Path) -> None:
    body = {"lora_name": "tuned", "lora_path": str(tmp_path), "load_inplace": True}
    refused = post(server, "/v1/load_lora_adapter", **body)
    assert refused.status_code == 400
    assert "is the name of a prompt adapter" in refused.json()["error"]["message"]
    assert post(server, "/v1/unload_lora_adapter", lora_name="tuned").status_code == 404
    assert completed(server, "tuned")


@pytest.mark.slow
def test_a_start_with_one_that_the_engine_refuses_ends_with_its_name(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = prompt_folder(tmp_path / "bad", VIRTUAL + 1)
    with live_server(
        tiny_models("llama"), *ARGUMENTS, "--prompt-adapters", f"bad={folder}", ready=False
    ) as server:
        assert server.process.wait(scaled(60)) == 2
        assert f"--prompt-adapters bad={folder}: " in server.wait_until_said(
            f"has {VIRTUAL + 1} virtual tokens", 5
        )
