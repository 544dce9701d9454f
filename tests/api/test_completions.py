"""`/v1/completions` through the openai client."""

from __future__ import annotations

import json
import math
from itertools import accumulate
from typing import Any

import pytest
from serving import MODEL, SENTENCE, Served, says

from slipway.api.logprobs import LogprobFormat
from slipway.engine.messages import AddRequest, TokenLogprobs


def test_a_completion_has_text_usage_and_a_reason(served: Served) -> None:
    answer = served.openai().completions.create(model=MODEL, prompt="Tell me", max_tokens=200)
    assert answer.id.startswith("cmpl-")
    assert answer.model == MODEL
    assert answer.object == "text_completion"
    assert answer.choices[0].text == SENTENCE
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(served.tokenizer.encode(SENTENCE)) + 1
    assert answer.usage.prompt_tokens == len(served.tokenizer.encode("Tell me"))


def test_sixteen_tokens_are_the_default(served: Served) -> None:
    answer = served.openai().completions.create(model=MODEL, prompt="Tell me")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_streamed_and_whole_texts_are_equal(served: Served) -> None:
    client = served.openai()
    chunks = list(client.completions.create(model=MODEL, prompt="Tell me", max_tokens=200, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == SENTENCE
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_asynchronous_client_streams_too(served: Served) -> None:
    text = ""
    async with served.async_openai() as client:
        stream = await client.completions.create(model=MODEL, prompt="Tell me", max_tokens=9, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].text
    assert SENTENCE.startswith(text)
    assert text


@pytest.mark.parametrize(
    "prompt",
    ["Tell me", [72, 101], ["Tell", "me"], [[72], [101, 108]]],
    ids=["text", "ids", "texts", "many"],
)
def test_every_form_of_prompt_gives_n_choices_each(served: Served, prompt: list[str]) -> None:
    answer = served.openai().completions.create(model=MODEL, prompt=prompt, n=2, max_tokens=3)
    prompts = 2 if isinstance(prompt[0], list) or prompt == ["Tell", "me"] else 1
    assert [choice.index for choice in answer.choices] == list(range(2 * prompts))
    assert len(served.engine.requests) == 2 * prompts


def test_token_ids_come_along_where_they_are_asked_for(served: Served) -> None:
    client, wanted = served.openai(), {"return_token_ids": True}
    whole = client.completions.create(model=MODEL, prompt="Tell me", max_tokens=200, extra_body=wanted)
    (choice,) = whole.model_dump()["choices"]
    assert choice["prompt_token_ids"] == served.tokenizer.encode("Tell me")
    assert served.tokenizer.decode(choice["token_ids"]) == SENTENCE
    stream = client.completions.create(
        model=MODEL, prompt="Tell me", max_tokens=200, stream=True, extra_body=wanted
    )
    choices = [chunk.model_dump()["choices"][0] for chunk in stream]
    assert choices[0]["prompt_token_ids"] == choice["prompt_token_ids"]
    assert not any("prompt_token_ids" in later for later in choices[1:])
    assert [token for one in choices for token in one["token_ids"]] == choice["token_ids"]


def test_a_bias_beyond_100_is_100(served: Served) -> None:
    served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=1, logit_bias={"5": 500, "6": -101}
    )
    assert served.engine.requests[0].params.logit_bias == ((5, 100.0), (6, -100.0))


def test_child_i_has_seed_plus_i(served: Served) -> None:
    served.openai().completions.create(model=MODEL, prompt="a", n=3, seed=2**63 - 1, max_tokens=1)
    assert [request.params.seed for request in served.engine.requests] == [2**63 - 1, 2**63, 2**63 + 1]


def test_without_a_seed_one_is_drawn_for_each_request(served: Served) -> None:
    for _ in range(2):
        served.openai().completions.create(model=MODEL, prompt="a", n=2, max_tokens=1)
    seeds = [request.params.seed for request in served.engine.requests]
    assert seeds[1] == (seeds[0] + 1) % 2**64
    assert seeds[2] != seeds[0]


def test_defaults_come_from_the_generation_configuration(served: Served) -> None:
    served.openai().completions.create(model=MODEL, prompt="a", max_tokens=1)
    served.openai().completions.create(model=MODEL, prompt="a", max_tokens=1, extra_body={"top_k": 0})
    first, second = (request.params for request in served.engine.requests)
    assert (first.top_k, second.top_k) == (33, 0)
    assert first.stop_token_ids == (2,)


def test_ignoring_the_end_leaves_only_the_clients_stop_tokens(served: Served) -> None:
    extra = {"ignore_eos": True, "stop_token_ids": [9]}
    served.openai().completions.create(model=MODEL, prompt="a", max_tokens=1, extra_body=extra)
    assert served.engine.requests[0].params.stop_token_ids == (9,)


def test_every_sampling_field_reaches_the_engine(served: Served) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
        "allowed_token_ids": [9, 3],
        "bad_words": ["the"],
    }
    served.openai().completions.create(
        model=MODEL,
        prompt="a",
        max_tokens=4,
        temperature=0.5,
        top_p=0.8,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        seed=7,
        logit_bias={"5": -100},
        extra_body=extra,
    )
    params = served.engine.requests[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.8, 5, 0.1)
    assert (params.typical_p, params.repetition_penalty, params.min_tokens) == (0.9, 1.1, 1)
    assert (params.presence_penalty, params.frequency_penalty, params.seed) == (0.25, -0.5, 7)
    assert params.logit_bias == ((5, -100.0),)
    assert params.allowed_token_ids == (3, 9)
    encode = served.tokenizer.encode
    assert params.bad_words == (tuple(encode("the")), tuple(encode(" the")))


