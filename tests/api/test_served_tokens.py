"""Adapters with tokens and a context of their own, through the API: they are for who names one alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from e2e.ground.patience import scaled
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from live_server import LiveServer, live_server
from lora_folder import lora_folder

pytestmark = pytest.mark.torch  # which processors of requests take

ADDED = ("<zig>", "<zag>", "<zog>")
PROCESSORS = ("--logits-processor-pattern", "operator\\..*")
ARGUMENTS = ("--dtype", "float32", "--num-gpu-blocks-override", "200", "--enable-lora", "--max-loras", "3")


@dataclass
class Place:
    server: LiveServer
    vocab: int
    trained: int

    def post(self, path: str, model: str, **body: Any) -> httpx.Response:
        return httpx.post(self.server.url + path, json={"model": model, **body}, timeout=scaled(60))

    def complete(self, model: str, **body: Any) -> Any:
        fields = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, **body}
        answer = self.post("/v1/completions", model, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, model: str, **body: Any) -> str:
        answer = self.post("/v1/completions", model, **{"prompt": "Once", "max_tokens": 4, **body})
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["message"])

    def tokens(self, model: str, text: str) -> list[int]:
        found: list[int] = self.post("/tokenize", model, prompt=text).json()["tokens"]
        return found


def new_rows(folder: Path, hidden: int) -> None:
    """Rows that are likelier than others, as vLLM's older form has them."""
    random = np.random.default_rng(1)
    rows = random.standard_normal((2, len(ADDED), hidden)).astype(np.float32)
    save_file(
        {"input_embeddings": rows[0], "output_embeddings": 2 * rows[1]}, folder / "new_embeddings.safetensors"
    )


@pytest.fixture(scope="module")
def place(tiny_models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    model, root = tiny_models("llama"), tmp_path_factory.mktemp("adapters")
    config = json.loads((model / "config.json").read_text())
    vocab, trained = config["vocab_size"], config["max_position_embeddings"]
    plain = lora_folder(model, root / "plain", seed=1)
    whole, listed = (lora_folder(model, root / name, seed=2) for name in ("whole", "listed"))
    hidden = load_file(model / "model.safetensors")["model.embed_tokens.weight"].shape[1]
    for folder in (whole, listed):
        new_rows(folder, hidden)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    tokenizer.save(str(whole / "tokenizer.json"))
    (whole / "tokenizer_config.json").write_text((model / "tokenizer_config.json").read_text())
    ids = {token: vocab + number for number, token in enumerate(ADDED)}
    (listed / "added_tokens.json").write_text(json.dumps(ids))
    long = lora_folder(model, root / "long", seed=3, context_length=2 * trained)
    modules = [f"{one.name}={one}" for one in (plain, whole, listed, long)]
    words = (*ARGUMENTS, *PROCESSORS, "--max-cpu-loras", "4", "--served-model-name", "base")
    stretch = ("--long-lora-scaling-factors", "2", "--max-model-len", str(2 * trained - 8))
    with live_server(model, *words, *stretch, "--lora-modules", *modules) as server:
        yield Place(server, vocab, trained)


@pytest.mark.parametrize("name", ["whole", "listed"])
def test_a_text_is_read_and_written_with_the_adapters_tokens(place: Place, name: str) -> None:
    tokens = place.tokens(name, "a<zag>b")
    assert place.vocab + 1 in tokens
    assert max(place.tokens("base", "a<zag>b")) < place.vocab
    assert place.tokens("plain", "a<zag>b") == place.tokens("base", "a<zag>b")
    shown = place.post("/detokenize", name, tokens=tokens).json()["prompt"]
    assert shown == "a<zag>b"
    answer = place.complete(name, prompt="a<zag>b", allowed_token_ids=[place.vocab], max_tokens=2, logprobs=1)
    assert answer["choices"][0]["text"] == "<zig><zig>"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["<zig>", "<zig>"]
    stopped = place.complete(name, allowed_token_ids=[place.vocab], stop=["zig>"], max_tokens=5)["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == ("<", "stop")


def test_a_message_is_counted_in_the_tokens_that_it_is_answered_with(place: Place) -> None:
    body = {"messages": [{"role": "user", "content": "a<zag>b"}], "max_tokens": 1}
    counted = {}
    for name in ("base", "plain", "whole", "listed"):
        counted[name] = place.post("/v1/messages/count_tokens", name, **body).json()["input_tokens"]
        usage = place.post("/v1/messages", name, **body).json()["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted[name]
    assert counted["base"] == counted["plain"] > counted["whole"] == counted["listed"]


def test_tokens_that_one_adapter_adds_are_nobody_elses(place: Place) -> None:
    for name in ("base", "plain"):
        for field in (
            {"prompt": [5, place.vocab]},
            {"allowed_token_ids": [place.vocab]},
            {"logit_bias": {str(place.vocab): 5}},
            {"stop_token_ids": [place.vocab]},
        ):
            assert "out of vocabulary" in place.refused(name, **field)
        assert place.post("/detokenize", name, tokens=[place.vocab]).status_code == 400
        drawn = place.complete(
            name, temperature=3.0, top_k=-1, seed=1, max_tokens=60, logprobs=5, ignore_eos=True
        )
        told = drawn["choices"][0]["logprobs"]["top_logprobs"]
        assert not any(token in ADDED for step in told for token in step)
    for name in ("whole", "listed"):
        assert "out of vocabulary" in place.refused(name, prompt=[place.vocab + len(ADDED)])
        assert place.complete(name, prompt=[5, place.vocab + 2], logit_bias={str(place.vocab + 1): 100.0})[
            "choices"
        ][0]["text"].startswith("<zag>")


def test_what_does_not_know_added_tokens_is_refused(place: Place) -> None:
    told = place.refused("whole", structured_outputs={"regex": "a+"})
    assert "a grammar is made of the model's own tokens" in told
    assert "adds 3 tokens to the vocabulary" in place.refused("listed", logits_processors=["operator.add"])
    held = place.complete("plain", structured_outputs={"regex": "a{3}"}, max_tokens=4)
    assert held["choices"][0]["text"] == "aaa"


def test_only_requests_to_a_long_adapter_are_longer(place: Place) -> None:
    lengths = {
        card["id"]: card["max_model_len"]
        for card in httpx.get(f"{place.server.url}/v1/models").json()["data"]
    }
    trained, longer = place.trained, 2 * place.trained - 8
    assert lengths == {"base": trained, "plain": trained, "whole": trained, "listed": trained, "long": longer}
    prompt = [5] * (place.trained + 4)
    assert place.complete("long", prompt=prompt, max_tokens=2)["usage"]["prompt_tokens"] == len(prompt)
    for name in ("base", "plain", "whole"):
        assert f"maximum context length is {place.trained} tokens" in place.refused(name, prompt=prompt)
