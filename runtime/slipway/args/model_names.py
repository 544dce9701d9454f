"""Names that requests give as their model: the model's own, and those of adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_MODEL_NAME = 256


def fit_for_a_model(name: str) -> bool:
    """Whether a request, a log line and a metric's label can hold it."""
    return 0 < len(name) <= MAX_MODEL_NAME and name.isprintable()


def wrong_adapter_name(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    """What is wrong with an adapter's name or path: it must be fit for a model, and be that of one thing."""
    taken = dict.fromkeys(values["served_model_name"] or [values["model"]], "the model itself has")
    named = [("--lora-modules", one["name"], one["path"]) for one in values["lora_modules"] or []]
    named += [("--prompt-adapters", *name_and_path(pair)) for pair in values["prompt_adapters"] or []]
    for flag, name, path in named:
        if not fit_for_a_model(name):
            return f"{flag}: {name!r} is no name; one is 1 to {MAX_MODEL_NAME} printable characters."
        if not path:
            return f"{flag}: {name} has no path. Write {name}=PATH."
        if name in taken:
            return f"{flag}: {name} is a name that {taken[name]}. Give the adapter another."
        taken[name] = "another adapter has"
    return None


def name_and_path(pair: str) -> tuple[str, str]:
    """Of one of --prompt-adapters, name=path; empty where they are missing."""
    name, _, path = pair.partition("=")
    return name, path
