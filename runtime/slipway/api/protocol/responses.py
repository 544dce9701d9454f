"""`POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired, get_args

from pydantic import ConfigDict, Field, StringConstraints
from typing_extensions import TypedDict

from slipway.api.protocol.base import Body, Int, Kinded, Known, Name, OrText, Text, Unbuilt, or_say
from slipway.api.protocol.chat import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Json
from slipway.api.protocol.common import OneOutput

Id = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Label = Annotated[str, StringConstraints(max_length=1024)]

LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    # Reasoning is told in the clear; the rest is about tools that servers run, which are not there.
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class InputPart(TypedDict):
    """A dictionary, as there may be many; that the field of its type is there is seen when it is read."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "text", "refusal"]
    text: NotRequired[Text | None]
    refusal: NotRequired[Text | None]


def _as_part(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _as_message(text: str) -> Json:
    return {"role": "user", "content": text}


InputParts = Annotated[list[InputPart], Field(max_length=MAX_PARTS, fail_fast=True), OrText(_as_part)]


class InputItem(Kinded):
    """A member of the conversation; it is a message where it does not say what it is."""

    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "message": ("role", "content"),
        "function_call": ("call_id", "name", "arguments"),
        "function_call_output": ("call_id", "output"),
        "custom_tool_call": ("call_id", "name", "input"),
        "custom_tool_call_output": ("call_id", "output"),
        "local_shell_call": ("call_id", "action"),
        "local_shell_call_output": ("output",),
    }

    type: Literal[
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
    ] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: InputParts | None = None
    call_id: Id | None = None
    name: Name | None = None
    arguments: Text | None = None
    input: Text | None = None
    action: Json | None = None
    id: Id | None = None
    output: InputParts | None = None
    summary: Annotated[list[InputPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    """Of reasoning; read where there is no content."""

    @property
    def is_of_assistant(self) -> bool:
        return self.type == "reasoning" or self.type.endswith("_call") or self.role == "assistant"


# Agents keep items of their own in a history, as Codex does its `ghost_snapshot`. A reference is a message.
ITEMS = Known("input items", (*get_args(InputItem.model_fields["type"].annotation), "item_reference"))


class ToolParam(Body):
    """A function, or a custom tool: a function that takes one text."""

    type: Literal["function", "custom"]
    name: Name
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None
    format: Json | None = None
    """Of a custom tool's text. The model reads it, nothing holds the output to it."""

    @property
    def shown(self) -> Json:
        """In the answer."""
        other = ("parameters", "strict") if self.type == "custom" else ("format",)
        return {name: value for name, value in self if name not in other}


class NamedToolParam(Body):
    type: Literal["function", "custom"]
    name: Name


class TextFormat(Kinded):
    """The form of the output; `name`, `description` and `strict` change nothing, as in chat."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), populate_by_name=True)
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"json_schema": ("name", "schema_")}

    type: Literal["text", "json_object", "json_schema"]
    name: Id | None = None
    description: Text | None = None
    schema_: Json | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Annotated[Any, Unbuilt("verbosity of the output", nothing=(None, "medium"))] = None


_SUMMARY = Unbuilt(
    "a summary of the reasoning, which is told in full", nothing=(None, "auto", "concise", "detailed")
)


class ReasoningOptions(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Annotated[Any, _SUMMARY] = None
    generate_summary: Annotated[Any, _SUMMARY] = None
    context: Annotated[Any, Unbuilt("choosing which reasoning is kept", nothing=(None, "auto"))] = None
    mode: Annotated[Any, Unbuilt("a mode of reasoning", nothing=(None, "standard"))] = None


class ResponsesRequest(OneOutput):
    input: Annotated[
        list[InputItem],
        Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
        ITEMS,
        OrText(_as_message),
    ]
    instructions: Text | None = None
    max_output_tokens: Annotated[Int, Field(ge=1, le=1 << 30)] | None = None
    tools: (
        Annotated[
            list[ToolParam],
            Field(max_length=MAX_TOOLS, fail_fast=True),
            Known("tools", ("function", "custom")),
        ]
        | None
    ) = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedToolParam | None,
        or_say('tool_choice should be "none", "auto", "required" or {"type": "function", "name": …}.'),
    ] = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[Int, Field(ge=1, le=1 << 30)] | None = None
    """Of tools that servers run, of which there are none."""
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Includable], Field(max_length=64, fail_fast=True)] | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=1 << 20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    previous_response_id: Id | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(max_length=64)],
                Annotated[str, StringConstraints(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = None
    prompt_cache_key: Label | None = None
    safety_identifier: Label | None = None
    service_tier: Label | None = None
    """There is one; the answer says so."""
    chat_template_kwargs: Annotated[Json, Field(max_length=256)] | None = None

    max_tokens: Annotated[Any, Unbuilt("another endpoint's name (use max_output_tokens)")] = None
    response_format: Annotated[Any, Unbuilt("another endpoint's name (use text.format)")] = None
    stream_options: Annotated[
        Any, Unbuilt("obfuscation of a stream", nothing=(None, {"include_obfuscation": False}))
    ] = None
    background: Annotated[Any, Unbuilt("an answer in the background")] = None
    conversation: Annotated[Any, Unbuilt("a stored conversation (use previous_response_id)")] = None
    prompt: Annotated[Any, Unbuilt("a stored prompt")] = None
    context_management: Annotated[Any, Unbuilt("compaction of the context")] = None
    moderation: Annotated[Any, Unbuilt("moderation")] = None
    prompt_cache_retention: Annotated[
        Any, Unbuilt("keeping a prompt cached for a time", nothing=(None, "in_memory"))
    ] = None

    @property
    def is_quick(self) -> bool:
        return self.previous_response_id is None and not self.tools and not self.text and super().is_quick

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report with each token of the text; None reports nothing."""
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None
