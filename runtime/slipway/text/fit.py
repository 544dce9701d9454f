"""Fits a chat to a template. What the template takes is found by rendering small chats with it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise, takewhile
from typing import Any, Literal

from slipway.text.messages import (
    REASONING,
    Message,
    arguments_as_object,
    arguments_as_text,
    copied,
    flat,
    parts,
)
from slipway.text.sandbox import OverLimit, TemplateError

Chat = list[dict[str, Any]]
Form = Callable[[Any], Any]
ContentFormat = Literal["auto", "string", "openai"]

_FORMS: dict[ContentFormat, tuple[Form, ...]] = {
    "auto": (flat, parts),
    "string": (flat,),
    "openai": (parts,),
}
_INSTRUCTIONS = ("system", "developer")
_RESULTS = ("tool", "function")
_ROLES = (*_INSTRUCTIONS, "user", "assistant", *_RESULTS)
_WORD, _KEY, _VALUE = "mombasa", "keystone", "valentine"
"""What is looked for in a prompt; no template has these words."""
_DEVELOPER = re.compile(r"['\"]developer['\"]")
_ID = "zanzibar1"
_IDENTITY = {"tool": {"tool_call_id": _ID}, "function": {"tool_call_id": _ID, "name": "lookup"}}
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


class Fit:
    """What one template takes, each answer found once. Threads may share it."""

    def __init__(self, render: Callable[[Chat], str], source: str, content_format: ContentFormat) -> None:
        self._render = render
        self._knows_developer = _DEVELOPER.search(source) is not None
        self._all_forms = _FORMS[content_format]
        self._prompts: dict[str, str] = {}
        self._forms: dict[str, list[Form]] = {}

    def fitted(self, messages: Sequence[Message]) -> Chat:
        """A copy that the template shows all of.

        Roles that it does not know become those that it does, instructions are merged in front where it
        refuses or leaves out any, and contents and arguments have the form that it reads.
        """
        chat = [self._in_known_role(message) for message in copied(messages)]
        if any("tool_calls" in message for message in chat) and self._forms_of("user"):
            chat = self._with_calls(chat)
        return [self._written(message) for message in self._instructed(chat)]

    def others(self, chat: Chat) -> Iterator[Chat]:
        """The same chat in forms that stricter templates take, for one that has refused it.

        Each change is kept for the next try.
        """
        beside_calls = self._takes_text_beside_calls(answered=True)
        for change in (
            _with_object_arguments,
            _with_content_or_reasoning,
            _with_short_ids,
            partial(_with_joined_turns, beside_calls=beside_calls),
            _with_answered_results,
            _with_alternating_turns,
        ):
            changed = change(chat)
            if changed != chat:
                chat = changed
                yield chat

    def _in_known_role(self, message: dict[str, Any]) -> dict[str, Any]:
        role = message.get("role", "")
        if role == "developer" and not self._knows_developer:
            role = "system"
        if not self._forms_of("user"):  # nothing can be learned from this template
            return {**message, "role": role}
        if role == "function" and not self._forms_of(role):
            role = "tool"
        if role == "tool" and not self._forms_of(role):
            role = "user"
        if role not in _ROLES and not self._forms_of(role):
            raise TemplateError(
                f"The model's chat template does not show messages of the role {role!r}. "
                f"Send one of {', '.join(_ROLES)}."
            )
        return {**message, "role": role}

    def _with_calls(self, chat: Chat) -> Chat:
        """With calls, and the text beside them, as the template shows them."""
        if not self._takes_calls:
            return [_with_calls_as_text(message) for message in chat]
        if any(len(message.get("tool_calls", ())) > 1 for message in chat) and self._takes_one_call:
            chat = _with_single_calls(chat)
        answers = (
            index
            for index, message in enumerate(chat)
            if message["role"] == "assistant" and "tool_calls" not in message
        )
        last = max(answers, default=-1)
        changed: Chat = []
        for index, message in enumerate(chat):
            beside = "tool_calls" in message and _says_something(message)
            if beside and not self._takes_text_beside_calls(answered=index < last):
                changed.append({"role": "assistant", "content": message["content"]})
                changed.append({**message, "content": ""})
            else:
                changed.append(message)
        return changed

    def _instructed(self, chat: Chat) -> Chat:
        """With the instructions as sent if the template shows them there, else all of them in front."""
        given = [message for message in chat if message["role"] in _INSTRUCTIONS]
        if not given or not self._forms_of("user") or self._shows_instructions(chat):
            return chat
        text = "\n\n".join(filter(str.strip, (flat(message.get("content")) for message in given)))
        rest = [message for message in chat if message["role"] not in _INSTRUCTIONS]
        first = _kind(rest[0]) if rest else ""
        for role in (given[0]["role"], *_INSTRUCTIONS):
            if self._shows([self._turn(role, _WORD), *self._after(first)]):
                return [{**given[0], "role": role, "content": text}, *rest]
        if first != "user":
            return [{"role": "user", "content": text}, *rest]
        said = flat(rest[0].get("content"))
        return [{**rest[0], "content": f"{text}\n\n{said}" if text else said}, *rest[1:]]

    def _shows_instructions(self, chat: Chat) -> bool:
        roles = [*map(_kind, chat)]
        leading = [*takewhile(lambda role: role in _INSTRUCTIONS, roles)][:3]
        words = [f"{_VALUE}{index}" for index in range(len(leading))]
        opening = [self._turn(role, word) for role, word in zip(leading, words, strict=True)]
        first = next((role for role in roles if role not in _INSTRUCTIONS), "")
        if opening and not self._shows([*opening, *self._after(first)], words):
            return False
        begun, words = opening[:1], [*words[:1], _WORD]
        if not begun and sum(role in _INSTRUCTIONS for role in roles) > 1:  # it may keep the last one alone
            begun, words = [self._turn("system", _VALUE)], [_VALUE, _WORD]
        places = {*zip(["", *roles[:-1]], roles, [*roles[1:], ""], strict=True)}
        return all(
            self._shows([*begun, *self._before(last), self._turn(role, _WORD), *self._after(then)], words)
            for last, role, then in places
            if role in _INSTRUCTIONS and last not in ("", *_INSTRUCTIONS)
        )

    def _written(self, message: dict[str, Any]) -> dict[str, Any]:
        """With its content and the arguments of its calls in the forms that the template reads."""
        role, content = message["role"], message.get("content")
        as_sent = isinstance(content, list) and role not in _RESULTS and self._takes_parts(role)
        form = parts if as_sent else self._form_of(role)
        written = {**message, "content": form(content)}
        if role == "assistant" and "tool_calls" in message:
            written["tool_calls"] = [self._written_call(call) for call in message["tool_calls"]]
        return written

    def _written_call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        return {**call, "function": {**function, "arguments": self._arguments(function.get("arguments"))}}

    def _arguments(self, given: Any) -> Any:
        """An object, or its text where the template joins that. What is no object stays visible in either."""
        found = arguments_as_object(given)
        if self._takes_text and (found is None or not self._takes_object):
            return arguments_as_text(given)
        return {"arguments": given} if found is None else found

    @cached_property
    def _takes_object(self) -> bool:
        prompt = self._prompt([self._turn("user"), self._call({_KEY: _VALUE})])
        return _VALUE in prompt and f"'{_KEY}'" not in prompt

    @cached_property
    def _takes_text(self) -> bool:
        text = json.dumps({_KEY: _VALUE})
        return text in self._prompt([self._turn("user"), self._call(text)])

    @cached_property
    def _takes_calls(self) -> bool:
        """Whether it shows a call; some refuse one without a result."""
        call = [self._turn("user"), self._call(self._arguments({_KEY: _VALUE}))]
        return self._shows(call, [_VALUE]) or self._shows([*call, *self._result()], [_VALUE])

    def _takes_text_beside_calls(self, *, answered: bool) -> bool:
        """Whether it shows the text; some do until an answer without calls has followed."""
        call = {**self._call(self._arguments({})), "content": self._form_of("assistant")(_WORD)}
        after = [self._turn("assistant"), self._turn("user")] if answered else []
        return self._shows([self._turn("user"), call, *self._result(), *after])

    @cached_property
    def _takes_one_call(self) -> bool:
        """Whether it shows a call, and of several in one message refuses or drops one."""
        one, other = (self._call(self._arguments({_KEY: value})) for value in (_VALUE, _WORD))
        both = {**one, "tool_calls": one["tool_calls"] + other["tool_calls"]}
        user = self._turn("user")
        return self._shows([user, one], [_VALUE]) and not self._shows([user, both], [_VALUE, _WORD])

    def _takes_parts(self, role: str) -> bool:
        """Whether it shows each of several parts."""
        words = [_WORD, _VALUE]
        return parts in self._all_forms and self._shows(self._around(role, parts(words)), words)

    def _form_of(self, role: str) -> Form:
        return next(iter(self._forms_of(role)), self._all_forms[0])

    def _forms_of(self, role: str) -> list[Form]:
        """The forms of content that the template shows in a message of this role; none if it drops them."""
        if role not in self._forms:
            shown = [form for form in self._all_forms if self._shows(self._around(role, form(_WORD)))]
            self._forms[role] = shown
        return self._forms[role]

    def _around(self, role: str, content: Any) -> Chat:
        """A chat with a message of this role and content."""
        before = self._before(
            "call" if role in _RESULTS else "" if role in ("user", *_INSTRUCTIONS) else "user"
        )
        after = [self._turn("user")] if role in ("assistant", *_INSTRUCTIONS) else []
        return [*before, {**_IDENTITY.get(role, {}), "role": role, "content": content}, *after]

    def _before(self, role: str) -> Chat:
        """The turns of a chat whose last is of this role."""
        match role:
            case "user":
                return [self._turn("user")]
            case "assistant":
                return [self._turn("user"), self._turn("assistant")]
            case "call":
                return [self._turn("user"), self._call(self._arguments({}))]
            case "tool" | "function":
                return [*self._before("call"), self._turn(role)]
        return []

    def _after(self, role: str) -> Chat:
        """The turns of a chat whose first is of this role, with a user's behind the assistant's."""
        match role:
            case "assistant":
                return [self._turn(role), self._turn("user")]
            case "call":
                return [self._call(self._arguments({})), *self._result()]
        return [self._turn(role)] if role else []

    def _result(self) -> Chat:
        return [self._turn("tool")] if self._forms_of("tool") else []

    def _turn(self, role: str, text: str = "x") -> dict[str, Any]:
        return {**_IDENTITY.get(role, {}), "role": role, "content": self._form_of(role)(text)}

    def _call(self, arguments: Any) -> dict[str, Any]:
        call = {"id": _ID, "type": "function", "function": {"name": "lookup", "arguments": arguments}}
        return {"role": "assistant", "content": self._form_of("assistant")(""), "tool_calls": [call]}

    def _shows(self, chat: Chat, words: Sequence[str] = (_WORD,)) -> bool:
        """Whether the prompt has the words, as text and not within a printed list."""
        prompt = self._prompt(chat)
        return all(
            word in prompt and f"'text': '{word}" not in prompt and f'"text": "{word}' not in prompt
            for word in words
        )

    def _prompt(self, chat: Chat) -> str:
        """Empty if the template refuses the chat. There are few shapes of chats, so all are kept."""
        key = json.dumps(chat)
        if key not in self._prompts:
            try:
                self._prompts[key] = self._render(chat)
            except OverLimit:
                raise
            except TemplateError:
                self._prompts[key] = ""
        return self._prompts[key]


def _with_short_ids(chat: Chat) -> Chat:
    """Ids of calls as Mistral's templates demand them: nine letters and digits, also where none was sent."""

    def short(given: str) -> str:
        return given if _SHORT_ID.fullmatch(given) else hashlib.sha256(given.encode()).hexdigest()[:9]

    changed = []
    unanswered: dict[str, None] = {}
    for index, message in enumerate(chat):
        own = dict(message)
        if "tool_calls" in own:
            own["tool_calls"] = [
                {**call, "id": short(_text_at(call, "id") or f"{index} {place}")}
                if isinstance(call, dict)
                else call
                for place, call in enumerate(own["tool_calls"])
            ]
            ids = [call["id"] for call in own["tool_calls"] if isinstance(call, dict)]
            unanswered = dict.fromkeys(reversed(ids))
        elif (given := _text_at(own, "tool_call_id")) is not None:
            own["tool_call_id"] = short(given)
            unanswered.pop(own["tool_call_id"], None)
        elif own["role"] in _RESULTS and unanswered:
            own["tool_call_id"], _ = unanswered.popitem()
        changed.append(own)
    return changed


