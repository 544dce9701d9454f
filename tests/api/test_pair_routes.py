"""Scores and rerankings over HTTP: pairs of texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from serving import Served, refused
from test_pooling_routes import EMBEDS, SCORES, threads_of

from pair_tokenizer import write_pair_tokenizer
from slipway.api.products import MAX_PAIR_CHARACTERS
from slipway.api.routes import score
from slipway.text.fast import FastVocabulary
from slipway.text.open import load
from slipway.text.tokenizer import Tokenizer


@pytest.fixture
def embeds(start: Callable[..., Served]) -> Served:
    return start(pools=EMBEDS)


def test_a_pair_is_joined_as_the_tokenizer_does() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[S]": 0, "a": 1, "b": 2}, "[S]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[S] $A [S]", pair="[S] $A [S] $B [S]", special_tokens=[("[S]", 0)]
    )
    vocabulary = FastVocabulary(words)
    assert vocabulary.encode_pair("a b", "b", None) == ([0, 1, 2, 0, 2, 0], None)
    assert Tokenizer(vocabulary).encode_pair("a", "b") == ([0, 1, 0, 2, 0], None)
    with pytest.raises(ValueError, match="lone surrogate"):
        Tokenizer(vocabulary).encode_pair("a", "\ud800")


@pytest.mark.torch
@pytest.mark.parametrize("limit", [None, 40, 13, 12, 6, 4, 3])
@pytest.mark.parametrize(
    "texts", [("what?", "words " * 9), ("words " * 9, "what?"), ("words " * 6, "text " * 7)]
)
def test_a_pair_is_cut_and_typed_as_transformers_does(
    tmp_path: Path, texts: tuple[str, str], limit: int | None
) -> None:
    import transformers

    write_pair_tokenizer(tmp_path)
    wanted = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        *texts, truncation=limit is not None, max_length=limit, return_token_type_ids=True
    )
    token_ids, type_from = load(tmp_path).encode_pair(*texts, limit)
    assert token_ids == wanted["input_ids"]
    assert type_from == wanted["token_type_ids"].index(1)


def test_types_that_change_more_than_once_are_refused(tmp_path: Path) -> None:
    write_pair_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    odd = json.loads(file.read_text())
    odd["post_processor"]["pair"][3]["Sequence"]["type_id"] = 2
    file.write_text(json.dumps(odd))
    with pytest.raises(ValueError, match=r"types \[0, 1, 2\] in an order"):
        load(tmp_path).encode_pair("a", "b")


def test_a_pair_is_told_where_its_second_type_begins(start: Callable[..., Served], tmp_path: Path) -> None:
    write_pair_tokenizer(tmp_path)
    served = start(other=tmp_path, pools=SCORES)
    served.engine.vectors = lambda tokens: [[len(tokens)]]
    body = {"query": "what?", "documents": ["one text", "this is a longer one"]}
    assert served.post("/rerank", body).status_code == 200
    own = len(served.tokenizer.encode("what?"))
    assert [request.pooling.type_from for request in served.engine.requests if request.pooling] == [own, own]
    served.post("/rerank", body | {"truncate_prompt_tokens": 6})
    assert {len(request.prompt_token_ids) for request in served.engine.requests[2:]} == {6}


def test_an_embedding_model_scores_by_the_angle(embeds: Served) -> None:
    directions = {"north": [0, 2], "east": [3, 0], "northeast": [1, 1]}
    texts = {tuple(embeds.tokenizer.encode(text)): vector for text, vector in directions.items()}
    embeds.engine.vectors = lambda tokens: [texts[tuple(tokens)]]
    body = {"text_1": "north", "text_2": ["east", "northeast", "north"]}
    answer = embeds.post("/score", body).json()
    assert [one["score"] for one in answer["data"]] == pytest.approx([0, 0.5**0.5, 1])
    assert len(embeds.engine.requests) == 3  # none is computed twice
    body = {"text_1": ["north", "east"], "text_2": ["east", "east"]}
    answer = embeds.post("/v1/score", body).json()
    assert [one["score"] for one in answer["data"]] == pytest.approx([0, 1])
    wrong = embeds.post("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
    refused(wrong, 400, "text_1", "text_1 has 2 texts and text_2 3")
    refused(embeds.post("/score", body | {"activation": False}), 400, "activation", "scores are cosines")


def test_many_pairs_of_few_texts_are_scored_in_a_thread(
    embeds: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their cosines take as many products as pairs have numbers, whatever the body's length."""
    embeds.engine.vectors = lambda tokens: [[float(tokens[0])] * 1024]
    scoring = threads_of(monkeypatch, score, "_scores")
    body = {"text_1": ["north", "south"] * 20, "text_2": ["east"] * 40}
    assert embeds.post("/score", body).status_code == 200
    assert len(embeds.engine.requests) == 3
    assert scoring == ["text"]


