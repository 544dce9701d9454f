"""Adapters as clients meet them: names of models that come and go, over a scripted engine."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from e2e.ground.patience import scaled
from safetensors.numpy import save_file
from scripted import VOCABULARY
from serving import CHAT, MODEL, PLAIN, Served, refused

from factory import write_tokenizer
from slipway.api.adapters import MOST
from slipway.api.frontend import TEXT_THREADS
from slipway.exits import BAD_ARGUMENTS, Exit

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an adapter, as far as the API looks."""
    place = tmp_path / "adapter"
    place.mkdir()
    return place


@pytest.fixture
def listed(start: Callable[..., Served], folder: Path) -> Served:
    """With two adapters from the start, that cannot be changed."""
    named = f'{{"name": "two", "path": "{folder}", "base_model_name": "its/base"}}'
    return start("--enable-lora", "--max-loras", "3", "--lora-modules", f"one={folder}", named)


@pytest.fixture
def changing(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    return start("--enable-lora")


def load(served: Served, name: str, path: Path | str, **fields: Any) -> httpx.Response:
    return served.post(LOAD, {"lora_name": name, "lora_path": str(path), **fields})


def unload(served: Served, name: str, **fields: Any) -> httpx.Response:
    return served.post(UNLOAD, {"lora_name": name, **fields})


def names(served: Served) -> list[str]:
    return [card["id"] for card in served.get("/v1/models").json()["data"]]


def last_number(served: Served) -> int:
    """Of the adapter of the last request; 0: the model alone."""
    adapter = served.engine.requests[-1].adapter
    return adapter.number if adapter else 0


def test_adapters_are_listed_with_their_parent_and_their_place(listed: Served, folder: Path) -> None:
    assert [(ref.number, ref.name, ref.folder) for ref in listed.engine.adapters.values()] == [
        (1, "one", str(folder)),
        (2, "two", str(folder)),
    ]
    base, one, two = listed.openai().models.list().data
    assert (base.id, base.parent) == (MODEL, None)  # type: ignore[attr-defined]
    assert (one.id, one.parent, one.root) == ("one", MODEL, str(folder))  # type: ignore[attr-defined]
    assert (two.id, two.parent) == ("two", "its/base")  # type: ignore[attr-defined]
    assert listed.openai().models.retrieve("two") == two


ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", PLAIN),
    "several": ("/v1/completions", {**PLAIN, "prompt": ["Hi", "Ho"], "n": 2}),
    "beams": ("/v1/completions", {**PLAIN, "use_beam_search": True, "n": 2}),
    "chat": ("/v1/chat/completions", CHAT),
    "invocation": ("/invocations", CHAT),
    "response": ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}),
    "message": ("/v1/messages", CHAT),
}


@pytest.mark.parametrize(("path", "body"), ASKS.values(), ids=ASKS)
def test_a_request_is_computed_by_the_adapter_that_it_names(
    listed: Served, path: str, body: dict[str, Any]
) -> None:
    for model, number in (("two", 2), (MODEL, 0), ("one", 1)):
        listed.engine.reset()
        answer = listed.post(path, {**body, "model": model})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        asked = {request.adapter.number if request.adapter else 0 for request in listed.engine.requests}
        assert asked == {number}


def test_a_stream_and_a_count_of_tokens_take_the_name_too(listed: Served) -> None:
    client = listed.openai()
    chunks = list(client.completions.create(model="two", prompt="Hi", max_tokens=3, stream=True))
    assert {chunk.model for chunk in chunks} == {"two"}
    assert last_number(listed) == 2
    for path, body in (("/tokenize", {"prompt": "Hi"}), ("/v1/messages/count_tokens", CHAT)):
        assert listed.post(path, {**body, "model": "one"}).json() == listed.post(path, body).json()


def test_what_is_neither_model_nor_adapter_is_not_found(listed: Served) -> None:
    for path, body in [*ASKS.values(), ("/tokenize", {"prompt": "Hi"})]:
        answer = listed.post(path, {**body, "model": "three"})
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert message == f"The model `three` does not exist. This server has {MODEL}, one, two."
    assert listed.get("/v1/models/three").status_code == 404


def test_nobody_changes_the_list_without_permission(listed: Served, folder: Path) -> None:
    assert load(listed, "three", folder).status_code == 404
    assert unload(listed, "one").status_code == 404
    assert names(listed) == [MODEL, "one", "two"]


