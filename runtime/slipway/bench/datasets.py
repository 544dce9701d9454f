"""The prompts of a measurement: random tokens, conversations, verse, shared prefixes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.args import ArgumentError
from slipway.bench.words import SONNETS

Count = Callable[[str], int]
"""Tokens of a text."""

TASK = "Continue these lines of verse:\n"
LEAST = 4
MOST_PROMPT, MOST_TOGETHER = 1024, 2048
"""Of a conversation that is taken, in tokens: what everyone who measures with such files leaves out."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request to send: a text or token ids, and how many tokens to ask for."""

    prompt: str | list[int]
    output_len: int


@dataclass(frozen=True, slots=True)
class Alphabet:
    """What random prompts are made of: token ids, or words where the server takes text only."""

    symbols: Sequence[int] | Sequence[str]

    def draw(self, length: int, rng: random.Random) -> list[Any]:
        return rng.choices(self.symbols, k=length)

    def prompt(self, drawn: list[Any]) -> str | list[int]:
        return " ".join(drawn) if isinstance(self.symbols[0], str) else drawn


TOKENS = Alphabet(range(100, 1000))
"""Ids that usual vocabularies have, beyond the special tokens that most begin with."""


def samples(
    arguments: Mapping[str, Any], rng: random.Random, alphabet: Alphabet, count: Count
) -> list[Sample]:
    """As many as `--num-prompts` says. Raises ArgumentError where the dataset cannot be had or used."""
    match arguments["dataset_name"]:
        case "random":
            made = _random(arguments, rng, alphabet)
        case "prefix-repetition":
            made = _shared_prefixes(arguments, rng, alphabet)
        case "sonnet":
            made = _verse(arguments, rng, count)
        case _:
            made = _conversations(arguments, rng, count)
    return list(made)


def warm_ups(
    arguments: Mapping[str, Any], measured: Collection[Sample], alphabet: Alphabet, count: Count
) -> list[Sample]:
    """As many as `--num-warmups` says, drawn apart from those that are measured: the prefix cache must not
    know these, and a seed repeats them with any warm-up.

    Raises ArgumentError where every usable conversation is measured.
    """
    wanted = arguments["num_warmups"]
    if not wanted:
        return []
    num_prefixes = min(arguments["prefix_repetition_num_prefixes"], wanted)
    changed = {"num_prompts": wanted, "prefix_repetition_num_prefixes": num_prefixes}
    rng = random.Random(f"warm-up {arguments['seed']}")
    if arguments["dataset_name"] != "sharegpt":
        return samples({**arguments, **changed}, rng, alphabet, count)
    known = {one.prompt for one in measured if isinstance(one.prompt, str)}
    return list(_conversations({**arguments, **changed}, rng, count, known))


def _random(arguments: Mapping[str, Any], rng: random.Random, alphabet: Alphabet) -> Iterator[Sample]:
    prefix = alphabet.draw(arguments["random_prefix_len"], rng)
    input_len = arguments["random_input_len"] or arguments["input_len"] or 1024
    output_len = arguments["random_output_len"] or arguments["output_len"] or 128
    for _ in range(arguments["num_prompts"]):
        length = _about(input_len, arguments["random_range_ratio"], rng)
        prompt = alphabet.prompt([*prefix, *alphabet.draw(length, rng)])
        yield Sample(prompt, _about(output_len, arguments["random_range_ratio"], rng))


def _about(length: int, ratio: float, rng: random.Random) -> int:
    """Drawn evenly from length × (1 ± ratio), and 1 at least."""
    return max(1, rng.randint(math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))))