def test_a_tiny_temperature_is_greedy(served: Served) -> None:
    served.openai().completions.create(model=MODEL, prompt="a", max_tokens=1, temperature=1e-30)
    assert served.engine.requests[0].params.temperature == 0.0


def test_a_stop_string_ends_the_text(served: Served) -> None:
    answer = served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=200, stop=[", and", "Berlin"], logprobs=1
    )
    choice = answer.choices[0]
    assert choice.text == "Paris is the capital of France"
    assert choice.finish_reason == "stop"
    assert choice.stop_reason == ", and"  # type: ignore[attr-defined]
    assert choice.logprobs is not None
    assert answer.usage is not None
    assert len(choice.logprobs.tokens or ()) == answer.usage.completion_tokens
    assert "".join(choice.logprobs.tokens or ()) == "Paris is the capital of France, and"


def test_a_stop_string_aborts_the_request(served: Served) -> None:
    served.engine.held = 20
    served.engine.gate.clear()
    served.openai().completions.create(model=MODEL, prompt="a", max_tokens=200, stop=", and")
    served.engine.wait(lambda: served.engine.aborted == [served.engine.requests[0].request_id])


def test_a_stop_string_may_stay_in_the_text(served: Served) -> None:
    extra = {"include_stop_str_in_output": True}
    answer = served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=200, stop=", and", extra_body=extra
    )
    assert answer.choices[0].text == "Paris is the capital of France, and"


def test_stop_strings_wait_for_min_tokens(served: Served) -> None:
    tokens = len(served.tokenizer.encode("Paris is the capital of France"))
    answer = served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=200, stop="is", extra_body={"min_tokens": tokens}
    )
    assert answer.choices[0].text == SENTENCE.partition("is the capital of Germ")[0]


def test_a_stop_token_of_the_client_is_told_and_not_shown(served: Served) -> None:
    third = served.tokenizer.encode(SENTENCE)[2]
    answer = served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=200, extra_body={"stop_token_ids": [third]}
    )
    choice = answer.choices[0]
    assert choice.text == served.tokenizer.decode(served.tokenizer.encode(SENTENCE)[:2])
    assert (choice.finish_reason, choice.stop_reason) == ("stop", third)  # type: ignore[attr-defined]


def test_echo_puts_the_prompt_and_its_logprobs_in_front(served: Served) -> None:
    answer = served.openai().completions.create(
        model=MODEL, prompt="Tell me", max_tokens=2, echo=True, logprobs=1
    )
    choice = answer.choices[0]
    assert choice.text.startswith("Tell me")
    assert choice.logprobs is not None
    told = choice.logprobs
    prompt_tokens = len(served.tokenizer.encode("Tell me"))
    assert "".join(told.tokens or ()) == choice.text
    assert (told.token_logprobs or ())[0] is None
    assert (told.token_logprobs or ())[1:prompt_tokens] == [-1.0] * (prompt_tokens - 1)
    assert (told.text_offset or ())[prompt_tokens] == len("Tell me")


FACE = "a😀b"


