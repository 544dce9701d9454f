"""Prompts: their number, their lengths, what they share, and what is said where there are none."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slipway.args import ArgumentError
from slipway.args.schema import BENCH
from slipway.bench.datasets import TOKENS, Alphabet, Sample, samples, warm_ups
from slipway.bench.words import SONNETS, WORDS

DEFAULTS = {name: argument.default for name, argument in BENCH["serve"].arguments.items()}


def count(text: str) -> int:
    return len(text.split())


def made(name: str, alphabet: Alphabet = TOKENS, seed: int = 0, **given: Any) -> list[Sample]:
    return samples(DEFAULTS | {"dataset_name": name} | given, random.Random(seed), alphabet, count)


def test_random_prompts_are_token_ids_of_the_asked_length():
    some = made("random", num_prompts=5, input_len=7, output_len=3)
    assert [(len(one.prompt), one.output_len) for one in some] == [(7, 3)] * 5
    assert all(100 <= token < 1000 for one in some for token in one.prompt)
    assert len({tuple(one.prompt) for one in some}) == 5
    (usual,) = made("random", num_prompts=1)
    assert (len(usual.prompt), usual.output_len) == (1024, 128)


def test_a_datasets_own_length_wins_over_the_general_one():
    (one,) = made("random", num_prompts=1, input_len=7, random_input_len=9, random_output_len=2)
    assert (len(one.prompt), one.output_len) == (9, 2)


def test_a_seed_repeats_the_prompts():
    assert (
        made("random", num_prompts=3)
        == made("random", num_prompts=3)
        != made("random", seed=1, num_prompts=3)
    )


def test_a_range_ratio_draws_lengths_evenly_on_both_sides():
    some = made("random", num_prompts=2000, input_len=10, output_len=4, random_range_ratio=0.5)
    lengths = Counter(len(one.prompt) for one in some)
    assert set(lengths) == set(range(5, 16))
    assert min(lengths.values()) > 2000 / 11 / 2
    assert {one.output_len for one in some} == set(range(2, 7))
    whole = made("random", num_prompts=200, input_len=3, random_range_ratio=1.0)
    assert {len(one.prompt) for one in whole} == set(range(1, 7))


def test_a_random_prefix_comes_before_the_asked_length():
    some = made("random", num_prompts=3, input_len=4, random_prefix_len=6)
    assert {len(one.prompt) for one in some} == {10}
    assert len({tuple(one.prompt[:6]) for one in some}) == 1


def test_for_a_chat_a_random_prompt_is_words():
    (one,) = made("random", Alphabet(WORDS), num_prompts=1, input_len=9)
    assert isinstance(one.prompt, str)
    assert count(one.prompt) == 9
    assert set(one.prompt.split()) <= set(WORDS)


def test_each_prefix_is_repeated_as_often_in_no_order():
    some = made(
        "prefix-repetition",
        num_prompts=40,
        prefix_repetition_prefix_len=5,
        prefix_repetition_suffix_len=3,
        prefix_repetition_num_prefixes=4,
        prefix_repetition_output_len=2,
    )
    prefixes = [tuple(one.prompt[:5]) for one in some]
    assert set(Counter(prefixes).values()) == {10}
    assert len(set(prefixes[:10])) > 1
    assert len({tuple(one.prompt) for one in some}) == 40
    assert {(len(one.prompt), one.output_len) for one in some} == {(8, 2)}


def test_more_prefixes_than_prompts_are_refused():
    with pytest.raises(ArgumentError, match="num-prefixes 10 is more than --num-prompts 9"):
        made("prefix-repetition", num_prompts=9)


def test_verse_has_the_asked_length_to_the_nearest_line_and_shares_its_first_lines():
    some = made("sonnet", num_prompts=6, sonnet_input_len=300, sonnet_prefix_len=100, sonnet_output_len=5)
    per_line = count(" ".join(SONNETS)) / len(SONNETS)
    shared = round(100 / per_line)
    lines = [one.prompt.splitlines()[1:] for one in some]
    assert len({tuple(each[:shared]) for each in lines}) == 1
    assert len({tuple(each) for each in lines}) == 6
    assert all(set(each) <= set(SONNETS) for each in lines)
    assert all(abs(count(one.prompt) - 300) < 0.1 * 300 for one in some)
    assert {one.output_len for one in some} == {5}


def test_verse_may_come_from_a_file(tmp_path):
    (tmp_path / "lines.txt").write_text("one two three\n\nfour five six\n")
    path = str(tmp_path / "lines.txt")
    (one,) = made("sonnet", num_prompts=1, input_len=30, sonnet_prefix_len=0, dataset_path=path)
    assert set(one.prompt.splitlines()[1:]) <= {"one two three", "four five six"}


def test_a_prefix_that_leaves_no_room_is_refused():
    with pytest.raises(ArgumentError, match="A prompt of 100 tokens has no room"):
        made("sonnet", sonnet_input_len=100, sonnet_prefix_len=200)


@pytest.fixture
def conversations(tmp_path: Path) -> str:
    """Of 4 to 12 words asked and twice as many answered, and some that do not fit."""
    fitting = [turns("q " * number, "a " * 2 * number) for number in range(4, 13)]
    odd = [turns("q q q", "a " * 50), turns("q " * 9, "a a"), turns("q " * 1025, "a " * 9)]
    too_long = turns("q " * 1000, "a " * 1049)
    single = {"conversations": [{"from": "human", "value": "alone"}]}
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([*odd, single, too_long, *fitting, {"id": "empty"}, 7]))
    return str(path)


def turns(question: str, answer: str) -> dict:
    return {
        "conversations": [
            {"from": "human", "value": question.strip()},
            {"from": "gpt", "value": answer.strip()},
            {"from": "human", "value": "and then?"},
        ]
    }


def test_conversations_of_usable_lengths_are_asked_for_the_answers_length(conversations):
    some = made("sharegpt", num_prompts=9, dataset_path=conversations)
    assert sorted((count(one.prompt), one.output_len) for one in some) == [(n, 2 * n) for n in range(4, 13)]
    assert some != sorted(some, key=lambda one: one.output_len)
    in_order = made("sharegpt", num_prompts=2, dataset_path=conversations, disable_shuffle=True)
    assert [one.output_len for one in in_order] == [8, 10]


def test_an_output_length_for_conversations_wins_over_their_answers(conversations):
    some = made("sharegpt", num_prompts=9, dataset_path=conversations, sharegpt_output_len=6)
    assert {one.output_len for one in some} == {6}


def test_an_output_length_for_conversations_may_be_one_token(conversations):
    some = made("sharegpt", num_prompts=9, dataset_path=conversations, output_len=1)
    assert {one.output_len for one in some} == {1}


def test_too_few_conversations_are_asked_again(conversations):
    some = made("sharegpt", num_prompts=20, dataset_path=conversations)
    assert len(some) == 20
    assert some[:9] == some[9:18]


def warming(name: str, measured: list[Sample], **given: Any) -> list[Sample]:
    return warm_ups(DEFAULTS | {"dataset_name": name} | given, measured, TOKENS, count)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("random", {"input_len": 9, "random_prefix_len": 5}),
        ("prefix-repetition", {"prefix_repetition_prefix_len": 5}),
        ("sonnet", {"output_len": 5}),
    ],
)
def test_a_warm_up_knows_no_measured_prompt_and_none_of_their_first_tokens(name, given):
    measured = made(name, num_prompts=20, **given)
    warm = warming(name, measured, num_prompts=20, num_warmups=4, **given)
    assert len(warm) == 4
    begun = 5 if name != "sonnet" else 200  # the task is every prompt's
    assert not {tuple(one.prompt[:begun]) for one in warm} & {tuple(one.prompt[:begun]) for one in measured}
    assert warm == warming(name, measured, num_prompts=20, num_warmups=4, **given)
    assert warming(name, measured, num_prompts=20, **given) == []


def test_a_warm_up_with_conversations_takes_what_is_not_measured(conversations):
    measured = made("sharegpt", num_prompts=6, dataset_path=conversations)
    warm = warming("sharegpt", measured, num_prompts=6, num_warmups=5, dataset_path=conversations)
    assert len(warm) == 5
    assert len({one.prompt for one in warm}) == 3
    assert not {one.prompt for one in warm} & {one.prompt for one in measured}


def test_a_warm_up_without_a_conversation_of_its_own_is_refused(conversations):
    measured = made("sharegpt", num_prompts=20, dataset_path=conversations)
    with pytest.raises(ArgumentError, match="for --num-warmups 2: all 9 are measured"):
        warming("sharegpt", measured, num_prompts=20, num_warmups=2, dataset_path=conversations)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read: it is not UTF-8"),
        (b"{", "is not JSON"),
        (b'{"conversations": []}', "is no file of conversations"),
        (b"[1]", "is no file of conversations"),
        (b'[{"conversations": [{"value": "a b c"}, {"value": "d"}]}]', "no conversation of a usable length"),
    ],
)
def test_a_file_without_conversations_is_refused(tmp_path, text, message):
    path = tmp_path / "sharegpt.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ArgumentError, match=message):
        made("sharegpt", dataset_path=str(path))


def test_conversations_need_a_file():
    with pytest.raises(ArgumentError, match="name it with --dataset-path"):
        made("sharegpt")
