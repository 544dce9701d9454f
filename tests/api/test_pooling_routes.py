"""Embeddings, scores, classes and rerankings over HTTP."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, refused
from test_http import validate

from pair_tokenizer import write_pair_tokenizer
from slipway.api import pooled_prompts
from slipway.api.errors import ApiError
from slipway.api.pooled_prompts import cut_inside
from slipway.api.products import check_pooled
from slipway.batch.application import batch_paths
from slipway.engine.messages import Pools

EMBEDS = Pools("embed", 4)
SCORES = Pools("classify", 1, labels=["yes"])
CLASSES = Pools("classify", 4, labels=["a", "b", "c", "d"])
BY_TOKEN = Pools("reward", 2, by_token=True)


@pytest.fixture(scope="module")
def server(start_for_module: Callable[..., Served]) -> Served:
    return start_for_module(pools=EMBEDS)


@pytest.fixture
def embeds(server: Served) -> Iterator[Served]:
    yield server
    server.engine.reset()


def expected(tokens: list[int]) -> list[float]:
    return [len(tokens), tokens[0], tokens[-1], pytest.approx(0.1)]


def vectors_of(served: Served, body: dict[str, Any]) -> list[list[float]]:
    answer = served.post("/v1/embeddings", body)
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["embedding"] for one in data]


def test_each_form_of_input_is_answered_in_its_order(embeds: Served) -> None:
    texts = ["one", "two words", "and three words"]
    token_ids = [embeds.tokenizer.encode(text) for text in texts]
    wanted = [expected(tokens) for tokens in token_ids]
    assert vectors_of(embeds, {"input": texts}) == wanted
    assert vectors_of(embeds, {"input": token_ids}) == wanted
    assert vectors_of(embeds, {"input": texts[1]}) == wanted[1:2]
    assert vectors_of(embeds, {"input": token_ids[2]}) == wanted[2:]


def test_usage_counts_the_prompts(embeds: Served) -> None:
    answer = embeds.post("/v1/embeddings", {"input": [[5, 6], [7]], "user": "me"}).json()
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert (answer["object"], answer["model"], answer["id"][:5]) == ("list", "scripted", "embd-")


def test_base64_holds_the_same_numbers(embeds: Served) -> None:
    (text,) = vectors_of(embeds, {"input": [5, 6], "encoding_format": "base64"})
    assert list(struct.unpack("<4f", base64.b64decode(str(text)))) == expected([5, 6])


@pytest.mark.parametrize("form", ["float", "base64"])
def test_the_openai_client_reads_embeddings(embeds: Served, form: Any) -> None:
    with embeds.openai() as client:
        made = client.embeddings.create(model="scripted", input=["one", "two"], encoding_format=form)
        usual = client.embeddings.create(model="scripted", input="one")
    assert [one.index for one in made.data] == [0, 1]
    assert usual.data[0].embedding == expected(embeds.tokenizer.encode("one"))


def test_messages_are_rendered_by_the_chat_template(embeds: Served) -> None:
    vectors_of(embeds, {"messages": [{"role": "user", "content": "Hi"}]})
    asked = embeds.engine.requests[-1].prompt_token_ids
    text = embeds.tokenizer.decode(asked, skip_special_tokens=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"
    vectors_of(embeds, {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True})
    asked = embeds.engine.requests[-1].prompt_token_ids
    assert embeds.tokenizer.decode(asked, skip_special_tokens=False).endswith("assistant\n")


def test_a_long_text_is_refused_unless_it_may_be_cut(embeds: Served) -> None:
    long = {"input": "word " * 2000}
    refused(embeds.post("/v1/embeddings", long), 400, "input", "maximum context length is 512")
    refused(embeds.post("/v1/embeddings", {"input": [5] * 513}), 400, "input", "has 513")
    assert vectors_of(embeds, {"input": [*range(5, 505), 6, 7, 8, 9, 10, 11, 12, 13]})[0][0] == 508
    for asked, kept in ((-1, 512), (20, 20)):
        vectors_of(embeds, long | {"truncate_prompt_tokens": asked})
        sent = embeds.engine.requests[-1].prompt_token_ids
        assert sent == embeds.tokenizer.encode(long["input"])[:kept]


@pytest.mark.parametrize("text", ["word " * 2000, [5] * 600])
def test_no_more_is_kept_than_the_context_holds(embeds: Served, text: Any) -> None:
    longer = {"truncate_prompt_tokens": 600}
    refused(embeds.post("/v1/embeddings", {"input": text, **longer}), 400, "input", "context length is 512")
    pair = {"text_1": "word " * 2000, "text_2": "y"}
    refused(embeds.post("/score", {**pair, **longer}), 400, "text", "has 600")
    assert embeds.engine.requests == []
    assert len(vectors_of(embeds, {"input": "short", **longer})) == 1


def test_dimensions_are_for_models_that_were_trained_for_fewer(start: Callable[..., Served]) -> None:
    plain = start(pools=EMBEDS)
    refused(plain.post("/v1/embeddings", {"input": "x", "dimensions": 2}), 400, "dimensions", "not trained")
    vectors_of(plain, {"input": "x", "dimensions": 4})
    some = start(pools=Pools("embed", 4, cuts=[2, 3]))
    refused(
        some.post("/v1/embeddings", {"input": "x", "dimensions": 1}), 400, "dimensions", "trained for 2, 3"
    )
    refused(
        some.post("/v1/embeddings", {"input": "x", "dimensions": 5}), 400, "dimensions", "more than the 4"
    )
    vectors_of(some, {"input": "x", "dimensions": 2, "normalize": False})
    pooling = some.engine.requests[-1].pooling
    assert pooling is not None
    assert (pooling.dimensions, pooling.activate) == (2, False)


def test_special_tokens_stay_round_a_text_that_is_cut() -> None:
    assert cut_inside([1, 5, 6, 7, 2], [5, 6, 7], 4) == [1, 5, 6, 2]
    assert cut_inside([5, 6, 7, 2], [5, 6, 7], 2) == [5, 2]
    assert cut_inside([1, 5, 6, 2], [5, 6], 1) == [1]


BAD = [
    ({}, "input", "neither"),
    ({"input": "x", "messages": [{"role": "user", "content": "x"}]}, "input", "both"),
    ({"input": []}, "input", "list of token ids"),
    ({"input": ""}, "input", "no tokens"),
    ({"input": [""]}, "input", "no tokens"),
    ({"input": [[]]}, "input", "no tokens"),
    ({"input": [1, "x"]}, "input", "list of token ids"),
    ({"input": {"text": "x"}}, "input", "list of token ids"),
    ({"input": ["x"] * 2049}, "input", "at most 2048"),
    ({"input": [512]}, "input", "out of vocabulary"),
    ({"input": [-1]}, "input", "list of token ids"),
    ({"input": "x", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "not input"),
    ({"input": "x", "add_generation_prompt": True}, "add_generation_prompt", "not input"),
    ({"input": "x", "encoding_format": "hex"}, "encoding_format", "hex"),
    ({"input": "x", "dimensions": 0}, "dimensions", "at least 1"),
    ({"input": "x", "priority": 1}, "priority", "--scheduling-policy priority"),
    ({"input": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "at least -1"),
    ({"input": "x", "truncate_prompt_tokens": 0}, "input", "no tokens"),
    ({"input": "x", "model": "other"}, "model", "does not exist"),
]


@pytest.mark.parametrize(("body", "param", "words"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused_with_the_field(
    embeds: Served, body: dict[str, Any], param: str, words: str
) -> None:
    answer = embeds.post("/v1/embeddings", body)
    refused(answer, 404 if param == "model" else 400, param, words)


def test_what_takes_the_place_of_texts_and_messages_is_said(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    """Nothing of it is generated."""
    bare = start("--skip-tokenizer-init", pools=EMBEDS)
    assert vectors_of(bare, {"input": [5, 6], "truncate_prompt_tokens": 1}) == [expected([5])]
    ids = "send token ids as the input of /v1/embeddings"
    refused(bare.post("/v1/embeddings", {"input": "x"}), 400, "input", ids)
    write_pair_tokenizer(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    plain = {name: value for name, value in json.loads(file.read_text()).items() if name != "chat_template"}
    file.write_text(json.dumps(plain))
    served = start(other=tmp_path, pools=EMBEDS)
    chat = {"messages": [{"role": "user", "content": "x"}]}
    refused(served.post("/v1/embeddings", chat), 400, "messages", "Give input in place of messages")


def test_too_many_tokens_or_numbers_at_once_are_refused(start: Callable[..., Served]) -> None:
    wide = start(pools=Pools("embed", 1 << 13))
    body = {"input": ["x"] * 513}
    refused(wide.post("/v1/embeddings", body), 400, "input", "4202496 numbers, more than the 4194304")
    by_token = start(pools=Pools("reward", 1 << 13, by_token=True))
    refused(by_token.post("/pooling", {"input": [[5] * 500] * 3}), 400, "input", "12288000 numbers")
    prompt = [5] * 1024
    check_pooled([prompt] * 1024, EMBEDS, 0)
    with pytest.raises(ApiError, match="1048577 tokens together"):
        check_pooled([*[prompt] * 1024, [5]], EMBEDS, 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
        ("/classify", {"input": "x"}),
    ],
)
def test_what_a_model_is_not_for_is_refused(embeds: Served, path: str, body: dict[str, Any]) -> None:
    refused(embeds.post(path, body), 400, "model", "The model does not support the ")
    assert embeds.engine.requests == []


def test_a_model_that_generates_pools_nothing(start: Callable[..., Served]) -> None:
    served = start()
    for path in ("/v1/embeddings", "/pooling", "/classify"):
        refused(served.post(path, {"input": "x"}), 400, "model", "it serves --task generate")
    refused(served.post("/v1/score", {"text_1": "x", "text_2": "y"}), 400, "model", "--task generate")
    refused(served.post("/v1/rerank", {"query": "x", "documents": ["y"]}), 400, "model", "--task generate")


def threads_of(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Of each call from now on, the kind of thread that makes it."""
    names: list[str] = []
    called = getattr(owner, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        names.append(threading.current_thread().name.partition("_")[0])
        return called(*arguments, **named)

    monkeypatch.setattr(owner, name, noted)
    return names


def test_a_requests_own_template_is_rendered_in_a_thread(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = start("--trust-request-chat-template", pools=EMBEDS)
    rendering = threads_of(monkeypatch, pooled_prompts, "render_chat")
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages[0].content }}"}
    assert len(vectors_of(served, body)) == 1
    assert rendering == ["text"]