def _shared_prefixes(
    arguments: Mapping[str, Any], rng: random.Random, alphabet: Alphabet
) -> Iterator[Sample]:
    length, own = arguments["prefix_repetition_prefix_len"], arguments["prefix_repetition_suffix_len"]
    num_prompts, num_prefixes = arguments["num_prompts"], arguments["prefix_repetition_num_prefixes"]
    if num_prefixes > num_prompts:
        raise ArgumentError(
            f"--prefix-repetition-num-prefixes {num_prefixes} is more than --num-prompts {num_prompts}: "
            "some prefixes would have no prompt. Lower the first or raise the second."
        )
    prefixes = [alphabet.draw(length, rng) for _ in range(num_prefixes)]
    turns = [number % num_prefixes for number in range(num_prompts)]
    rng.shuffle(turns)
    output_len = arguments["prefix_repetition_output_len"] or arguments["output_len"] or 128
    for turn in turns:
        yield Sample(alphabet.prompt([*prefixes[turn], *alphabet.draw(own, rng)]), output_len)


def _verse(arguments: Mapping[str, Any], rng: random.Random, count: Count) -> Iterator[Sample]:
    path = arguments["dataset_path"]
    lines = _read(path).splitlines() if path else SONNETS
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        raise ArgumentError(f"--dataset-path {path} has no lines.")
    per_line = count("\n".join(lines)) / len(lines)
    input_len = arguments["sonnet_input_len"] or arguments["input_len"] or 550
    output_len = arguments["sonnet_output_len"] or arguments["output_len"] or 150
    num_lines = round((input_len - count(TASK)) / per_line)
    num_shared = round(arguments["sonnet_prefix_len"] / per_line)
    if num_lines < max(1, num_shared):
        raise ArgumentError(
            f"A prompt of {input_len} tokens has no room for the task and for the lines of "
            f"--sonnet-prefix-len {arguments['sonnet_prefix_len']}. Raise --sonnet-input-len or lower the "
            "prefix."
        )
    shared = rng.choices(lines, k=num_shared)
    for _ in range(arguments["num_prompts"]):
        own = rng.choices(lines, k=num_lines - num_shared)
        yield Sample(TASK + "\n".join([*shared, *own]), output_len)


def _conversations(
    arguments: Mapping[str, Any], rng: random.Random, count: Count, known: Collection[str] = ()
) -> Iterator[Sample]:
    """Those whose question is not known."""
    path, wanted = arguments["dataset_path"], arguments["num_prompts"]
    if not path:
        raise ArgumentError("--dataset-name sharegpt needs a file: name it with --dataset-path.")
    pairs = [pair for pair in _first_turns(path) if pair[0] not in known]
    if not arguments["disable_shuffle"]:
        rng.shuffle(pairs)
    fixed = arguments["sharegpt_output_len"] or arguments["output_len"]
    taken: list[Sample] = []
    for question, answer in pairs:
        if len(taken) == wanted:
            break
        asked = count(question)
        output_len = fixed or count(answer)
        usable = LEAST <= asked <= MOST_PROMPT and (fixed or output_len >= LEAST)
        if usable and asked + output_len <= MOST_TOGETHER:
            taken.append(Sample(question, output_len))
    if not taken and known:
        raise ArgumentError(
            f"{path} has no usable conversation for --num-warmups {wanted}: all {len(known)} are measured. "
            "Lower --num-prompts, name a larger file or warm up with none."
        )
    if not taken:
        raise ArgumentError(
            f"{path} has no conversation of a usable length: a prompt of {LEAST} to {MOST_PROMPT} tokens, "
            f"with its answer at most {MOST_TOGETHER}."
        )
    for number in range(wanted):  # fewer than wanted are asked again
        yield taken[number % len(taken)]


def _first_turns(path: str) -> Iterator[tuple[str, str]]:
    """The first two turns of each conversation that has two."""
    text = _read(path)
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"--dataset-path {path} is not JSON: {error}.") from None
    found = False
    for entry in loaded if isinstance(loaded, list) else ():
        match entry:
            case {"conversations": [{"value": str(question)}, {"value": str(answer)}, *_]}:
                found = True
                yield question, answer
    if not found:
        raise ArgumentError(
            f"--dataset-path {path} is no file of conversations: it must hold a JSON list of objects such as "
            '{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}.'
        )


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ArgumentError(f"--dataset-path {path} cannot be read: {said}. Check the path.") from None