def test_an_adapter_comes_and_goes(changing: Served, folder: Path) -> None:
    loaded = load(changing, "new", folder)
    assert (loaded.status_code, loaded.text) == (200, "Success: the LoRA adapter 'new' is loaded.")
    assert loaded.headers["content-type"].startswith("text/plain")
    assert names(changing) == [MODEL, "new"]
    changing.openai().completions.create(model="new", prompt="Hi", max_tokens=2)
    assert last_number(changing) == 1
    gone = unload(changing, "new")
    assert (gone.status_code, gone.text) == (200, "Success: the LoRA adapter 'new' is unloaded.")
    assert changing.engine.adapters == {}
    assert names(changing) == [MODEL]
    with pytest.raises(openai.NotFoundError, match="`new` does not exist"):
        changing.openai().completions.create(model="new", prompt="Hi", max_tokens=2)


def test_one_loaded_in_place_is_another_to_the_engine(changing: Served, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    load(changing, "it", folder)
    refused(load(changing, "it", other), 400, "lora_name", "has already been loaded")
    refused(load(changing, "it", other, load_inplace=False), 400, "lora_name", "load_inplace: true")
    assert load(changing, "it", other, load_inplace=True).status_code == 200
    (ref,) = changing.engine.adapters.values()
    assert (ref.number, ref.name, ref.folder) == (2, "it", str(other))
    assert names(changing) == [MODEL, "it"]
    changing.openai().completions.create(model="it", prompt="Hi", max_tokens=2)
    assert last_number(changing) == 2


def test_a_bad_one_is_told_and_never_listed(changing: Served, folder: Path, tmp_path: Path) -> None:
    changing.engine.replies["it"] = "The adapter it has a rank of 64; --max-lora-rank is 16."
    refused(load(changing, "it", folder), 400, "lora_path", "--max-lora-rank is 16")
    assert names(changing) == [MODEL]
    del changing.engine.replies["it"]
    load(changing, "it", folder)
    refused(load(changing, "it", tmp_path / "no", load_inplace=True), 404, "lora_path", "There is no folder")
    changing.engine.replies["it"] = "The adapter it is damaged."
    refused(load(changing, "it", folder, load_inplace=True), 400, "lora_path", "is damaged")
    changing.openai().completions.create(model="it", prompt="Hi", max_tokens=2)
    assert changing.engine.adapters[last_number(changing)].folder == str(folder)


def test_requests_under_way_keep_the_adapter_that_they_began_with(changing: Served, folder: Path) -> None:
    load(changing, "it", folder)
    changing.engine.gate.clear()
    changing.engine.held = 1
    with ThreadPoolExecutor(1) as thread:
        body = {**PLAIN, "model": "it", "max_tokens": 4}
        running = thread.submit(changing.post, "/v1/completions", body)
        changing.engine.wait(lambda: len(changing.engine.requests) == 1)
        assert load(changing, "it", folder, load_inplace=True).status_code == 200
        assert unload(changing, "it").status_code == 200
        changing.engine.gate.set()
        answer = running.result()
    assert (answer.status_code, answer.json()["model"]) == (200, "it")
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert last_number(changing) == 1


def test_a_chat_is_written_by_the_models_template_where_the_adapters_tokenizer_has_none(
    changing: Served, folder: Path
) -> None:
    write_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    load(changing, "it", folder)
    for name in (MODEL, "it"):
        assert changing.post("/v1/chat/completions", {**CHAT, "model": name}).status_code == 200
    by_model, by_adapter = (request.prompt_token_ids for request in changing.engine.requests)
    assert by_model == by_adapter


def test_adapters_with_the_same_tokenizer_share_it(changing: Served, folder: Path, tmp_path: Path) -> None:
    """PEFT saves the model's beside each of hundreds."""
    write_tokenizer(folder)
    (folder / "adapter_config.json").write_text('{"r": 1}')
    twin = Path(shutil.copytree(folder, tmp_path / "twin"))
    (twin / "adapter_config.json").write_text('{"r": 2}')
    other = Path(shutil.copytree(folder, tmp_path / "another"))
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for name, place in (("one", folder), ("twin", twin), ("another", other)):
        assert load(changing, name, place).status_code == 200
    one, two, three = (adapter.own.texts for adapter in changing.front.adapters if adapter.own)
    assert one is two
    assert three is not one
    bare = [Path(shutil.copytree(folder, tmp_path / name)) for name in ("bare", "bare too")]
    for place in bare:
        config = json.loads((place / "tokenizer_config.json").read_text())
        del config["chat_template"]
        (place / "tokenizer_config.json").write_text(json.dumps(config))
        load(changing, place.name, place)
    four, five = (adapter.own.texts for adapter in list(changing.front.adapters)[3:] if adapter.own)
    assert four is five


def test_a_budget_of_reasoning_is_refused_where_an_adapter_adds_tokens(
    start: Callable[..., Served], folder: Path
) -> None:
    """It is kept by masks of the model's own tokens: the end of reasoning may be one that is added."""
    ids = {"<think>": VOCABULARY, "</think>": VOCABULARY + 1}
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    save_file({"input_embeddings": np.zeros((2, 8), np.float32)}, folder / "new_embeddings.safetensors")
    served = start("--enable-lora", "--reasoning-parser", "deepseek_r1", "--lora-modules", f"it={folder}")
    body = {**CHAT, "model": "it"}
    assert served.post("/v1/chat/completions", body).status_code == 200
    answer = served.post("/v1/chat/completions", {**body, "thinking_token_budget": 5})
    refused(answer, 400, "thinking_token_budget", "this adapter adds 2 tokens to the vocabulary")


def test_the_engine_keeps_what_a_beam_search_asks_for_with_each_token(changing: Served, folder: Path) -> None:
    load(changing, "it", folder)
    changing.engine.gate.clear()
    with ThreadPoolExecutor(1) as thread:
        body = {**PLAIN, "model": "it", "use_beam_search": True, "n": 2}
        running = thread.submit(changing.post, "/v1/completions", body)
        changing.engine.wait(lambda: len(changing.engine.requests) == 1)
        assert load(changing, "it", folder, load_inplace=True).status_code == 200
        assert unload(changing, "it").status_code == 200
        assert list(changing.engine.adapters) == [1]
        changing.engine.gate.set()
        assert running.result().status_code == 200
    assert {request.adapter.number for request in changing.engine.requests if request.adapter} == {1}
    changing.engine.wait(lambda: not changing.engine.adapters)


def test_a_request_is_made_anew_where_its_name_comes_to_another_adapter_meanwhile(
    changing: Served, folder: Path, tmp_path: Path
) -> None:
    """The engine computes no token that the other one has not."""
    other = tmp_path / "other"
    other.mkdir()
    (folder / "added_tokens.json").write_text(json.dumps({"<zig>": VOCABULARY}))
    save_file({"input_embeddings": np.zeros((1, 8), np.float32)}, folder / "new_embeddings.safetensors")
    load(changing, "it", folder)
    form = {"text": {"format": {"type": "text"}}}  # which is made in a thread
    body = {"model": "it", "input": "a<zig>b", "max_output_tokens": 2, **form}
    texts, may_go_on = changing.front._threads, threading.Event()
    for _ in range(TEXT_THREADS):
        texts.submit(may_go_on.wait, 10)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(changing.post, "/v1/responses", body)
        try:
            deadline = time.monotonic() + scaled(10)
            while not texts._work_queue.qsize():
                assert time.monotonic() < deadline, "the request never came"
                time.sleep(0.001)
            assert load(changing, "it", other, load_inplace=True).status_code == 200
        finally:
            may_go_on.set()
        assert asked.result().status_code == 200
    assert last_number(changing) == 2
    assert max(changing.engine.requests[-1].prompt_token_ids) < VOCABULARY
    load(changing, "it", folder, load_inplace=True)
    changing.post("/v1/responses", body)
    assert max(changing.engine.requests[-1].prompt_token_ids) == VOCABULARY


def test_of_many_who_load_one_name_one_succeeds(changing: Served, folder: Path) -> None:
    together = threading.Barrier(8)

    def ask() -> int:
        together.wait(scaled(10))
        return load(changing, "it", folder).status_code

    with ThreadPoolExecutor(8) as threads:
        answers = [thread.result() for thread in [threads.submit(ask) for _ in range(8)]]
    assert sorted(answers) == [200] + [400] * 7
    assert list(changing.engine.adapters) == [1]


BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no name": (LOAD, {"lora_path": "/x"}, 400, "lora_name"),
    "no path": (LOAD, {"lora_name": "a"}, 400, "lora_path"),
    "empty name": (LOAD, {"lora_name": "", "lora_path": "/x"}, 400, "lora_name"),
    "empty path": (LOAD, {"lora_name": "a", "lora_path": ""}, 400, "lora_path"),
    "long name": (LOAD, {"lora_name": "a" * 257, "lora_path": "/x"}, 400, "lora_name"),
    "long path": (LOAD, {"lora_name": "a", "lora_path": "/" * 4097}, 400, "lora_path"),
    "path that no file system takes": (
        LOAD,
        {"lora_name": "a", "lora_path": "/" + "x" * 999},
        404,
        "lora_path",
    ),
    "lines in a name": (LOAD, {"lora_name": "a\nb", "lora_path": "/x"}, 400, "lora_name"),
    "name of the model": (LOAD, {"lora_name": MODEL, "lora_path": "/x"}, 400, "lora_name"),
    "path that is a number": (LOAD, {"lora_name": "a", "lora_path": 7}, 400, "lora_path"),
    "path of nobody's": (LOAD, {"lora_name": "a", "lora_path": "~nobody-here/x"}, 404, "lora_path"),
    "path with a zero": (LOAD, {"lora_name": "a", "lora_path": "/a\0b"}, 404, "lora_path"),
    "path of a file": (LOAD, {"lora_name": "a", "lora_path": __file__}, 404, "lora_path"),
    "path that is missing": (LOAD, {"lora_name": "a", "lora_path": "../nowhere"}, 404, "lora_path"),
    "in place of a word": (
        LOAD,
        {"lora_name": "a", "lora_path": "/x", "load_inplace": "yes"},
        400,
        "load_inplace",
    ),
    "unknown": (UNLOAD, {"lora_name": "b"}, 404, "lora_name"),
    "the model": (UNLOAD, {"lora_name": MODEL}, 404, "lora_name"),
    "another's id": (UNLOAD, {"lora_name": "there", "lora_int_id": 9}, 400, "lora_name"),
    "an id below 1": (UNLOAD, {"lora_name": "there", "lora_int_id": 0}, 400, "lora_int_id"),
    "an id alone": (UNLOAD, {"lora_int_id": 1}, 400, "lora_name"),
}


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_and_changes_nothing(
    changing: Served, folder: Path, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    load(changing, "there", folder)
    refused(changing.post(path, body), status, param, "")
    assert names(changing) == [MODEL, "there"]
    assert unload(changing, "there", lora_int_id=1).status_code == 200


def test_the_list_of_names_has_an_end(changing: Served, folder: Path) -> None:
    adapters = changing.front.adapters
    load(changing, "it", folder)
    (served,) = adapters
    adapters._served.update({f"{number}": served for number in range(MOST - 1)})
    refused(load(changing, "new", folder), 400, "lora_name", f"{MOST} LoRA adapters are loaded")
    assert load(changing, "it", folder, load_inplace=True).status_code == 200
    message = changing.post("/v1/completions", {**PLAIN, "model": "new"}).json()["error"]["message"]
    assert message.endswith(f"and {MOST + 1 - 16} more.")


def test_a_start_names_the_adapter_that_is_not_there(
    start: Callable[..., Served], folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(Exit) as ended:
        start("--enable-lora", "--lora-modules", f"one={folder}", f"two={tmp_path}/no")
    assert ended.value.exit_code is BAD_ARGUMENTS
    assert ended.value.argument == "lora_modules"
    assert ended.value.message == f"--lora-modules two={tmp_path}/no: There is no folder {tmp_path}/no."


def test_a_start_names_the_prompt_adapter_that_is_of_another_kind(
    start: Callable[..., Served], folder: Path
) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    words = ("--enable-prompt-adapter", "--max-prompt-adapter-token", "8")
    with pytest.raises(Exit, match="is of the kind LORA; PROMPT_TUNING and P_TUNING are served") as ended:
        start(*words, "--prompt-adapters", f"one={folder}")
    assert ended.value.exit_code is BAD_ARGUMENTS
    assert ended.value.argument == "prompt_adapters"
