"""Pages of the KV cache: who holds each, and which of the free ones still hold a known prefix."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Set
from itertools import islice
from typing import Any

REMEMBERED = 1024
"""Losses of keys that are told apart."""


class PagePool:
    """Reference counts and one free list over equal pages.

    Invariants: a page is free exactly when its count is 0; the free list holds each free page once;
    of those that came with a key the longest unused is first. A page has at most one key and a key at most
    one page. A free page keeps its key, so that a later request may find it, until it is handed out again.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_held = 0
        """Pages in tables: one that several share counts for each."""
        self.num_lost = 0
        """Keys forgotten so far."""
        self._lost: deque[int] = deque(maxlen=REMEMBERED)
        self._references = array("i", bytes(4 * num_pages))
        # No dict: that finds its first key by walking over those that were deleted.
        self._free = OrderedDict.fromkeys(range(num_pages))
        self._key_of: list[object] = [None] * num_pages
        self._page_of: dict[object, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        return 1 - self.num_free / self.num_pages if self.num_pages else 0.0

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, forgetting what they held. The caller has looked at `num_free`."""
        pages = []
        for _ in range(count):
            page, _ = self._free.popitem(last=False)
            self._references[page] = 1
            pages.append(page)
        self.forget(pages)
        self.num_held += count
        return pages

    def find(self, key: object) -> int | None:
        """The page that holds the block of this key."""
        return self._page_of.get(key)

    def find_run(self, keys: Iterable[object]) -> list[int]:
        """The pages of these keys up to the first that none holds; no key behind it is asked for."""
        found = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def find_all(self, keys: Iterable[object]) -> list[int]:
        """The page of each of these keys; -1 where none holds it."""
        return [self._page_of.get(key, -1) for key in keys]

    def has_lost(self, pages: Set[int], since: int) -> bool:
        """Whether one of these has lost its key after the first `since` losses, as far as is remembered."""
        recent = self.num_lost - since
        if recent > REMEMBERED:
            return True
        return any(page in pages for page in islice(reversed(self._lost), recent))

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that `find` gave."""
        for page in pages:
            if self._references[page] == 0:
                del self._free[page]
            self._references[page] += 1
            self.num_held += 1

    def num_idle(self, pages: Iterable[int]) -> int:
        """How many of these pages `share` would take off the free list."""
        return sum(self._references[page] == 0 for page in pages)

    def register(self, page: int, key: object) -> None:
        """Make a computed page findable, unless an equal one is already.

        Equal pages are not merged: block tables only ever grow at their end.
        """
        if key not in self._page_of and self._key_of[page] is None:
            self._page_of[key] = page
            self._key_of[page] = key

    def release(self, pages: Iterable[int]) -> None:
        """Let go of pages. Of those that a prefix may find, the first will be reused first; the others before
        any of them."""
        for page in pages:
            self._references[page] -= 1
            self.num_held -= 1
            if self._references[page] == 0:
                self._free[page] = None
                if self._key_of[page] is None:
                    self._free.move_to_end(page, last=False)

    def forget(self, pages: Iterable[int]) -> None:
        """Make these pages findable no more."""
        for page in pages:
            key = self._key_of[page]
            if key is not None:
                self._key_of[page] = None
                del self._page_of[key]
                self.num_lost += 1
                self._lost.append(page)

    def forget_all(self) -> None:
        """Make no page findable any more."""
        self.forget(list(self._page_of.values()))

    def forget_keys(self, which: Callable[[Any], bool]) -> None:
        """Make the pages of these keys findable no more."""
        self.forget([page for key, page in self._page_of.items() if which(key)])

    def check(self, held: Iterable[int]) -> None:
        """Raise RuntimeError unless the counts are those of `held` and every invariant holds."""
        expected = array("i", bytes(4 * self.num_pages))
        for page in held:
            expected[page] += 1
        if expected != self._references:
            wrong = [p for p in range(self.num_pages) if expected[p] != self._references[p]]
            raise RuntimeError(f"page pool: reference counts are wrong for pages {wrong[:8]}")
        if sum(expected) != self.num_held:
            raise RuntimeError(f"page pool: {sum(expected)} pages are in tables, counted {self.num_held}")
        if self._free.keys() != {page for page, count in enumerate(expected) if not count}:
            raise RuntimeError("page pool: the free list has other pages than those that nobody holds")
        if any(self._key_of[page] != key for key, page in self._page_of.items()):
            raise RuntimeError("page pool: an indexed page does not hold its key")