def logprobs_of(served: Served, stream: bool, **fields: Any) -> tuple[str, dict[str, list[Any]]]:
    """The text of an answer and its `logprobs`, those of all chunks joined."""
    body = {"logprobs": 1, "max_tokens": 200, "stream": stream, **fields}
    answer = served.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: {")]
    choices = [one["choices"][0] for one in (map(json.loads, lines) if stream else [answer.json()])]
    told: dict[str, list[Any]] = {}
    for choice in choices:
        assert len({len(listed) for listed in choice["logprobs"].values()}) == 1
        for name, listed in choice["logprobs"].items():
            told.setdefault(name, []).extend(listed)
    text = "".join(choice["text"] for choice in choices)
    assert told["text_offset"] == sorted(told["text_offset"])
    assert max(told["text_offset"]) <= len(text)
    return text, told


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("form", ["text", "ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_offsets_count_characters_of_the_text(
    served: Served, stream: bool, form: str, as_ids: bool, echo: bool
) -> None:
    says(served, FACE)
    ids = served.tokenizer.encode(FACE)
    prompt = FACE if form == "text" else ids
    text, told = logprobs_of(served, stream, prompt=prompt, echo=echo, return_tokens_as_token_ids=as_ids, n=1)
    once = [0, 1, 1, 1, 1, 2]
    assert len(once) == len(ids)
    behind = [len(FACE) + offset for offset in once] if echo else once
    assert (text, told["text_offset"]) == (
        (1 + echo) * FACE,
        [*(once if echo else ()), *behind, len(text)],  # the token that stops stands at the end
    )


@pytest.mark.parametrize("stream", [False, True])
def test_an_output_goes_on_with_the_character_that_its_prompt_begins(served: Served, stream: bool) -> None:
    says(served, FACE)
    ids = served.tokenizer.encode(FACE)
    served.engine.answer = lambda request: ids[3:]
    text, told = logprobs_of(served, stream, prompt=ids[:3], echo=True)
    assert (text, told["text_offset"]) == ("a\ufffd😀b", [0, 1, 1, 2, 2, 3])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [", and", "France, and Ber", "no such", ", an!"])
def test_tokens_of_a_stop_string_stand_at_the_end_of_the_text(
    served: Served, stream: bool, stop: str
) -> None:
    text, told = logprobs_of(served, stream, prompt="Hi", stop=[stop])
    assert text == SENTENCE.partition(stop)[0]
    tokens = [told["tokens"][index] for index, at in enumerate(told["text_offset"]) if at < len(text)]
    assert "".join(tokens).startswith(text)
    ends = accumulate(map(len, told["tokens"]))
    assert told["text_offset"] == [0, *(min(end, len(text)) for end in ends)][:-1]


def test_parts_of_characters_are_told_apart_by_their_bytes(served: Served) -> None:
    one, other = served.tokenizer.encode("😀")[1:3]
    names = ["bytes:" + "".join(rf"\x{b:02x}" for b in served.tokenizer.token_bytes(t)) for t in (one, other)]
    written = LogprobFormat(served.tokenizer, as_ids=False)
    tops = [(other, -0.25), (7, -1.5), (one, -2.0)]
    told = written.completion([one, 7], [TokenLogprobs(-2.0, 3, tops)] * 2, [0, 0])
    seventh = served.tokenizer.token_text(7)
    assert told.tokens == [names[0], seventh]
    assert told.top_logprobs == [
        {names[1]: -0.25, seventh: -1.5, names[0]: -2.0},
        {names[1]: -0.25, seventh: -2.0, names[0]: -2.0},
    ]


def test_of_tokens_with_one_name_the_list_has_the_one_that_stands_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = LogprobFormat(served.tokenizer, as_ids=False)
    monkeypatch.setattr(written, "token", lambda token_id: {5: "a", 6: "a"}.get(token_id, "b"))
    told = written.completion([6], [TokenLogprobs(-2.0, 3, [(5, -0.25), (7, -1.5), (6, -2.0)])], [0])
    assert told.top_logprobs == [{"a": -2.0, "b": -1.5}]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_but_the_echo_is_given_for_zero_tokens(served: Served, stream: bool) -> None:
    body = {"prompt": "Tell me", "max_tokens": 0, "echo": True, "stream": stream}
    answer = served.post("/v1/completions", body)
    assert answer.status_code == 200
    if stream:
        assert '"text":"Tell me"' in answer.text
        assert SENTENCE[:1] + '"' not in answer.text
    else:
        assert answer.json()["choices"][0]["text"] == "Tell me"
        assert answer.json()["usage"]["completion_tokens"] == 0


def test_tokens_can_be_written_as_ids(served: Served) -> None:
    extra = {"return_tokens_as_token_ids": True}
    answer = served.openai().completions.create(
        model=MODEL, prompt="a", max_tokens=1, logprobs=2, extra_body=extra
    )
    first = served.tokenizer.encode(SENTENCE)[0]
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens == [f"token_id:{first}"]
    assert (told.top_logprobs or [])[0] == {f"token_id:{first}": -0.5, "token_id:7": -1.5}


def test_the_drawn_token_is_listed_where_no_alternatives_are(served: Served) -> None:
    answer = served.openai().completions.create(model=MODEL, prompt="a", max_tokens=2, logprobs=0)
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.top_logprobs == [{token: -0.5} for token in told.tokens or ()]


def test_an_empty_name_means_the_model_that_is_served(served: Served) -> None:
    assert served.openai().completions.create(model="", prompt="a", max_tokens=1).model == MODEL


def test_minus_infinity_is_written_as_a_number(served: Served) -> None:
    from slipway.api.logprobs import floor

    assert floor(-math.inf) == -9999.0


def test_the_best_of_many_is_the_likeliest(served: Served) -> None:
    def answer(request: AddRequest) -> list[int]:
        return served.tokenizer.encode("no" if request.params.seed == 6 else "maybe so")

    served.engine.answer = answer
    best = served.openai().completions.create(model=MODEL, prompt="a", best_of=3, n=1, seed=5)
    assert len(served.engine.requests) == 3
    assert [choice.text for choice in best.choices] == ["no"]
    assert best.choices[0].logprobs is None
    assert best.usage is not None
    assert best.usage.completion_tokens == len(served.tokenizer.encode("no"))


def test_a_prompt_is_cut_to_its_end_where_asked(served: Served) -> None:
    extra = {"truncate_prompt_tokens": 3}
    served.openai().completions.create(model=MODEL, prompt=[5, 6, 7, 8, 9], max_tokens=1, extra_body=extra)
    assert served.engine.requests[0].prompt_token_ids == [7, 8, 9]


def test_a_prompt_over_the_context_is_refused_with_the_numbers(served: Served) -> None:
    body = {"prompt": [5] * 500, "max_tokens": 20}
    error = served.post("/v1/completions", body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert "500" in error["message"]
    assert "20" in error["message"]


def test_the_default_shrinks_to_what_the_context_leaves(served: Served) -> None:
    served.openai().completions.create(model=MODEL, prompt=[5] * 505)
    assert served.engine.requests[0].params.max_tokens == 7


def test_usage_comes_last_or_with_every_chunk(served: Served) -> None:
    client = served.openai()
    options = {"include_usage": True, "continuous_usage_stats": True}
    for continuous in (False, True):
        options["continuous_usage_stats"] = continuous
        chunks = list(
            client.completions.create(
                model=MODEL,
                prompt="a",
                max_tokens=4,
                stream=True,
                stream_options=options,  # type: ignore[call-overload]
            )
        )
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 4
        assert all((chunk.usage is not None) == continuous for chunk in chunks[:-1])


def test_cached_tokens_are_told_where_the_server_is_asked_to(start) -> None:  # type: ignore[no-untyped-def]
    served = start("--enable-prompt-tokens-details")
    answer = served.openai().completions.create(model=MODEL, prompt=[5] * 20, max_tokens=2, n=2)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_a_text_that_no_context_holds_is_refused_before_it_is_tokenized(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = served.front.model.tokenizer
    encoded: list[int] = []
    encode = tokenizer.encode

    def counted(text: str, **keywords: Any) -> list[int]:
        encoded.append(len(text))
        return encode(text, **keywords)

    monkeypatch.setattr(tokenizer, "encode", counted)
    text = "a b " * 100_000
    fewest = tokenizer.fewest(text)
    messages = [{"role": "user", "content": text}]
    plain = served.post("/v1/completions", {"prompt": text, "max_tokens": 3})
    chat = served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 3})
    for answer, param in ((plain, "prompt"), (chat, "messages")):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == param
    assert plain.json()["error"]["message"] == (
        f"This model's maximum context length is 512 tokens, and the request has at least {fewest} of the "
        "prompt and 3 of the completion. Shorten the prompt or lower max_tokens."
    )
    assert not encoded
    cut = served.post("/v1/completions", {"prompt": text, "max_tokens": 3, "truncate_prompt_tokens": 5})
    assert cut.json()["usage"]["prompt_tokens"] == 5
    assert served.engine.requests[-1].prompt_token_ids == encode(text)[-5:]


def test_an_echo_is_what_truncation_leaves_of_the_prompt(served: Served) -> None:
    wanted = {"max_tokens": 2, "echo": True, "logprobs": 0, "return_token_ids": True}
    for prompt in ("Tell me of Paris", served.tokenizer.encode("Tell me of Paris")):
        body = {"prompt": prompt, "truncate_prompt_tokens": 3, **wanted}
        (choice,) = served.post("/v1/completions", body).json()["choices"]
        left, told = served.tokenizer.decode(choice["prompt_token_ids"]), choice["logprobs"]
        assert choice["text"] == left + served.tokenizer.decode(choice["token_ids"])
        assert "".join(told["tokens"]) == choice["text"]
        assert told["text_offset"][3] == len(left)


def test_the_token_behind_nothing_but_an_echo_stops_nothing(served: Served) -> None:
    first = served.tokenizer.encode(SENTENCE)[0]
    body = {"prompt": "Tell me", "max_tokens": 0, "echo": True, "stop_token_ids": [first]}
    (choice,) = served.post("/v1/completions", body).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
