"""Adapters through a server of their own: what they make of texts, also while they come and go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from lora_folder import lora_folder

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
UPDATES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
ARGUMENTS = ("--dtype", "float32", "--max-model-len", "512", "--num-gpu-blocks-override", "200")
MANY = 300
"""Tokens of a stream that is still under way when something else has been asked."""


@dataclass
class Place:
    """A server of a tiny model with the adapters one and two, and a folder for more."""

    server: LiveServer
    model: Path
    folder: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.server.url}/v1", api_key="none", max_retries=0, timeout=scaled(60)
        )

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.server.url + path, json=body, timeout=scaled(60))

    def load(self, name: str, folder: Path, **fields: Any) -> httpx.Response:
        return self.post(LOAD, lora_name=name, lora_path=str(folder), **fields)

    def text(self, model: str, **fields: Any) -> str:
        body = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, **fields}
        return self.client.completions.create(model=model, **body).choices[0].text

    def stream(self, model: str) -> openai.Stream[openai.types.Completion]:
        return self.client.completions.create(
            model=model,
            prompt="Once upon a time",
            max_tokens=MANY,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )

    def long_text(self, model: str) -> str:
        return "".join(chunk.choices[0].text for chunk in self.stream(model))


@pytest.fixture(scope="module")
def place(tiny_models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    model, folder = tiny_models("llama"), tmp_path_factory.mktemp("adapters")
    one, two = (lora_folder(model, folder / name, seed=seed) for seed, name in enumerate(("one", "two"), 1))
    named = json.dumps({"name": "two", "path": str(two), "base_model_name": "its/base"})
    words = (
        *ARGUMENTS,
        "--served-model-name",
        "base",
        "--enable-lora",
        "--max-loras",
        "2",
        "--max-cpu-loras",
    )
    with live_server(model, *words, "3", "--lora-modules", f"one={one}", named, env=UPDATES) as server:
        yield Place(server, model, folder)


def test_each_name_has_its_text_alone_and_in_company(place: Place) -> None:
    names = ("base", "one", "two")
    alone = {name: place.text(name) for name in names}
    assert len(set(alone.values())) == 3
    asked = names * 4
    with ThreadPoolExecutor(len(asked)) as threads:
        assert list(threads.map(place.text, asked)) == [alone[name] for name in asked]
    assert [(card.id, card.parent) for card in place.client.models.list().data] == [  # type: ignore[attr-defined]
        ("base", None),
        ("one", "base"),
        ("two", "its/base"),
    ]


def test_beams_choices_and_chats_are_the_adapters(place: Place) -> None:
    client = place.client
    for name in ("base", "one"):
        beams = place.text(name, extra_body={"use_beam_search": True}, n=2)
        assert beams == place.text(name, extra_body={"use_beam_search": True}, n=2)
        chat = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=8, temperature=0, n=2
        )
        assert chat.model == name
        assert len({choice.message.content for choice in chat.choices}) == 1
    asked = {"extra_body": {"use_beam_search": True}, "n": 2}
    assert place.text("base", **asked) != place.text("one", **asked)


@pytest.mark.slow
def test_one_reloaded_in_place_serves_what_comes_after(place: Place) -> None:
    first = lora_folder(place.model, place.folder / "first", seed=11)
    second = lora_folder(place.model, place.folder / "second", seed=12)
    assert place.load("it", second).status_code == 200
    expected = place.long_text("it")
    assert place.load("it", first, load_inplace=True).status_code == 200
    before = place.long_text("it")
    assert before != expected
    stream = iter(place.stream("it"))
    begun = next(stream).choices[0].text
    assert place.load("it", second, load_inplace=True).status_code == 200
    assert place.long_text("it") == expected
    assert begun + "".join(chunk.choices[0].text for chunk in stream) == before
    assert place.post(UNLOAD, lora_name="it").status_code == 200


def test_one_unloaded_finishes_what_runs_and_takes_no_more(place: Place) -> None:
    folder = lora_folder(place.model, place.folder / "leaving", seed=13)
    assert place.load("leaving", folder).status_code == 200
    whole = place.long_text("leaving")
    stream = iter(place.stream("leaving"))
    begun = next(stream).choices[0].text
    assert place.post(UNLOAD, lora_name="leaving").status_code == 200
    with pytest.raises(openai.NotFoundError, match="`leaving` does not exist"):
        place.text("leaving")
    assert begun + "".join(chunk.choices[0].text for chunk in stream) == whole


def test_the_prefixes_of_named_adapters_are_forgotten(place: Place) -> None:
    def hits(model: str) -> float:
        before = place.server.metrics()["vllm:prefix_cache_hits_total"]
        place.text(model, prompt="Once upon a time " * 20)
        return place.server.metrics()["vllm:prefix_cache_hits_total"] - before

    def reset(query: str) -> httpx.Response:
        return httpx.post(f"{place.server.url}/reset_prefix_cache{query}", timeout=scaled(60))

    names = ("base", "one", "two")
    for name in names:
        hits(name)
    assert reset("?adapter=one").status_code == 200
    assert [hits(name) > 0 for name in names] == [True, False, True]
    for query in ("?adapter=one&adapter=three", "?adapter=", "?adapter=base"):
        refused = reset(query)
        assert refused.status_code == 404
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == ("adapter", "adapter_not_found")
        assert "There is no LoRA adapter" in error["message"]
    assert [hits(name) > 0 for name in names] == [True] * 3
    assert reset("?adapter=one&adapter=two").status_code == 200
    assert [hits(name) > 0 for name in names] == [True, False, False]


@pytest.mark.slow
def test_more_adapters_than_memory_holds_are_read_again(place: Place) -> None:
    names = [f"more-{number}" for number in range(6)]
    for number, name in enumerate(names):
        folder = lora_folder(place.model, place.folder / name, seed=20 + number)
        assert place.load(name, folder).status_code == 200
    texts = {name: place.text(name) for name in names}
    assert len(set(texts.values())) == len(names)
    asked = names * 3
    with ThreadPoolExecutor(len(asked)) as threads:
        assert list(threads.map(place.text, asked)) == [texts[name] for name in asked]
    for name in names:
        assert place.post(UNLOAD, lora_name=name).status_code == 200


def broken(place: Place, name: str, **config: Any) -> Path:
    return lora_folder(place.model, place.folder / name, **config)


def empty(place: Place) -> Path:
    folder = place.folder / "empty"
    folder.mkdir()
    return folder


def cut(place: Place) -> Path:
    folder = broken(place, "cut")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return folder


def no_json(place: Place) -> Path:
    folder = broken(place, "no-json")
    (folder / "adapter_config.json").write_text("{")
    return folder


UNFIT: dict[str, tuple[Callable[[Place], Path], str]] = {
    "nothing in it": (empty, "adapter_config.json"),
    "weights cut short": (cut, "adapter_model.safetensors"),
    "no JSON": (no_json, "adapter_config.json"),
    "DoRA": (lambda place: broken(place, "dora", use_dora=True), "use_dora"),
    "a large rank": (lambda place: broken(place, "large", rank=17), "16"),
    "another method": (lambda place: broken(place, "ia3", peft_type="IA3"), "IA3"),
}


@pytest.mark.parametrize(("make", "words"), UNFIT.values(), ids=UNFIT)
def test_what_is_no_adapter_for_this_model_is_refused_with_the_reason(
    place: Place, make: Callable[[Place], Path], words: str
) -> None:
    answer = place.load("unfit", make(place))
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]
    assert "unfit" not in [card.id for card in place.client.models.list().data]
    assert place.text("one")


def test_metrics_name_the_adapters_of_requests_under_way(place: Place) -> None:
    stream = iter(place.stream("one"))
    next(stream)
    (series,) = [
        line
        for line in place.server.get("/metrics")[1].splitlines()
        if line.startswith("vllm:lora_requests_info{")
    ]
    assert 'max_lora="2",running_lora_adapters="one",waiting_lora_adapters=""' in series
    for _ in stream:
        pass


@pytest.mark.slow
def test_several_api_processes_serve_the_same_adapters(place: Place) -> None:
    words = (*ARGUMENTS, "--served-model-name", "base", "--enable-lora", "--api-server-count", "2")
    modules = (
        "--lora-modules",
        f"one={place.folder / 'one'}",
        f"two={place.folder / 'two'}",
        "--max-cpu-loras",
        "2",
    )
    with live_server(place.model, *words, *modules) as server:
        both = Place(server, place.model, place.folder)
        for _ in range(4):  # each by a connection of its own
            for name in ("base", "one", "two"):
                assert both.text(name) == place.text(name)


@pytest.mark.slow
def test_a_start_with_one_that_is_unfit_ends_with_its_name(place: Place, tmp_path: Path) -> None:
    folder = lora_folder(place.model, tmp_path / "bad", use_dora=True)
    words = ("--enable-lora", "--lora-modules", f"one={place.folder / 'one'}", f"bad={folder}")
    with live_server(place.model, *ARGUMENTS, *words, ready=False) as server:
        assert server.process.wait(scaled(60)) == 2
        assert f"--lora-modules bad={folder}: " in server.wait_until_said("use_dora", 5)
