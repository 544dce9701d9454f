"""The demo model under real grammars: what it writes is valid, and forced tokens only save steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from local_engine import LocalEngine, Output
from slipway.engine.messages import ReasoningBounds
from slipway.engine.params import SamplingParams
from slipway.text import structure
from slipway.text.open import load
from slipway.text.structure import JsonStyle
from slipway.text.tokenizer import Tokenizer

TIGHT = JsonStyle(any_whitespace=False)
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "occupation": {"enum": ["teacher", "carpenter", "astronaut"]},
        "years_of_experience": {"type": "integer", "minimum": 0, "maximum": 60},
        "favourite_colours": {
            "type": "array",
            "items": {"enum": ["red", "green", "blue"]},
            "minItems": 1,
            "maxItems": 3,
        },
        "employed": {"type": ["boolean", "null"]},
    },
    "required": ["first_name", "occupation", "years_of_experience", "favourite_colours", "employed"],
    "additionalProperties": False,
}
LEFT, RIGHT = (
    {
        "type": "object",
        "properties": {"kind": {"const": kind}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["kind", "n"],
        "additionalProperties": False,
    }
    for kind in ("left", "right")
)
CLOSED: list[Any] = [
    PERSON,
    {"type": "array", "items": {"enum": list(range(10, 99))}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "string", "format": "date"}], "items": False, "minItems": 1},
    {"anyOf": [{"const": {"answer": 42}}, {"type": "null"}]},
    {"oneOf": [LEFT, RIGHT]},
]
"""Schemas whose texts have an end that a small model cannot run past."""


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return load(demo_model)


@pytest.fixture(scope="module", params=[False, True], ids=["", "overlap"])
def engine(demo_model: Path, request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    with LocalEngine(demo_model, max_model_len=512, num_blocks=400, overlap=request.param) as engine:
        yield engine


def answered(
    engine: LocalEngine, prompt: list[int], requests: list[tuple[SamplingParams, str]]
) -> list[Output]:
    """All at once, in the order given."""
    names = [engine.add(prompt, params, grammar=grammar) for params, grammar in requests]
    engine.finish()
    return [engine.output(name) for name in names]


def greedy(tokenizer: Tokenizer, **changes: Any) -> SamplingParams:
    fields = {"max_tokens": 120, "temperature": 0.0, "stop_token_ids": tokenizer.eos_token_ids}
    return SamplingParams(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_is_written_under_a_schema_is_valid_and_ends(engine: LocalEngine, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("Write some JSON about a person:\n")
    requests = []
    for style in (TIGHT, structure.JSON):
        for schema in CLOSED:
            grammar = structure.of_json_schema(schema, style)
            requests.append((greedy(tokenizer), grammar))
            requests.append((greedy(tokenizer, temperature=1.5, seed=7), grammar))
    outputs = answered(engine, prompt, requests)
    for output, schema in zip(outputs, [schema for schema in CLOSED * 2 for _ in range(2)], strict=True):
        text = tokenizer.decode(output.tokens)
        assert output.finish_reason == "stop", text
        jsonschema.validate(json.loads(text), schema)
        assert not set(output.tokens) & set(tokenizer.eos_token_ids), "the last brace is the end"


def test_forced_tokens_change_nothing_but_the_number_of_steps(
    engine: LocalEngine, tokenizer: Tokenizer
) -> None:
    prompt = tokenizer.encode("A person, as JSON: ")
    grammar = structure.of_json_schema(PERSON, TIGHT)
    requests = [
        (greedy(tokenizer, num_logprobs=3), grammar),
        (greedy(tokenizer, temperature=0.9, seed=3, num_logprobs=0), grammar),
        (greedy(tokenizer, frequency_penalty=1.5, repetition_penalty=1.2, num_logprobs=0), grammar),
        (greedy(tokenizer), ""),
    ]
    limits = engine.core.scheduler.limits
    assert limits.forced
    steps, found = [], []
    for forced in (False, True):
        object.__setattr__(limits, "forced", forced)
        before = engine.core.news.num_steps
        found.append(answered(engine, prompt, requests[:3]))
        steps.append(engine.core.news.num_steps - before)
    assert found[0] == found[1]
    assert steps[1] < 0.6 * steps[0]
    # Nor do others in the batch change, which have no grammar.
    alone = answered(engine, prompt, requests[3:])
    assert answered(engine, prompt, requests)[3] == alone[0]


def test_the_matchers_limits_meet_those_of_the_request(engine: LocalEngine, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("Yes or no? ")
    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ("yes", "no"))
    either = structure.of_choice(["yes", "no"])
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"allowed_token_ids": (no,)}, "no"),
        ({"logit_bias": ((yes, 100.0),)}, "yes"),
        ({"bad_words": ((yes,), (tokenizer.encode("y", add_special_tokens=False)[0],))}, "no"),
        ({"stop_token_ids": (), "min_tokens": 50}, None),  # its end is the end, whatever else is asked
        ({"max_tokens": 2}, None),
    ]
    outputs = answered(engine, prompt, [(greedy(tokenizer, **changes), either) for changes, _ in cases])
    for output, (_, expected) in zip(outputs, cases, strict=True):
        text = tokenizer.decode(output.tokens)
        assert text == expected if expected else text in ("yes", "no")
        assert output.finish_reason == "stop"
    nothing = greedy(tokenizer, allowed_token_ids=(tokenizer.encode("maybe", add_special_tokens=False)[0],))
    (output,) = answered(engine, prompt, [(nothing, either)])
    assert (output.finish_reason, output.tokens) == ("error", [])


def test_a_text_that_may_go_on_ends_by_its_end_token(engine: LocalEngine, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("One word: ")
    many = structure.of_regex("[a-z ]+")
    (long,) = answered(engine, prompt, [(greedy(tokenizer, max_tokens=12), many)])
    assert long.finish_reason == "length"
    biased = greedy(tokenizer, logit_bias=((tokenizer.eos_token_ids[0], 100.0),))
    (short,) = answered(engine, prompt, [(biased, many)])
    assert short.finish_reason == "stop"
    assert short.tokens[-1] in tokenizer.eos_token_ids
    assert len(short.tokens) == 2, "not before there is a word"


def test_a_grammar_that_cannot_be_read_fails_alone(engine: LocalEngine, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("Hello")
    bad = structure.of_json_schema({"not": {}})
    good = structure.of_choice(["yes"])
    outputs = answered(engine, prompt, [(greedy(tokenizer), grammar) for grammar in (bad, good, "{", good)])
    assert [output.finish_reason for output in outputs] == ["error", "stop", "error", "stop"]
    assert engine.core.grammars.num_waiting == 0
    assert not engine.core.grammars


def test_a_grammar_begins_behind_the_reasoning(engine: LocalEngine, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("Think, then answer: ")
    begin, end = (tokenizer.token_id(text) for text in ("<repo_name>", "<file_sep>"))
    assert begin is not None
    assert end is not None
    either = structure.of_choice(["yes", "no"])

    def answer(bounds: ReasoningBounds, grammar: str = either, **changes: Any) -> Output:
        name = engine.add(prompt, greedy(tokenizer, **changes), grammar=grammar, reasoning=bounds)
        engine.finish()
        return engine.output(name)

    # At once, where the model does not begin to reason.
    plain = answer(ReasoningBounds(begin, end, inside=False))
    assert tokenizer.decode(plain.tokens) in ("yes", "no")
    # Five tokens of its own, then the end, then the form.
    inside = answer(ReasoningBounds(begin, end, inside=True, budget=5), num_logprobs=0)
    assert inside.tokens[5] == end
    assert end not in inside.tokens[:5]
    assert tokenizer.decode(inside.tokens[6:]) in ("yes", "no")
    assert len(inside.logprobs) == len(inside.tokens)
    free = answer(ReasoningBounds(begin, end, inside=True), max_tokens=8)
    assert free.tokens[:5] == inside.tokens[:5]
    assert free.finish_reason == "length"
    # It begins to reason, by its first token alone.
    begun = answer(ReasoningBounds(begin, end, inside=False, budget=3), logit_bias=((begin, 100.0),))
    assert begun.tokens[0] == begin
    assert begun.tokens[4] == end
    assert tokenizer.decode(begun.tokens[5:]) in ("yes", "no")
    # Without a grammar the budget alone is kept.
    short = answer(ReasoningBounds(begin, end, inside=True, budget=2), "", max_tokens=10)
    assert short.tokens[2] == end
    assert len(short.tokens) == 10
