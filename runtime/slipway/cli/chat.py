"""`slipway chat`: a conversation with a running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Mapping

from slipway.cli.conversation import hold, say
from slipway.cli.remote import Server, ServerError, add_server_arguments, connect, sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server, the system message and the one-question form."""
    add_server_arguments(parser)
    parser.add_argument("--system-prompt", metavar="TEXT", help="message before the conversation")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer, end")


def run(arguments: argparse.Namespace) -> int:
    """Status 1 where the server cannot be used."""
    try:
        server, model = connect(arguments)
    except ServerError as error:
        print(f"slipway chat: {error}", file=sys.stderr)
        return 1
    conversation = Conversation(server, model, arguments.system_prompt, sampling(arguments))
    if arguments.quick is not None:
        return say("chat", conversation.answer, arguments.quick)
    return hold("chat", conversation.answer)


class Conversation:
    """What was said so far. An answer that broke off stays as far as it came; a question without any
    answer is forgotten."""

    def __init__(
        self, server: Server, model: str, system_prompt: str | None, sampling: Mapping[str, float]
    ) -> None:
        self._server = server
        self._asked_always = {"model": model, **sampling}
        self.messages: list[dict[str, str]] = []
        if system_prompt:
            self.messages.append({"role": "system", "content": system_prompt})

    def answer(self, line: str) -> Generator[str, None, None]:
        """The pieces of the answer. Raises ServerError."""
        asked = [*self.messages, {"role": "user", "content": line}]
        said = ""
        try:
            body = {**self._asked_always, "messages": asked}
            for chunk in self._server.stream("/chat/completions", body):
                for choice in chunk.get("choices") or ():
                    piece = (choice.get("delta") or {}).get("content") or ""
                    said += piece
                    yield piece
        finally:
            if said:
                self.messages = [*asked, {"role": "assistant", "content": said}]
