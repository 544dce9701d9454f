"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from slipway.api.errors import ApiError
from slipway.api.protocol.base import Body, Count, Int, Known, Name, Text, Unbuilt, or_say
from slipway.api.protocol.common import Generation

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOLS = 512

NO_THINKING = {"enable_thinking": False, "thinking": False, "reasoning": False, "thinking_budget": 0}
"""What templates of one family or another read to write a prompt without thinking."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Json = dict[str, Any]


class Message(Body):
    """One turn. Fields that templates may read, such as `reasoning_content`, pass through."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Role
    content: Annotated[
        Text | Annotated[list[Json], Field(max_length=MAX_PARTS, fail_fast=True)] | None,
        or_say(f"content should be a string or a list of at most {MAX_PARTS} parts."),
    ] = None
    name: Name | None = None
    tool_calls: Annotated[list[Json], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_call_id: Annotated[str, StringConstraints(max_length=256)] | None = None


class Function(Body):
    model_config = ConfigDict(strict=True, extra="allow")

    name: Name
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Body):
    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Body):
    name: Name


class NamedTool(Body):
    type: Literal["function"] = "function"
    function: NamedFunction


class TemplateFields(Body):
    """What the chat template is told beside the messages."""

    tools: (
        Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), Known("tools", ("function",))]
        | None
    ) = None
    documents: Annotated[list[Json], Field(max_length=1024, fail_fast=True)] | None = None
    chat_template: Text | None = None
    chat_template_kwargs: Annotated[Json, Field(max_length=256)] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def variables(self, defaults: Json) -> Json:
        """The template's, as the request says them or means them, else the server's `defaults`; it sees those
        that it reads."""
        effort = self.reasoning_effort or defaults.get("reasoning_effort")
        meant = {"reasoning_effort": effort} if effort else {}
        said = (NO_THINKING if effort == "none" else {}) | (self.chat_template_kwargs or {})
        return defaults | meant | said

    @property
    def prompt_ends_open(self) -> bool:
        """The template writes the start of the answer that the model is to fill."""
        return self.add_generation_prompt is not False and not self.continue_final_message

    def check_end(self) -> None:
        """Raises ApiError where the prompt would end in two ways."""
        if self.continue_final_message and self.add_generation_prompt:
            message = (
                "continue_final_message and add_generation_prompt are both true: the prompt ends "
                "either inside the last message or with the start of a new one. Set one of them."
            )
            raise ApiError(message, param="add_generation_prompt", code="invalid_value")


class ChatRequest(Generation, TemplateFields):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=1 << 20)] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | None,
        or_say(
            'tool_choice should be "none", "auto", "required" or '
            '{"type": "function", "function": {"name": …}}.'
        ),
    ] = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Count | None = None
    functions: Annotated[Any, Unbuilt("the old functions field (use tools)")] = None
    function_call: Annotated[
        Any, Unbuilt("the old function_call field (use tool_choice)", nothing=(None, "none"))
    ] = None
    modalities: Annotated[Any, Unbuilt("output other than text", nothing=(None, ["text"]))] = None
    audio: Annotated[Any, Unbuilt("audio")] = None
    prediction: Annotated[Any, Unbuilt("a predicted output")] = None
    web_search_options: Annotated[Any, Unbuilt("web search")] = None
    mm_processor_kwargs: Annotated[Any, Unbuilt("multimodal input")] = None

    @property
    def wanted_tokens(self) -> int | None:
        """`max_completion_tokens`, or its older name."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def forces_tools(self) -> bool:
        """The output is a call, and no content."""
        return bool(self.tools) and self.tool_choice not in (None, "none", "auto")

    @property
    def is_held(self) -> bool:
        return self.forces_tools or super().is_held

    @property
    def continued(self) -> str | None:
        """What the assistant has said of the message that the output goes on with; None where one begins."""
        if not self.continue_final_message:
            return None
        said = self.messages[-1].content
        return said if isinstance(said, str) else "".join(part.get("text") or "" for part in said or ())

    @property
    def is_quick(self) -> bool:
        return self.chat_template is None and super().is_quick

    @property
    def num_logprobs(self) -> int:
        """Alternatives to report with each token; -1 reports nothing."""
        return (self.top_logprobs or 0) if self.logprobs else -1

    def check(self) -> None:
        """What one field cannot know of another. Raises ApiError."""
        self.check_shared()
        if self.wanted_tokens == 0:
            param = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            message = f"{param} is 0; a completion has at least 1 token."
            raise ApiError(message, param=param, code="invalid_value")
        if self.top_logprobs and not self.logprobs:
            message = f"top_logprobs is {self.top_logprobs} without logprobs: true, which it needs."
            raise ApiError(message, param="top_logprobs", code="invalid_value")
        self.check_end()
