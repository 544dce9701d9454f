"""The values that fields hold: every number is bounded, every list has a length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import with_info_before_validator_function

from slipway.api.errors import not_supported

MAX_PROMPT_TOKENS = 1 << 20
MAX_TEXT = 32 << 20


def _whole(value: object) -> object:
    """JSON has one kind of number: 16.0 is the integer 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Int, Field(ge=0, le=1 << 30)]
TokenId = Annotated[Int, Field(ge=0, le=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ModelName = Annotated[str, StringConstraints(max_length=4096)]
"""A path where the server has no shorter name; empty for the one that is served."""
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Stops = Annotated[
    list[StopString],
    Field(max_length=64),
    # A single string is a list of one, so that an error names the very member at fault.
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 1024},
                {
                    "type": "array",
                    "maxItems": 64,
                    "items": {"type": "string", "minLength": 1, "maxLength": 1024},
                },
            ]
        }
    ),
]


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """Marks a field that stands in the interface and waits for its feature.

    A value that asks for nothing passes; with any other the request is refused.
    """

    feature: str
    nothing: tuple[object, ...] = (None, False, "")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_info_before_validator_function(self._refuse, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: object) -> dict[str, Any]:
        return {"description": f"Not supported yet: {self.feature}.", "deprecated": True}

    def _refuse(self, value: object, field: ValidationInfo) -> None:
        if value not in (*self.nothing, [], {}):
            raise not_supported(f"{field.field_name}: {self.feature}", field.field_name)


class Body(BaseModel):
    """A request's body. Types are not converted; fields that we do not know are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())