def _text_at(given: Any, name: str) -> str | None:
    """An id; clients send anything."""
    value = given.get(name) if isinstance(given, dict) else None
    return value if isinstance(value, str) else None


def _kind(message: Message) -> str:
    """The role, or "call"."""
    return "call" if "tool_calls" in message else message["role"]


def _says_something(message: Message) -> bool:
    said = parts(message.get("content"))
    return any(part.get("type") != "text" or part["text"].strip() for part in said)


def _with_calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    """Calls as JSON text behind the content."""
    if "tool_calls" not in message:
        return message
    said = [flat(message.get("content")), *map(_call_as_text, message["tool_calls"])]
    own = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**own, "content": "\n".join(filter(str.strip, said))}


def _call_as_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict):
        given = function.get("arguments")
        found = arguments_as_object(given)
        call = {"name": function.get("name"), "arguments": given if found is None else found}
    return json.dumps(call, ensure_ascii=False)


def _with_single_calls(chat: Chat) -> Chat:
    """One call a message, each followed by its result if that comes before the next calls."""
    starts = [index for index, message in enumerate(chat) if "tool_calls" in message]
    return [one for start, end in pairwise([0, *starts, len(chat)]) for one in _single_calls(chat[start:end])]


def _single_calls(turn: Chat) -> Chat:
    """The same for the messages up to the next calls.

    A call takes the first result with its id that is left, else the first whose id is none of the calls'.
    """
    calls = turn[0].get("tool_calls", ()) if turn else ()
    if len(calls) < 2:
        return turn
    ids = [_text_at(call, "id") for call in calls]
    results: dict[str | None, Chat] = {own: [] for own in (*ids, None)}
    for message in reversed(turn):
        if message["role"] in _RESULTS:
            results.get(_text_at(message, "tool_call_id"), results[None]).append(message)
    changed: Chat = []
    for call, own in zip(calls, ids, strict=True):
        said = {"role": "assistant", "content": ""} if changed else turn[0]
        changed.append({**said, "tool_calls": [call]})
        if left := results[own] or results[None]:
            changed.append(left.pop())
    placed = {*map(id, changed)}
    return changed + [message for message in turn[1:] if id(message) not in placed]


