"""Tools whose calls an output is held to: each way to call knows the grammar of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from slipway.text import structure
from slipway.text.channels import Channels
from slipway.text.parse.shapes import Tools
from slipway.text.parse.written import Written, tag_of
from slipway.text.structural_tag import of_structural_tag
from slipway.text.structure import JsonStyle


class HeldTools(Protocol):
    def grammar(self, style: JsonStyle, special_ids: Mapping[str, int]) -> str:
        """For the model of these special tokens. Raises GrammarError."""


@dataclass(frozen=True, slots=True)
class OneTool:
    """The output is the arguments of this one alone."""

    schema: Mapping[str, Any]

    def grammar(self, style: JsonStyle, special_ids: Mapping[str, int]) -> str:
        return structure.of_arguments(self.schema, style)


@dataclass(frozen=True, slots=True)
class RequiredTools:
    """The output is a list of calls of these, by their names; of one, unless they are `parallel`."""

    schemas: Tools
    parallel: bool

    def grammar(self, style: JsonStyle, special_ids: Mapping[str, int]) -> str:
        return structure.of_tool_calls(self.schemas, style, parallel=self.parallel)


@dataclass(frozen=True, slots=True)
class ChannelTools:
    """They are called in a channel: one has to be where that is `forced`, or may be."""

    channels: Channels
    schemas: Tools
    forced: bool

    def grammar(self, style: JsonStyle, special_ids: Mapping[str, int]) -> str:
        return self.channels.of_calls(self.schemas, style, forced=self.forced)


@dataclass(frozen=True, slots=True)
class TaggedTools:
    """They may be called among other text, in one of the ways in which the model writes that."""

    written: tuple[Written, ...]
    schemas: Tools
    parallel: bool

    def grammar(self, style: JsonStyle, special_ids: Mapping[str, int]) -> str:
        schemas = {name: structure.arguments_of(schema) for name, schema in self.schemas.items()}
        tag = tag_of(self.written, schemas, parallel=self.parallel)
        return of_structural_tag({"format": tag}, style, special_ids)