def test_a_classifier_names_the_likeliest_class(start: Callable[..., Served]) -> None:
    served = start(pools=CLASSES)
    served.engine.vectors = lambda tokens: [[0.125, 0.5, 0.25, 0.125]]
    (one,) = served.post("/classify", {"input": "x"}).json()["data"]
    assert one == {"index": 0, "label": "b", "probs": [0.125, 0.5, 0.25, 0.125], "num_classes": 4}
    refused(served.post("/score", {"text_1": "x", "text_2": "y"}), 400, "model", "4 classes")
    refused(served.post("/v1/embeddings", {"input": "x"}), 400, "model", "this needs embed")


def test_pooling_answers_a_vector_or_one_for_each_token(start: Callable[..., Served], embeds: Served) -> None:
    (whole,) = embeds.post("/pooling", {"input": [5, 6]}).json()["data"]
    assert whole == {"index": 0, "object": "pooling", "data": expected([5, 6])}
    served = start(pools=BY_TOKEN)
    served.engine.vectors = lambda tokens: [[token, 0.5] for token in tokens]
    (rows,) = served.post("/pooling", {"input": [5, 6, 7]}).json()["data"]
    assert rows["data"] == [[5, 0.5], [6, 0.5], [7, 0.5]]
    refused(served.post("/v1/embeddings", {"input": "x"}), 400, "model", "this needs embed")
    several = start(pools=Pools("classify", 1, by_token=True))
    for path, body in (("/classify", {"input": "x"}), ("/score", {"text_1": "x", "text_2": "y"})):
        refused(several.post(path, body), 400, "model", "a vector for each token")
    (packed,) = served.post("/pooling", {"input": [5, 6], "encoding_format": "base64"}).json()["data"]
    assert struct.unpack("<4f", base64.b64decode(packed["data"])) == (5, 0.5, 6, 0.5)


