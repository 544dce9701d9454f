"""Chat templates: Jinja from a model or from the operator, rendered in a sandbox with limits."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jinja2
from jinja2 import meta

from slipway.text.fit import Chat, ContentFormat, Fit
from slipway.text.messages import Message, plain
from slipway.text.sandbox import Limits, OverLimit, Sandbox, TemplateError

__all__ = ["ChatTemplate", "ChatWriter", "TemplateError", "WrittenChat", "load_chat_template"]

_NO_TEMPLATE = (
    "The model has no chat template, so a chat cannot be turned into a prompt. "
    "Give one with --chat-template, as a file or inline, or use /v1/completions."
)
_OWN_FIELD = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"}
)
_OF_THE_MODEL = frozenset(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_CONTINUE = "<<the message goes on here>> "
"""Ends in a space, which tells afterwards whether the template trims a message's end."""


class WrittenChat(NamedTuple):
    """The prompt of a chat."""

    text: str
    token_ids: list[int] | None = None
    """None: those of the text."""


class ChatWriter(Protocol):
    """What makes a prompt of a chat."""

    @property
    def source(self) -> str | None:
        """The template's text, where it is one."""

    def write(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> WrittenChat:
        """Raises TemplateError where the chat cannot be written."""


class ChatTemplate:
    """A compiled template. Threads may share it; each render has its own clock and size."""

    def __init__(
        self,
        source: str | None,
        *,
        content_format: ContentFormat = "auto",
        limits: Limits | None = None,
        **special_tokens: str,
    ) -> None:
        """`special_tokens` are variables of the template: give `**tokenizer.special_tokens`.

        content_format  how the template sees a message's content: as one text, or as a list of typed parts;
                        auto finds out, for each role

        Raises TemplateError where there is no template (None) or it is not valid Jinja.
        """
        if source is None:
            raise TemplateError(_NO_TEMPLATE)
        self.source = source
        self._special_tokens = special_tokens
        self._sandbox = Sandbox(limits or Limits())
        try:
            self._template = self._sandbox.from_string(source)
            parsed = self._sandbox.parse(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"The chat template is not valid Jinja: line {error.lineno}: {error.message}."
            ) from error
        except RecursionError as error:
            raise TemplateError("The chat template is nested too deeply to be compiled.") from error
        self._read = frozenset(meta.find_undeclared_variables(parsed))
        self._of_the_server = _OF_THE_MODEL | special_tokens.keys() | self._sandbox.globals.keys()
        self._fit = Fit(self._probed, source, content_format)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a chat. `kwargs` are more variables of the template, which sees those that it reads.

        Raises TemplateError with the template's own message where it refuses the chat.
        """
        if not messages:
            raise TemplateError("The chat has no messages. Send at least one.")
        if continue_final_message and add_generation_prompt:
            raise TemplateError(
                "continue_final_message and add_generation_prompt contradict each other: the first goes on "
                "with the last message, the second begins a new one. Set one of them to false."
            )
        own = self._variables(kwargs or {})
        chat = self._fit.fitted(messages)
        ending = _mark_ending(chat[-1]) if continue_final_message else None
        variables = {
            **self._special_tokens,
            **own,
            "tools": plain(tools) if tools else None,
            "documents": plain(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(chat, variables)
        return text if ending is None else _cut_at_mark(text, ending)

    def _run(self, chat: Chat, variables: Mapping[str, Any]) -> str:
        """The prompt of the chat as it is, else of the first form of it that the template takes."""
        try:
            return self._sandbox.run(self._template, {**variables, "messages": chat})
        except OverLimit:
            raise
        except TemplateError:
            for other in self._fit.others(chat):
                with contextlib.suppress(TemplateError):
                    return self._sandbox.run(self._template, {**variables, "messages": other})
            raise

    def _probed(self, chat: Chat) -> str:
        """The prompt of a small chat, for `Fit`."""
        variables = {"tools": None, "documents": None, "add_generation_prompt": True}
        return self._sandbox.run(self._template, {**self._special_tokens, **variables, "messages": chat})

    def write(self, messages: Sequence[Message], **how: Any) -> WrittenChat:
        """As `render`."""
        return WrittenChat(self.render(messages, **how))

    def check_variables(self, kwargs: Mapping[str, Any]) -> None:
        """Raises TemplateError, a ValueError, where these may not be variables of a chat."""
        self._variables(kwargs)

    def _variables(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a request that the template reads. Raises TemplateError for what is not the request's."""
        for names, whose in (
            (_OWN_FIELD, "the request has its own field for it"),
            (self._of_the_server, "it belongs to the model and the server"),
        ):
            if reserved := names & kwargs.keys():
                raise TemplateError(f"chat_template_kwargs may not hold {min(reserved)}: {whose}.")
        return {name: plain(value) for name, value in kwargs.items() if name in self._read}


def _mark_ending(message: dict[str, Any]) -> str:
    """Put a mark behind the text of the last message; returns that text."""
    if "tool_calls" in message:
        raise TemplateError(
            "continue_final_message is set, but the last message ends in calls, which no text can follow. "
            "Set continue_final_message to false."
        )
    content = message.get("content")
    if isinstance(content, str) and content:
        message["content"] = content + _CONTINUE
        return content
    for part in reversed(content if isinstance(content, list) else []):
        text = part.get("text")
        if isinstance(text, str) and text:
            part["text"] = text + _CONTINUE
            return text
    raise TemplateError(
        "continue_final_message is set, but the last message has no text to go on with. "
        "Give it content, or set continue_final_message to false."
    )


def _cut_at_mark(text: str, ending: str) -> str:
    head, mark, tail = text.rpartition(_CONTINUE.rstrip())
    if not tail.startswith(" "):
        head = head.rstrip()
    if not mark or ending.strip() not in head:
        raise TemplateError(
            "continue_final_message is set, but the chat template leaves out or changes the last message. "
            "Set continue_final_message to false, or use another template."
        )
    return head


def load_chat_template(argument: str) -> str:
    r"""The template that `--chat-template` means: of a file where one exists, else the argument itself.

    In an inline template, which is one line, `\n` stands for a line break.
    """
    path = Path(argument).expanduser()
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if not _is_inline(argument):
            raise ValueError(
                f"--chat-template {argument} cannot be read: {error}. "
                "Give a UTF-8 text file that this user may read."
            ) from error
    if not _is_inline(argument):
        raise ValueError(
            f"--chat-template {argument} is neither an existing file nor a template: it has no braces. "
            "Check the path, or give the template itself, for example "
            "'{% for message in messages %}{{ message.content }}{% endfor %}'."
        )
    return argument.replace(r"\n", "\n")


def _is_inline(argument: str) -> bool:
    return "{" in argument and "}" in argument
