"""Channels: forms and calls are held to grammars, and the reasoning in front of them is free."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from vocabularies import byte_level

from slipway.text import structure
from slipway.text.channels import Channels
from slipway.text.errors import GrammarError
from slipway.text.fast import FastVocabulary
from slipway.text.matcher import GrammarCompiler
from slipway.text.parse.harmony import MARKERS
from slipway.text.structure import JSON
from slipway.text.tokenizer import Tokenizer

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Bern"]}}, "required": ["city"]}
TOOLS: dict[str, Any] = {"weather": CITY, "now": {"type": "object"}}
THINK = "<|channel|>analysis<|message|>Hm, {x}.<|end|><|start|>assistant"
SAY = THINK.replace("analysis", "commentary")
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'
NOW = CALL.replace("weather", "now").replace('{"city": "Rome"}', "{}")


@cache
def known() -> tuple[Tokenizer, GrammarCompiler, dict[str, int]]:
    plain = byte_level()
    plain.add_special_tokens(sorted(MARKERS))
    vocabulary = FastVocabulary(plain)
    end = vocabulary.token_id("</s>")
    assert end is not None
    tokenizer = Tokenizer(vocabulary, eos_token_ids=[end])
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, 1 << 30)
    return (
        tokenizer,
        compiler,
        {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids},
    )


def accepts(grammar: str, text: str) -> bool:
    """Whether an output may be this text and end with it."""
    tokenizer, compiler, _ = known()
    matcher = compiler.matcher(grammar)
    try:
        if matcher.advance(tokenizer.encode(text, add_special_tokens=False)) is not None:
            return True
        matcher.advance(list(tokenizer.eos_token_ids))
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (structure.of_json_schema(CITY), '{"city": "Rome"}', '{"city": "Ulm"}'),
        (structure.of_regex("[0-9]{3}"), "123", "12"),
        (structure.of_choice(["yes", "no"]), "no", "maybe"),
        (structure.of_grammar('root ::= "a" | "b" root'), "bba", "bb"),
    ],
)
def test_an_answer_is_held_in_its_channel_behind_free_reasoning(form: str, good: str, bad: str) -> None:
    grammar = Channels(known()[2]).of_answer(form)
    for begin in ("", THINK, THINK + THINK):
        for final in ("final", "final <|constrain|>json"):
            assert accepts(grammar, f"{begin}<|channel|>{final}<|message|>{good}")
            assert not accepts(grammar, f"{begin}<|channel|>{final}<|message|>{bad}")
    assert not accepts(grammar, good)
    assert not accepts(grammar, THINK)
    assert not accepts(grammar, THINK + CALL)


def test_calls_are_held_to_their_schemas_and_answers_are_free_where_none_is_forced() -> None:
    forced, free = (Channels(known()[2]).of_calls(TOOLS, JSON, forced=one) for one in (True, False))
    for begin in ("", THINK, THINK + SAY):
        for grammar in (forced, free):
            assert accepts(grammar, begin + CALL)
            assert accepts(grammar, begin + NOW)
            for wrong in (CALL.replace("Rome", "Ulm"), CALL.replace("weather", "whether"), "Hi"):
                assert not accepts(grammar, begin + wrong)
        final = f"{begin}<|channel|>final<|message|>It is {{sunny}}."
        assert accepts(free, final)
        assert not accepts(forced, final)


def test_a_call_of_a_tool_without_parameters_has_an_empty_object_of_arguments() -> None:
    grammar = Channels(known()[2]).of_calls({"now": {}}, JSON, forced=True)
    assert accepts(grammar, NOW)
    for wrong in ('{"city": "Rome"}', "5"):
        assert not accepts(grammar, NOW.replace("{}", wrong))


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_a_budget_bounds_the_one_message_of_reasoning(budget: int) -> None:
    bounded = Channels(known()[2], budget)
    calls = bounded.of_calls(TOOLS, JSON, forced=False)
    form = bounded.of_answer(structure.of_regex("[0-9]{3}"))
    final = "<|channel|>final<|message|>123"
    long = THINK.replace("Hm, {x}.", "~" * (budget + 1))
    fitting = THINK.replace("Hm, {x}.", "~" * budget)
    for grammar in (calls, form):
        assert accepts(grammar, final)
        assert accepts(grammar, fitting + final)
        assert not accepts(grammar, long + final)
        assert not accepts(grammar, fitting + fitting + final)
    for begin in (SAY, SAY + fitting, fitting + SAY + SAY):
        assert accepts(calls, begin + CALL)
        assert not accepts(form, begin + final)
    assert not accepts(calls, fitting + SAY + fitting + CALL)
    tokenizer, compiler, ids = known()
    matcher = compiler.matcher(calls)
    assert (
        matcher.advance(tokenizer.encode(fitting.partition("<|end|>")[0], add_special_tokens=False)) is None
    )
    assert matcher.forced()[:1] == [ids["<|end|>"]]
