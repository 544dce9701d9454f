"""What a parser tells of an output, as the message of a chat answer, whole or in deltas."""

from __future__ import annotations

import secrets
import string

from slipway.api.protocol.answers import ChatDelta, ChatMessage, FunctionCall, ToolCall, ToolCallDelta
from slipway.text.parse.events import Arguments, CallBegin, Content, Event, Reasoning
from slipway.text.parse.output import Parser, parsed

_LETTERS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """Nine letters and digits, as Mistral's templates want them; others take any."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


class Message:
    """One output's message. A stream asks for `deltas` and `end`, a whole answer for `whole`."""

    def __init__(self, parser: Parser, *, reasoning: bool, named: bool) -> None:
        """reasoning  whether the client wants it
        named      the request names the function to call, which is no reason for an output to end
        """
        self._parser = parser
        self._reasoning = reasoning
        self._named = named
        self._num_calls = 0
        self._broken_off = False
        """What a stream has told of the last call is not all of it."""

    def deltas(self, text: str, *, last: bool) -> list[ChatDelta]:
        """What more text adds to the message; `last` where the output is over with it."""
        events = self._parser.push(text)
        if last:
            events += self._parser.finish()
            self._broken_off = self._parser.broken_off is not None
        return [delta for event in events if (delta := self._delta(event))]

    def whole(self, text: str, *, role: str, echo: str) -> ChatMessage:
        """The message of a whole output; its content follows on `echo`."""
        content, reasoning = "", ""
        calls: list[ToolCall] = []
        for event in parsed(self._parser, text):
            match event:
                case Content():
                    content += event.text
                case Reasoning():
                    reasoning += event.text if self._reasoning else ""
                case CallBegin():
                    function = FunctionCall(name=event.name, arguments="")
                    calls.append(ToolCall(id=event.id or new_call_id(), function=function))
                case Arguments():
                    calls[-1].function.arguments += event.text
        self._num_calls = len(calls)
        return ChatMessage(
            role=role,
            content=echo + content or (None if calls or reasoning else ""),
            tool_calls=calls or None,
            reasoning_content=reasoning or None,
            reasoning=reasoning or None,
        )

    def finish_reason(self, reason: str | None) -> str | None:
        """Why the output ended, as clients are told."""
        calls = self._num_calls and not self._named and not self._broken_off
        return "tool_calls" if reason == "stop" and calls else reason

    def _delta(self, event: Event) -> ChatDelta | None:
        match event:
            case Content(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                return ChatDelta(reasoning_content=text, reasoning=text) if self._reasoning else None
            case CallBegin(name, call_id):
                self._num_calls += 1
                function = FunctionCall(name=name, arguments="")
                call = ToolCallDelta(
                    index=self._num_calls - 1, id=call_id or new_call_id(), type="function", function=function
                )
                return ChatDelta(tool_calls=[call])
            case Arguments(text):
                more = ToolCallDelta(index=self._num_calls - 1, function=FunctionCall(arguments=text))
                return ChatDelta(tool_calls=[more])
