"""Encoders over HTTP: a real server, real weights, and what transformers makes of the same texts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from minilm import fetch
from tokenizers import Tokenizer

from encoder_models import make_encoder, reference
from live_server import LiveServer, live_server
from pair_tokenizer import write_pair_tokenizer

TEXTS = [
    "Paris is the capital of France.",
    "x",
    "Der schnelle braune Fuchs springt über den faulen Hund. " * 9,
    "What does it cost to keep a cache of keys and values?",
    "word " * 254,  # and two special tokens: as long as the model takes
]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LiveServer]]:
    folder = make_encoder("bert", tmp_path_factory.mktemp("reranker"), "SequenceClassification", num_labels=1)
    write_pair_tokenizer(folder)
    with live_server(folder, "--dtype", "float32", "--device", "cpu", "--max-model-len", "64") as server:
        yield folder, server


@torch.inference_mode()
def pair_scores(folder: Path, query: str, documents: list[str], limit: int | None = None) -> list[float]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    made = [
        tokenizer(
            *(query, text),
            return_tensors="pt",
            return_token_type_ids=True,
            truncation=limit is not None,
            max_length=limit,
        )
        for text in documents
    ]
    return [model(one.input_ids, token_type_ids=one.token_type_ids).logits.sigmoid().item() for one in made]


def asked(server: LiveServer, path: str, body: dict[str, Any]) -> Any:
    status, answer = server.post(path, json.dumps(body).encode())
    assert status == 200
    return json.loads(answer)


def test_a_cross_encoder_scores_and_ranks_pairs_as_transformers_does(
    reranker: tuple[Path, LiveServer],
) -> None:
    folder, server = reranker
    query, documents = "how long?", ["not long", "seven days and one more", "x", "nobody knows"]
    wanted = pair_scores(folder, query, documents)
    scored = asked(server, "/v1/score", {"text_1": query, "text_2": documents})
    assert [one["score"] for one in scored["data"]] == pytest.approx(wanted, abs=1e-4)
    ranked = asked(server, "/v1/rerank", {"query": query, "documents": documents})["results"]
    found = {one["index"]: one["relevance_score"] for one in ranked}
    assert [found[index] for index in range(4)] == pytest.approx(wanted, abs=1e-4)
    assert [*found] == sorted(found, key=lambda index: -wanted[index])
    assert max(wanted) - min(wanted) > 0.01


def test_a_pair_beyond_the_models_length_is_refused_or_cut(reranker: tuple[Path, LiveServer]) -> None:
    folder, server = reranker
    body = {"query": "how long?", "documents": ["very long " * 30]}
    assert server.status("/rerank", json.dumps(body).encode()) == 400
    (cut,) = asked(server, "/rerank", body | {"truncate_prompt_tokens": -1})["results"]
    (wanted,) = pair_scores(folder, body["query"], body["documents"], 64)
    assert cut["relevance_score"] == pytest.approx(wanted, abs=1e-4)


def test_an_encoder_generates_nothing(reranker: tuple[Path, LiveServer]) -> None:
    _, server = reranker
    assert server.status("/v1/completions", b'{"prompt": "x"}') == 400
    assert server.status("/v1/embeddings", b'{"input": "x"}') == 400


@torch.inference_mode()
def test_minilm_embeds_as_sentence_transformers_would() -> None:
    """By transformers' rows, their mean and length 1, as the model's modules say."""
    folder = fetch()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = reference(folder)
    with live_server(
        folder, "--dtype", "float32", "--device", "cpu", "--served-model-name", "mini"
    ) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with client:
            made = client.embeddings.create(model="mini", input=TEXTS)
            alone = [client.embeddings.create(model="mini", input=text).data[0] for text in TEXTS]
            with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens"):
                client.embeddings.create(model="mini", input="word " * 255)
            cut = client.embeddings.create(
                model="mini", input="word " * 999, extra_body={"truncate_prompt_tokens": -1}
            )
    for text, one, other in zip(TEXTS, made.data, alone, strict=True):
        assert one.embedding == other.embedding
        rows = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        found = torch.tensor(one.embedding)
        assert torch.cosine_similarity(rows.mean(0), found, dim=0) >= 0.99999
        assert abs(found.norm() - 1) < 1e-5
    assert cut.data[0].embedding == made.data[-1].embedding
    pairs = itertools.combinations((torch.tensor(one.embedding) for one in made.data), 2)
    assert max(float(one @ other) for one, other in pairs) < 0.9  # texts are told apart
