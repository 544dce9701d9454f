"""Prompt adapters: rows that stand before the prompts of those who name them. No worker knows of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slipway.engine.adapters import Adapters
from slipway.engine.messages import AdapterRef
from slipway.engine.plan import NO_PLACE
from slipway.engine.request import Request

ReadRows = Callable[[str, Path, int], bytes]
"""The rows of an adapter by its name, its folder and their number, fp32. Raises LoadError."""


class PromptAdapters(Adapters):
    """Keeps rows as `Adapters` keeps factors; a request takes them along, as if it had brought them."""

    argument = "--enable-prompt-adapter"

    def __init__(self, read: ReadRows, num_places: int, wake: Callable[[], None]) -> None:
        super().__init__(self._read_rows, num_places, wake)
        self._rows_of = read
        self._rows: dict[int, bytes] = {}
        """By place, also of those that are read for it."""

    def forget(self) -> None:
        """Nothing: what sleeps is the worker."""

    def _read_rows(self, adapter: AdapterRef, place: int) -> int:
        rows = self._rows_of(adapter.name, Path(adapter.folder).expanduser(), adapter.num_virtual)
        if place != NO_PLACE:
            self._rows[place] = rows
        return 0

    def _give(self, request: Request, place: int) -> None:
        request.precede(self._rows[place])

    def _tell(self, place: int, adapter: AdapterRef | None) -> None:
        if adapter is None:
            self._rows.pop(place, None)
