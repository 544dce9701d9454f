"""What a client is told of a path that is not there, or of a method that does not work on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

LONGEST = 100
"""Characters of a path that is compared with those that there are."""
LIKENESS = 0.8
OF_OTHERS = {
    "/api/chat": ("Ollama", "/v1/chat/completions"),
    "/api/generate": ("Ollama", "/v1/completions"),
    "/api/tags": ("Ollama", "/v1/models"),
    "/api/embed": ("Ollama", "/v1/embeddings"),
    "/api/embeddings": ("Ollama", "/v1/embeddings"),
    "/completion": ("llama.cpp", "/v1/completions"),
    "/generate": ("TGI", "/v1/completions"),
    "/generate_stream": ("TGI", "/v1/completions"),
    "/v2/models": ("KServe's V2 protocol", "/v1/models"),
}
"""Paths of other servers → whose they are, and ours for the same."""


def nowhere(path: str, routes: Sequence[BaseRoute]) -> str:
    """The sentence for a path that none of these routes takes."""
    paths = sorted({route.path for route in routes if isinstance(route, Route)})
    asked = path.rstrip("/")
    whose, ours = OF_OTHERS.get(asked, ("", ""))
    if ours in paths:
        return f"{path} is of {whose}, and not here; {ours} is."
    meant = _meant(asked, paths) if len(asked) <= LONGEST else None
    advice = f"did you mean {meant}?" if meant else "GET /v1/models lists what is served."
    return f"There is no {path} here; {advice}"


def _meant(asked: str, paths: Iterable[str]) -> str | None:
    """Which of them somebody meant who left out /v1, said it twice, put a prefix before it, or mistyped."""
    fixed = [path for path in paths if "{" not in path and path != "/"]
    ends = [path for path in fixed if path.endswith(asked) or asked.endswith(path)] if asked else []
    if ends:
        return min(ends, key=lambda path: abs(len(path) - len(asked)))
    return next(iter(get_close_matches(asked.lower(), fixed, n=1, cutoff=LIKENESS)), None)


def methods(scope: Scope, routes: Iterable[BaseRoute]) -> list[str]:
    """Which work on the path of a request."""
    there = [
        route for route in routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE
    ]
    return sorted({method for route in there for method in route.methods or ()})
