"""Schemas that others make: the official test suite's, and those of tools that pydantic writes."""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Iterator
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model


def official(draft: str) -> Iterator[dict[str, Any]]:
    """Groups of the required tests of a draft, each with its schema."""
    for path in sorted((Path(os.environ["JSON_SCHEMA_SUITE"]) / draft).glob("*.json")):
        yield from json.loads(path.read_text())


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=0, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    friends: list[Cat] = []


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


FIELDS: list[Any] = [
    *(str, int, float, bool, date, datetime, uuid.UUID, Colour, Cat, Tree, Any, dict[str, Any], Path),
    *(list[str], list[Cat], dict[str, int], dict[Colour, Cat], tuple[int, str], int | str, Cat | None),
    *(Cat | Dog | None, list[Cat | Dog], Literal["a", 1, None], str | list[str], bytes, dict[str, list[int]]),
    *(
        Annotated[Cat | Dog, Field(discriminator="kind")],
        list[Annotated[Cat | Dog, Field(discriminator="kind")]],
        Annotated[str, Field(pattern=r"^[a-z]{2,5}$")],
        Annotated[str, Field(min_length=1, max_length=40, description="shown")],
        Annotated[list[int], Field(min_length=1, max_length=3)],
        Annotated[float, Field(gt=0, le=1)],
        Annotated[dict[str, int], Field(max_length=3)],
        Annotated[int, Field(multiple_of=5)],
    ),
]


def tool_schemas(number: int) -> Iterator[dict[str, Any]]:
    """Of the arguments of tools with one to eight parameters."""
    chance = random.Random(7)
    for place in range(number):
        kinds = chance.sample(FIELDS, chance.randint(1, 8))
        fields: dict[str, Any] = {
            f"field_{place}": (kind, ...) if chance.random() < 0.6 else (kind | None, None)
            for place, kind in enumerate(kinds)
            if not isinstance(kind, str)
        }
        yield create_model(f"Tool{place}", **fields).model_json_schema()
