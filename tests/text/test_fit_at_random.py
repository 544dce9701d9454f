"""Chats made at random: the prompt has every word once and in its place, or the chat is refused."""

from __future__ import annotations

import json
import re
from itertools import count
from random import Random
from typing import Any

import pytest

import chat_templates
from slipway.text.template import ChatTemplate, TemplateError

Chat = list[dict[str, Any]]
INSTRUCTIONS = ("system", "developer")
CHATS = 300


def chat_at_random(random: Random) -> Chat:
    """Unique words in messages of all kinds: several calls at once, with ids or without, text beside them,
    results that are late, missing or nobody's."""
    words = (f"word{number:03}" for number in count())
    names = (f"name{number:03}" for number in count())
    ids = random.choice(["unique", "each turn's", "all the same", "missing"])

    def said(role: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": next(words)} for _ in range(2)]
        return {"role": role, "content": random.choice([next(words), parts])}

    def with_calls() -> Chat:
        calls, results = [], []
        for index in range(random.choice([1, 1, 2, 3])):
            name = {"unique": next(names), "each turn's": str(index), "all the same": "a"}.get(ids)
            own, answered = ({}, {}) if name is None else ({"id": name}, {"tool_call_id": name})
            arguments = json.dumps({"city": next(words)})
            calls.append({**own, "type": "function", "function": {"name": "look", "arguments": arguments}})
            results.append({**answered, **said("tool")})
        beside = random.choice([said("assistant"), {"role": "assistant", "content": None}])
        return [{**beside, "tool_calls": calls}, *random.sample(results, random.randint(0, len(results)))]

    chat = [said(random.choice(INSTRUCTIONS)) for _ in range(random.choice([0, 1, 1, 2]))]
    for _ in range(random.randint(1, 3)):
        chat.append(said("user"))
        for _ in range(random.choice([0, 1, 1, 2])):
            chat += with_calls()
        if random.random() < 0.7:
            chat.append(said("assistant"))
    if random.random() < 0.5:  # somewhere, as what interrupts a turn or has no call
        chat.insert(
            random.randint(0, len(chat)), said(random.choice(["user", "assistant", "system", "tool"]))
        )
    return chat


def words_of(*messages: dict[str, Any]) -> list[str]:
    """In their order, the content in front of the calls."""
    said = [[message.get("content"), message.get("tool_calls")] for message in messages]
    return re.findall(r"word\d+", json.dumps(said))


def check(chat: Chat, shown: str) -> None:
    """Instructions may be anywhere, and a result nearer to its call."""
    place = {word: shown.index(word) for word in re.findall(r"word\d+", shown)}
    assert sorted(re.findall(r"word\d+", shown)) == sorted(words_of(*chat))
    told = [message for message in chat if message["role"] not in INSTRUCTIONS]
    fixed = words_of(*(message for message in told if message["role"] != "tool"))
    assert fixed == sorted(fixed, key=place.__getitem__)
    for index, message in enumerate(told):
        if message["role"] != "tool":
            continue
        asked = max((at for at in range(index) if "tool_calls" in told[at]), default=index)
        first_call = {**told[asked], "tool_calls": told[asked].get("tool_calls", ())[:1]}
        before = words_of(*told[:asked], *([first_call] if asked < index else []))
        after = words_of(*(one for one in told[index + 1 :] if one["role"] != "tool"))
        inside = [place[word] for word in words_of(message)]
        assert inside == sorted(inside)
        assert all(place[word] < inside[0] for word in before)
        assert all(place[word] > inside[-1] for word in after)


@pytest.mark.parametrize("family", chat_templates.ALL)
def test_every_word_is_shown_once_and_in_its_place_or_the_chat_is_refused(family: str) -> None:
    template = ChatTemplate(chat_templates.ALL[family], bos_token="<s>", eos_token="</s>")
    refused = 0
    for seed in range(CHATS):
        chat = chat_at_random(Random(seed))
        try:
            shown = template.render(chat)
        except TemplateError:
            refused += 1
            continue
        check(chat, shown)
    assert refused < CHATS // 2