def test_a_query_beside_many_documents_is_tokenized_in_a_thread(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = start(pools=SCORES)
    served.engine.vectors = lambda tokens: [[0.5]]
    joining = threads_of(monkeypatch, served.front.model.tokenizer, "encode_pair")
    many = {"query": "word " * 100, "documents": ["y"] * 20}
    assert served.post("/rerank", many).status_code == 200
    assert joining == ["text"] * 20
    # What is cut is tokenized whole, and the query again for each document.
    long = {"query": "word " * 2000, "documents": ["y"] * 2000, "truncate_prompt_tokens": 8}
    joining.clear()
    refused(served.post("/rerank", long), 400, "text", f"more than the {MAX_PAIR_CHARACTERS}")
    assert not joining
    long["documents"] = ["y"] * 2
    assert served.post("/rerank", long).status_code == 200


def test_writing_a_reranking_tokenizes_nothing(embeds: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop may do that."""
    encoding = threads_of(monkeypatch, embeds.front.model.tokenizer, "encode")
    body = {"query": "what?", "documents": ["one two three four", "five six seven"], "max_tokens_per_doc": 2}
    results = embeds.post("/rerank", body).json()["results"]
    assert {one["index"] for one in results} == {0, 1}
    assert len(encoding) == 2 + 3  # to find where documents are cut, then what is read


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_reranking_has_the_best_first(start: Callable[..., Served], path: str) -> None:
    served = start(pools=SCORES)
    served.engine.vectors = lambda tokens: [[len(tokens) / 100]]
    documents: list[Any] = ["short", {"text": "the longest of all of these"}, "of medium length"]
    body = {"model": "scripted", "query": "what?", "documents": documents, "top_n": 2}
    answer = served.post(path, body).json()
    assert [one["index"] for one in answer["results"]] == [1, 2]
    assert answer["results"][0]["document"] == {"text": "the longest of all of these"}
    lengths = [
        len(served.tokenizer.encode_pair("what?", text)[0]) / 100
        for text in (documents[1]["text"], documents[2])
    ]
    assert [one["relevance_score"] for one in answer["results"]] == pytest.approx(lengths)
    bare = served.post(path, body | {"top_n": 0, "return_documents": False, "max_tokens_per_doc": 1}).json()
    assert [one["index"] for one in bare["results"]] == [0, 1, 2]  # equal ones in their order
    assert all("document" not in one for one in bare["results"])
    refused(served.post(path, {"query": "x", "documents": []}), 400, "documents", "at least 1")
    refused(served.post(path, {"query": "x", "documents": [5]}), 400, "documents[0]", "5")


def test_pairs_are_put_into_the_operators_template(start: Callable[..., Served], tmp_path: Any) -> None:
    template = tmp_path / "pairs.jinja"
    template.write_text(
        "Q {{ (messages | selectattr('role', 'eq', 'query') | first).content }} "
        "D {{ (messages | selectattr('role', 'eq', 'document') | first).content }} relevant?"
    )
    served = start("--chat-template", str(template), pools=SCORES)
    served.engine.vectors = lambda tokens: [[0.5]]
    assert served.post("/score", {"text_1": "one", "text_2": "two"}).status_code == 200
    asked = served.tokenizer.decode(served.engine.requests[-1].prompt_token_ids)
    assert asked == "Q one D two relevant?"
