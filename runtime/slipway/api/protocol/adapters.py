"""`POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from slipway.api.protocol.base import Body, Int, Name

Place = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class LoadAdapterRequest(Body):
    lora_name: Name
    lora_path: Place
    load_inplace: bool | None = None


class UnloadAdapterRequest(Body):
    lora_name: Name
    lora_int_id: Annotated[Int, Field(ge=1, le=1 << 53)] | None = None
