"""What a line of a batch may say, and what its answer looks like."""

from __future__ import annotations

import io
import json

import pytest

from slipway.batch import lines
from slipway.batch.lines import Refused, answer_line, answered_line, read_lines, read_question

PATHS = ("/v1/chat/completions", "/v1/completions")
GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def only(text: bytes) -> lines.Line:
    (line,) = read_lines(io.BytesIO(text))
    return line


def refusal(text: bytes) -> Refused:
    with pytest.raises(Refused) as refused:
        read_question(only(text), PATHS)
    return refused.value


def test_a_line_is_asked_with_the_bytes_of_its_body():
    body = b'{"prompt":  "\\u00e9", "n": 1}'
    head = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": '
    question = read_question(only(head + body + b"}"), PATHS)
    assert (question.custom_id, question.path) == ("a", "/v1/completions")
    assert question.body == body


def test_lines_are_numbered_as_an_editor_does_and_blank_ones_left_out():
    found = list(read_lines(io.BytesIO(b"\xef\xbb\xbf{}\r\n\n  \n[]\n1")))
    assert [(line.number, line.text) for line in found] == [(1, b"{}"), (4, b"[]"), (5, b"1")]


def test_a_line_is_the_same_with_and_without_its_end():
    assert only(b"{}").answer_id == only(b"  {}\r\n").answer_id != only(b"{ }\n").answer_id


def test_a_line_that_is_too_long_is_refused_and_costs_no_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    long = json.dumps({**GOOD, "body": {"prompt": "x" * 500}}).encode()
    first, second = read_lines(io.BytesIO(long + b"\n" + json.dumps(GOOD).encode()))
    assert len(first.text) <= 100
    with pytest.raises(Refused, match="Line 1 is longer than"):
        read_question(first, PATHS)
    assert read_question(second, PATHS).custom_id == "a"
    (other,) = read_lines(io.BytesIO(long[:-10] + b"y" + long[-9:]))
    assert other.digest != first.digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"not json", "Line 1 is not valid JSON"),
        (b'{"custom_id": "a"', "Line 1 is not valid JSON"),
        (b'{"custom_id": "\xff"}', "Line 1 is not valid JSON"),
        (b'{"custom_id": "a", "body": NaN}', "Line 1 is not valid JSON"),
        (b"[1, 2]", "Line 1 is [1, 2] but should be a JSON object."),
        (b'"' + b"x" * 100 + b'"', "…"),
        (b'{"body": ' + b"[" * 100_000, "nests too deep"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_request_is_refused_with_the_number_of_its_line(text: bytes, words: str):
    refused = refusal(text)
    assert words in str(refused)
    assert refused.custom_id is None
    assert refused.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"custom_id": None}, "custom_id", "custom_id is null but should be a text"),
        ({"custom_id": 7}, "custom_id", "custom_id is 7 but"),
        ({"custom_id": ""}, "custom_id", 'custom_id is "" but'),
        ({"method": "GET"}, "method", 'method is "GET" but should be POST'),
        ({"method": ["POST"]}, "method", 'method is ["POST"] but'),
        ({"url": "/v1/models"}, "url", "but should be one of /v1/chat/completions, /v1/completions"),
        ({"url": "http://h/v1/completions"}, "url", 'url is "http://h/v1/completions"'),
        ({"url": {}}, "url", "url is {} but"),
        ({"body": {"stream": True}}, "body.stream", "body.stream is true"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_and_value(change: dict, param: str, words: str):
    refused = refusal(json.dumps({**GOOD, **change}).encode())
    assert words in str(refused)
    assert refused.param == param == refused.body["error"]["param"]
    assert refused.custom_id == (None if param == "custom_id" else "a")


@pytest.mark.parametrize("name", list(GOOD))
def test_a_missing_field_is_named(name: str):
    refused = refusal(json.dumps({key: value for key, value in GOOD.items() if key != name}).encode())
    assert f"Line 1: {name} is missing" in str(refused)


def test_an_answer_has_openais_shape_and_knows_its_line():
    line = only(json.dumps(GOOD).encode())
    text = answer_line(line, "a", 200, {"choices": []})
    answer = json.loads(text)
    assert answer["custom_id"] == "a"
    assert answer["error"] is None
    assert answer["response"] == {"status_code": 200, "request_id": line.answer_id, "body": {"choices": []}}
    assert answered_line(text) == (1, line.digest)


def test_an_answer_that_failed_has_its_error_twice():
    answer = json.loads(answer_line(only(b"x"), None, 400, refusal(b"x").body))
    assert answer["error"] == answer["response"]["body"]["error"]
    assert answer["error"]["code"] == "invalid_json"
