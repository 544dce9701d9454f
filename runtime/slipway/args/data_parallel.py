"""How many copies of the engine this server has."""

from __future__ import annotations

from typing import Any, Protocol


class Values(Protocol):
    """The arguments by their underscore names."""

    def __getitem__(self, name: str, /) -> Any: ...


def copies_here(values: Values) -> int:
    """Those of this node, of which there is one where each has a server of its own."""
    if values["data_parallel_external_lb"] or values["data_parallel_rank"] is not None:
        return 1
    local = values["data_parallel_size_local"]
    return int(values["data_parallel_size"] if local is None else local)
