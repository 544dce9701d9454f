"""Fields of a request's body that its route does not have: they are left aside and said, or refused."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel

from slipway.api.errors import ApiError, shown_value

OF_SERVICES = frozenset(
    (
        "access_programs",
        "background_options",
        "cache_control",
        "client_metadata",
        "include_obfuscation",
        "inference_geo",
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "user_profile_id",
        "workspace_id",
    )
)
"""What clients tell a provider of accounts, prices and caches. No answer would be another."""
MOST_MEMBERS = 256
"""Of a list that are looked at."""
MOST_SAID = 16
"""In the header of one answer."""
MOST_LOGGED = 256
"""Fields that the log names, each once: names are the clients' own, and without an end."""

logger = logging.getLogger("slipway.api")


def unknown(raw: Mapping[str, Any], body: BaseModel, place: str = "") -> Iterator[str]:
    """The paths of what a body as it came has and its model leaves aside, such as `stream_options.usage`."""
    attributes = _attributes(type(body))
    if body.model_config.get("extra") != "allow":
        yield from (f"{place}{name}" for name in raw if name not in attributes and name not in OF_SERVICES)
    for name, value in raw.items():
        if not isinstance(value, dict | list) or name not in attributes:
            continue
        read = getattr(body, attributes[name])
        if isinstance(read, BaseModel) and isinstance(value, dict):
            yield from unknown(value, read, f"{place}{name}.")
        elif isinstance(read, list) and isinstance(value, list) and len(read) == len(value):
            for number, (member, part) in enumerate(zip(value[:MOST_MEMBERS], read, strict=False)):
                if isinstance(part, BaseModel) and isinstance(member, dict):
                    yield from unknown(member, part, f"{place}{name}[{number}].")


@cache
def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """The names that fields have in a body → their own."""
    both = model.model_config.get("populate_by_name", False)
    fields = model.model_fields.items()
    found = {name: name for name, field in fields if field.alias is None or both}
    return found | {field.alias: name for name, field in fields if field.alias is not None}


class UnknownFields:
    """What one API process makes of them."""

    def __init__(self, *, strict: bool) -> None:
        """strict  they are refused (--strict-requests)"""
        self._strict = strict
        self._logged: set[tuple[str, str]] = set()

    def warning(self, path: str, names: Collection[str], body: BaseModel) -> str:
        """The value of the answer's header Warning; the log has each field of a path once.

        Raises ApiError where they are refused.
        """
        for name in names if self._strict else ():
            alike = get_close_matches(name[:64], _attributes(type(body)), n=1)
            advice = f"Did you mean {alike[0]}?" if alike else "Leave it out."
            message = f"{path} has no field {shown_value(name)}, which --strict-requests refuses. {advice}"
            raise ApiError(message, param=name[:64], code="unknown_field")
        for name in names:
            self._log(path, name[:64])
        said = [f"{path} has no field {shown_value(name)}" for name in list(names)[:MOST_SAID]]
        return ", ".join(f"299 slipway {_quoted(sentence)}" for sentence in said)

    def _log(self, path: str, name: str) -> None:
        seen = (path, name)
        if seen not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(seen)
            logger.warning("%s has no field %r: it is left aside in every request that sends it", path, name)


def _quoted(text: str) -> str:
    """A quoted string of HTTP, in ASCII."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