def test_prompts_of_a_client_that_leaves_are_aborted(embeds: Served) -> None:
    embeds.engine.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{embeds.url}/v1/embeddings", json={"input": ["x", "y"]}, timeout=0.5)
    embeds.engine.wait(lambda: len(embeds.engine.aborted) == 2)
    assert {*embeds.engine.aborted} == {request.request_id for request in embeds.engine.requests}


def test_an_engines_error_is_the_answer(embeds: Served) -> None:
    embeds.engine.failing = "it broke"
    refused(embeds.post("/v1/embeddings", {"input": ["x", "y"]}), 500, None, "it broke")


ASKED: dict[str, tuple[Pools, dict[str, Any]]] = {
    "/v1/embeddings": (EMBEDS, {"input": ["x"]}),
    "/pooling": (EMBEDS, {"input": "x"}),
    "/classify": (CLASSES, {"input": "x"}),
    "/score": (EMBEDS, {"text_1": "x", "text_2": "y"}),
    "/rerank": (EMBEDS, {"query": "x", "documents": ["y", {"text": "z"}]}),
}


@pytest.mark.parametrize("path", ASKED)
def test_answers_are_as_the_document_describes_them(start: Callable[..., Served], path: str) -> None:
    pools, body = ASKED[path]
    served = start(pools=pools)
    document = served.get("/openapi.json").json()
    described = document["paths"][path]["post"]
    told = described["responses"]["200"]["content"]["application/json"]["schema"]
    validate(served.post(path, body).json(), told, document)


@pytest.mark.parametrize("path", ASKED)
def test_an_invocation_is_answered_as_its_fields_and_the_task_say(
    start: Callable[..., Served], path: str
) -> None:
    pools, body = ASKED[path]
    if path == "/pooling":
        pools, body = BY_TOKEN, {"messages": [{"role": "user", "content": "x"}]}
    served = start(pools=pools)
    answers = [served.post(one, {**body, "request_id": "one"}).json() for one in (path, "/invocations")]
    for answer in answers:
        answer.pop("created", None)
    assert answers[0] == answers[1]
    refused(served.post("/invocations", {"prompt": "x"}), 400, "messages", "none of messages, input, text_1")


def test_batches_may_ask_for_embeddings_scores_and_rerankings(embeds: Served) -> None:
    assert {"/v1/embeddings", "/v1/score", "/v1/rerank"} <= {*batch_paths(embeds.http.config.app)}


def test_greetings_show_a_request_that_the_model_answers() -> None:
    from slipway.api.greeting import _first_request
    from slipway.api.texts import Texts

    texts = Texts(None, None, None, (), None)  # type: ignore[arg-type]
    assert _first_request(texts, EMBEDS)[1] == "v1/embeddings"
    assert _first_request(texts, BY_TOKEN)[1] == "pooling"