def _with_joined_turns(chat: Chat, *, beside_calls: bool) -> Chat:
    """One message for each turn of the user and of the assistant, as templates demand that alternate them."""
    changed: Chat = []
    for message in chat:
        last = changed[-1] if changed else {}
        joinable = message["role"] in ("user", "assistant") and last.get("role") == message["role"]
        apart = "tool_calls" in message and not beside_calls and _says_something(last)
        if not joinable or apart or "tool_calls" in last:
            changed.append(message)
        elif isinstance(last["content"], str) and isinstance(message["content"], str):
            both = "\n\n".join(filter(None, (last["content"], message["content"])))
            changed[-1] = {**last, **message, "content": both}
        else:
            changed[-1] = {**last, **message, "content": parts(last["content"]) + parts(message["content"])}
    return changed


def _with_answered_results(chat: Chat) -> Chat:
    """An empty answer where the user goes on after a tool, as Mistral's templates demand one."""
    changed: Chat = []
    for message in chat:
        if changed and changed[-1]["role"] in _RESULTS and message["role"] == "user":
            changed.append({"role": "assistant", "content": type(message["content"])()})
        changed.append(message)
    return changed


def _with_alternating_turns(chat: Chat) -> Chat:
    """Empty messages where a side speaks twice, with calls and results between: some of Mistral's templates
    do not count these."""
    changed: Chat = []
    last = None
    for message in chat:
        role = message["role"]
        if role in ("user", "assistant") and "tool_calls" not in message:
            if role == last == "assistant" and not message["content"]:
                continue
            if role == last:
                other = "assistant" if role == "user" else "user"
                changed.append({"role": other, "content": type(message["content"])()})
            last = role
        changed.append(message)
    return changed


def _with_content_or_reasoning(chat: Chat) -> Chat:
    """Content alone beside calls, as gpt-oss's template demands it."""
    return [
        {name: value for name, value in message.items() if name not in REASONING}
        if message.get("tool_calls") and message["content"]
        else message
        for message in chat
    ]


def _with_object_arguments(chat: Chat) -> Chat:
    """Objects for arguments that are no JSON, as Mistral's library demands them."""

    def strict(call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        given = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(given, str) or arguments_as_object(given) is not None:
            return call
        return {**call, "function": {**call["function"], "arguments": {"arguments": given}}}

    return [
        {**message, "tool_calls": [*map(strict, message["tool_calls"])]}
        if "tool_calls" in message
        else message
        for message in chat
    ]
