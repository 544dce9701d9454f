"""The fields by which a request holds its output to a form: `response_format` and what vLLM has beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, WrapValidator

from slipway.api.errors import ApiError, shown_value
from slipway.api.protocol.base import Body, at_most

MAX_CHOICES_LISTED = 1 << 14
MAX_FORM = 256 << 10
"""Characters of a text that says a form."""


def _json_or_text(value: object, handler: Callable[[object], Any]) -> Any:
    """Says what both may be, where a union would speak of its branches."""
    try:
        return handler(value)
    except ValueError:
        limit = f"{MAX_FORM >> 10} Ki characters"
        raise ValueError(
            f"{shown_value(value)} is neither a JSON object nor the text of one, of up to {limit}."
        ) from None


Form = Annotated[str, StringConstraints(max_length=MAX_FORM)]
Schema = Annotated[dict[str, Any] | bool | Form, WrapValidator(_json_or_text)]
Tag = Annotated[dict[str, Any] | Form, WrapValidator(_json_or_text)]
Choice = Annotated[list[Form], Field(min_length=1, max_length=MAX_CHOICES_LISTED, fail_fast=True)]


class NamedSchema(Body):
    """`json_schema` of a response format. `name`, `description` and `strict` change nothing here: every
    schema is followed to the letter."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), populate_by_name=True)

    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    description: Form | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """`schema` is that of `json_object`, where a client sends one."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=(), populate_by_name=True)

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(None, alias="schema")


class StructuredOutputs(Body):
    """vLLM's newer form: one of the first six, and how."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    json_: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Form | None = None
    choice: Choice | None = None
    grammar: Form | None = None
    structural_tag: Tag | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: Form | None = None


class Structured(Body):
    """What a generating request may have of these."""

    response_format: ResponseFormat | None = None
    structured_outputs: Annotated[StructuredOutputs, at_most(64)] | None = None
    guided_json: Schema | None = None
    guided_json_object: bool | None = None
    guided_regex: Form | None = None
    guided_choice: Choice | None = None
    guided_grammar: Form | None = None
    structural_tag: Tag | None = None
    guided_whitespace_pattern: Form | None = None
    guided_decoding_backend: Annotated[str, StringConstraints(max_length=256)] | None = None

    @property
    def is_held(self) -> bool:
        """A grammar bounds the output. Raises ApiError where the request says two of them."""
        return self.form is not None

    @property
    def form(self) -> tuple[str, str, Any] | None:
        """The field that asks for a form, its kind and what it says; None where the output is free.

        Kinds: json, json_object, regex, choice, grammar, structural_tag. Raises ApiError for two of them.
        """
        asked = [
            ("guided_json", "json", self.guided_json),
            ("guided_json_object", "json_object", self.guided_json_object or None),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_choice", "choice", self.guided_choice),
            ("guided_grammar", "grammar", self.guided_grammar),
            ("structural_tag", "structural_tag", self.structural_tag),
        ]
        if (new := self.structured_outputs) is not None:
            asked += [
                ("structured_outputs.json", "json", new.json_),
                ("structured_outputs.json_object", "json_object", new.json_object or None),
                ("structured_outputs.regex", "regex", new.regex),
                ("structured_outputs.choice", "choice", new.choice),
                ("structured_outputs.grammar", "grammar", new.grammar),
                ("structured_outputs.structural_tag", "structural_tag", new.structural_tag),
            ]
        if self.response_format is not None:
            asked.append(_response_form(self.response_format))
        forms = [one for one in asked if one[2] is not None]
        if len(forms) > 1:
            names = " and ".join(param for param, _, _ in forms)
            message = f"{names} each ask for a form of the output; a request has at most one."
            raise ApiError(message, param=forms[1][0], code="invalid_value")
        return forms[0] if forms else None


def _response_form(wanted: ResponseFormat) -> tuple[str, str, Any]:
    match wanted.type:
        case "json_object":
            return _object_form(wanted)
        case "structural_tag":
            return "response_format", "structural_tag", wanted.model_extra or {}
        case "json_schema":
            schema = None if wanted.json_schema is None else wanted.json_schema.schema_
            if schema is None:
                message = "response_format of type json_schema needs json_schema.schema, the schema itself."
                raise ApiError(message, param="response_format.json_schema", code="missing")
            return "response_format.json_schema.schema", "json", schema
    return "response_format", "text", None


def _object_form(wanted: ResponseFormat) -> tuple[str, str, Any]:
    """Any JSON object, or one that is valid by the schema beside it, as llama.cpp's clients write."""
    if wanted.schema_ is not None:
        return "response_format.schema", "json", wanted.schema_
    if wanted.json_schema is not None:
        message = (
            "response_format has type json_object and json_schema. Use type json_schema to follow the "
            "schema, or leave json_schema out."
        )
        raise ApiError(message, param="response_format.json_schema", code="invalid_value")
    return "response_format", "json_object", True
