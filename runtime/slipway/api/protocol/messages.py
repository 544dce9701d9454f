"""`POST /v1/messages` and `/v1/messages/count_tokens`, in Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import ConfigDict, Field, StringConstraints
from typing_extensions import TypedDict

from slipway.api.protocol.base import (
    Body,
    Int,
    Kinded,
    Known,
    ModelName,
    Name,
    OrText,
    Stops,
    Text,
    Unbuilt,
)
from slipway.api.protocol.chat import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Json
from slipway.api.protocol.common import OneOutput

Id = Annotated[str, StringConstraints(min_length=1, max_length=256)]
KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


def as_block(text: str) -> Json:
    return {"type": "text", "text": text}


class TextParam(TypedDict):
    type: Literal["text"]
    text: Text


Texts = Annotated[list[TextParam], Field(max_length=MAX_PARTS, fail_fast=True), OrText(as_block)]


class BlockParam(TypedDict):
    """A dictionary, as there may be many; that it has the fields of its type is seen when it is read."""

    type: Literal["text", "thinking", "tool_use", "tool_result"]
    text: NotRequired[Text | None]
    thinking: NotRequired[Text | None]
    id: NotRequired[Id | None]
    name: NotRequired[Name | None]
    input: NotRequired[Json | None]
    tool_use_id: NotRequired[Id | None]
    content: NotRequired[Texts | None]
    is_error: NotRequired[bool | None]


_BLOCKS = Known(
    "content blocks",
    ("text", "thinking", "tool_use", "tool_result"),
    left_out=("redacted_thinking", "_tool_use", "_tool_result"),  # of another server's thoughts and tools
)


class MessageParam(Body):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[BlockParam], Field(max_length=MAX_PARTS, fail_fast=True), _BLOCKS, OrText(as_block)
    ]


class ToolParam(Body):
    type: Literal["custom"] | None = None
    name: Name
    description: Text | None = None
    input_schema: Json
    strict: bool | None = None


class ToolChoiceParam(Kinded):
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"tool": ("name",)}

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(Kinded):
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"enabled": ("budget_tokens",)}

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[Int, Field(ge=1, le=1 << 30)] | None = None
    display: Literal["summarized", "omitted"] | None = None
    """Thinking is told in full or not at all."""


class OutputFormat(Body):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), populate_by_name=True)

    type: Literal["json_schema"]
    schema_: Json = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(Body):
    user_id: Annotated[str, StringConstraints(max_length=1024)] | None = None


class Conversation(Body):
    """What the prompt is made of, and what depends on it."""

    messages: Annotated[list[MessageParam], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: Texts | None = None
    tools: (
        Annotated[list[ToolParam], Field(max_length=MAX_TOOLS, fail_fast=True), Known("tools", ("custom",))]
        | None
    ) = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Annotated[Json, Field(max_length=256)] | None = None

    mcp_servers: Annotated[Any, Unbuilt("MCP servers")] = None
    context_management: Annotated[
        Any, Unbuilt("management of the context", nothing=(None, {"edits": []}, KEEPS_ALL))
    ] = None
    output_format: Annotated[Any, Unbuilt("its older name (use output_config.format)")] = None
    speed: Annotated[Any, Unbuilt("a speed", nothing=(None, "standard"))] = None


class CountTokensRequest(Conversation):
    model: ModelName | None = None


class MessagesRequest(Conversation, OneOutput):
    max_tokens: Annotated[Int, Field(ge=1, le=1 << 30)]
    stop_sequences: Stops | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    stop: Annotated[Any, Unbuilt("another endpoint's name (use stop_sequences)")] = None
    response_format: Annotated[Any, Unbuilt("another endpoint's name (use output_config.format)")] = None
    stream_options: Annotated[Any, Unbuilt("options of a stream")] = None
    container: Annotated[Any, Unbuilt("a container")] = None
    diagnostics: Annotated[Any, Unbuilt("diagnostics")] = None

    @property
    def is_quick(self) -> bool:
        return not self.tools and not self.output_config and super().is_quick
