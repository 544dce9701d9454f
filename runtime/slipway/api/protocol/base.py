"""The values that fields hold: every number is bounded, every list has a length and fails at the first member
at fault, where one error for each would take seconds and a gigabyte."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import (
    no_info_before_validator_function,
    with_info_before_validator_function,
)

from slipway.api.errors import ApiError, not_supported

logger = logging.getLogger("slipway.api")

MAX_PROMPT_TOKENS = 1 << 20
MAX_TEXT = 32 << 20


def _whole(value: object) -> object:
    """JSON has one kind of number: 16.0 is the integer 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_whole(value: object) -> object:
    """The same of a list, which costs nothing where there is nothing to do."""
    if isinstance(value, list) and float in set(map(type, value)):
        return [_whole(member) for member in value]
    return value


def or_say(sentence: str) -> WrapValidator:
    """Says what a value may be, where a union would speak of each of its branches."""

    def check(value: object, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValueError:
            raise ValueError(sentence) from None

    return WrapValidator(check)


def at_most(members: int) -> BeforeValidator:
    """Refuses a larger object before it looks at each member."""

    def check(value: object, info: ValidationInfo) -> object:
        if isinstance(value, dict) and len(value) > members:
            raise ValueError(f"{info.field_name} has {len(value)} members; it may have {members}.")
        return value

    return BeforeValidator(check)


Int = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Int, Field(ge=0, le=1 << 30)]
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=1 << 31)]],
    Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True),
    BeforeValidator(_all_whole),
]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ModelName = Annotated[str, StringConstraints(max_length=4096)]
"""A path where the server has no shorter name; empty for the one that is served."""
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


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
        # 0 equals False, and asks for something: so many log-probabilities, for one.
        nothing = (one for one in (*self.nothing, [], {}) if isinstance(one, bool) == isinstance(value, bool))
        if value not in nothing:
            raise self.error(field.field_name or "")

    def error(self, field: str) -> ApiError:
        return not_supported(f"{field}: {self.feature}", field)


@dataclass(frozen=True, slots=True)
class Elsewhere(Unbuilt):
    """Marks a field of other routes, which this one would have to leave aside: `feature` says why."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: object) -> dict[str, Any]:
        return {"description": f"Refused: {self.feature}.", "deprecated": True}

    def error(self, field: str) -> ApiError:
        message = f"{field} asks for what this route does not do: {self.feature}. Leave it out."
        return ApiError(message, param=field, code="invalid_value")


@dataclass(frozen=True, slots=True)
class OrText:
    """Marks a list in whose place a text may stand: `member` makes the list's one member of it.

    There is one type behind it, so that an error names the very field at fault.
    """

    member: Callable[[str], object]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "maxLength": MAX_TEXT}, handler(schema)]}

    def _listed(self, value: object) -> object:
        if isinstance(value, str):
            return [self.member(value)]
        if isinstance(value, list):
            return value
        raise PydanticCustomError("list_or_text", "a text or a list")


Stops = Annotated[
    list[StopString],
    Field(max_length=64, fail_fast=True),
    OrText(str),
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
class Known:
    """Marks a list whose members have a `type`. Members of some other kinds are left out.

    Clients send what other servers can do. Each kind that is left out is logged once.

    left_out  how the names of these kinds end; by default all are. Others stay, so that they are refused:
              without them the answer would be wrong
    """

    what: str
    kinds: tuple[str, ...]
    left_out: tuple[str, ...] = ("",)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._kept, handler(source))

    def _kept(self, value: object) -> object:
        return [member for member in value if self._keeps(member)] if isinstance(value, list) else value

    def _keeps(self, member: object) -> bool:
        kind = member.get("type") if isinstance(member, dict) else None
        if not isinstance(kind, str) or kind in self.kinds or not kind.endswith(self.left_out):
            return True
        seen = (self.what, kind[:64])
        if seen not in _left_out and len(_left_out) < MAX_KINDS_LOGGED:
            _left_out.add(seen)
            logger.warning("%s of type %r are left out of requests: this server has no use for them", *seen)
        return False


MAX_KINDS_LOGGED = 256
_left_out: set[tuple[str, str]] = set()


class Body(BaseModel):
    """A request's body. Types are not converted; fields that we do not know are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class Kinded(Body):
    """One of several kinds of things, by its `type`; `needs` says which fields each kind must have."""

    needs: ClassVar[Mapping[str, tuple[str, ...]]]

    type: str

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Kinded:
        for name in self.needs.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"{name.rstrip('_')} is missing; {self.type} needs it.")
        return self
