"""Block tables over the page pool, and the index of prefixes that pages hold."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slipway.engine.page_pool import PagePool
from slipway.engine.plan import PageCopy, PageGrant
from slipway.engine.request import Request


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Computed blocks found for a request: half-open, in tokens `[0, num_tokens)`."""

    num_tokens: int
    tables: list[list[int]]
    """[group][block]  -1 before a sliding group's window"""
    swapped: bool = False
    """The request was preempted: these are its own pages, in host memory."""


class KVCache:
    """Gives requests pages for their tokens, one block table for each group of layers.

    `num_host_pages` in host memory can keep what preempted requests have computed.

    `windows` has one entry a group: the tokens a query sees, 0 for all. All groups have blocks of
    `block_size` tokens. Blocks are hashed in a chain from the request's cache salt, so that equal keys
    mean equal tokens from the first on.
    """

    def __init__(
        self,
        pool: PagePool,
        block_size: int,
        windows: Sequence[int],
        *,
        prefix_caching: bool,
        hash_name: str,
        num_host_pages: int = 0,
    ) -> None:
        self.pool = pool
        self.host = PagePool(num_host_pages)
        self._swapped: dict[Request, PrefixHit] = {}
        self.block_size = block_size
        self.windows = tuple(windows)
        self._prefix_caching = prefix_caching
        self._hash: Callable[[object, Sequence[int]], object] = {
            "builtin": _builtin,
            "sha256": _sha256,
        }[hash_name]

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def peak_pages(self, num_tokens: int, chunk: int) -> int:
        """Most pages a request of this length holds at once, computed `chunk` tokens at a time."""
        blocks = self.num_blocks(num_tokens)
        return sum(
            min(blocks, self.num_blocks(window + chunk) + 1) if window else blocks for window in self.windows
        )

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest prefix of the known tokens that every group still holds.

        At least the last token is left to compute: its logits are wanted. Where its block was found it
        is computed again into the shared page, which on one device gives the bits that are there.
        Of a request that was swapped out it is all that it had computed.
        """
        if request in self._swapped:
            return self._swapped[request]
        if not self._prefix_caching or request.wants_prompt_logprobs:
            return PrefixHit(0, [[] for _ in self.windows])
        keys = self._keys(request, len(request.tokens) // self.block_size)
        found = [[self.pool.find((group, key)) for key in keys] for group in range(len(self.windows))]
        for blocks in range(len(keys), 0, -1):
            num_tokens = min(blocks * self.block_size, len(request.tokens) - 1)
            starts = [self._first_block(window, num_tokens) for window in self.windows]
            if all(None not in pages[start:blocks] for pages, start in zip(found, starts, strict=True)):
                tables = [
                    [-1] * start + [page for page in pages[start:blocks] if page is not None]
                    for pages, start in zip(found, starts, strict=True)
                ]
                return PrefixHit(num_tokens, tables)
        return PrefixHit(0, [[] for _ in self.windows])

    def can_admit(self, request: Request, hit: PrefixHit, chunk: int) -> bool:
        """Whether all known tokens would fit: admitting less would only lead to preemption."""
        shared = [] if hit.swapped else _pages(hit.tables)
        wanted = self.peak_pages(request.num_tokens, chunk) - len(shared)
        return wanted <= self.pool.num_free - self.pool.num_idle(shared)

    def admit(self, request: Request, hit: PrefixHit) -> tuple[list[PageGrant], list[PageCopy]]:
        """Give the request the pages of its prefix hit. Call `extend` for the rest.

        Where they were swapped out it gets others, and the copies from the host that fill these.
        """
        request.num_computed = hit.num_tokens
        copies: list[PageCopy] = []
        if hit.swapped:
            request.tables, copies = _moved(hit.tables, self.pool)
            self.forget(request)
        else:
            self.pool.share(_pages(hit.tables))
            request.tables = hit.tables
            request.num_registered = len(hit.tables[0])
        grants = [PageGrant(g, request.slot, 0, list(t)) for g, t in enumerate(request.tables) if t]
        return grants, copies

    def can_hold(self, request: Request, grant: int) -> bool:
        blocks = self.num_blocks(request.num_computed + grant)
        return sum(blocks - len(table) for table in request.tables) <= self.pool.num_free

    def extend(self, request: Request, grant: int) -> list[PageGrant]:
        """Pages for the next `grant` tokens; `can_hold` has said yes."""
        blocks = self.num_blocks(request.num_computed + grant)
        grants = []
        for group, table in enumerate(request.tables):
            if len(table) < blocks:
                pages = self.pool.allocate(blocks - len(table))
                grants.append(PageGrant(group, request.slot, len(table), pages))
                table += pages
        return grants

    def trim(self, request: Request) -> None:
        """Give back the pages that have left the window of their group."""
        for window, table in zip(self.windows, request.tables, strict=True):
            if not window:
                continue
            gone = []
            for block in range(self._first_block(window, request.num_computed) - 1, -1, -1):
                if table[block] < 0:
                    break
                gone.append(table[block])
                table[block] = -1
            self.pool.release(gone)

    def register(self, request: Request) -> None:
        """Make the blocks that are computed and whole findable."""
        if not self._prefix_caching:
            return
        known = min(request.num_computed, len(request.tokens)) // self.block_size
        if known <= request.num_registered:
            return
        keys = self._keys(request, known)
        for group, table in enumerate(request.tables):
            for block in range(request.num_registered, known):
                if table[block] >= 0:
                    self.pool.register(table[block], (group, keys[block]))
        request.num_registered = known

    def swap_out(self, request: Request) -> list[PageCopy]:
        """Copies to the host from which the request resumes where it is; none where there is no room for all.

        `release` then takes the pages themselves back.
        """
        self.trim(request)
        if len(_pages(request.tables)) > self.host.num_free:
            return []
        tables, copies = _moved(request.tables, self.host)
        self._swapped[request] = PrefixHit(request.num_computed, tables, swapped=True)
        return copies

    def forget(self, request: Request) -> None:
        """Free what host memory keeps of a request."""
        hit = self._swapped.pop(request, None)
        if hit is not None:
            self.host.release(_pages(hit.tables))

    @property
    def num_swapped(self) -> int:
        """Requests that host memory keeps."""
        return len(self._swapped)

    def release(self, request: Request) -> None:
        """Take all pages back. The end of a prefix is reused before its beginning."""
        for table in request.tables:
            self.pool.release(page for page in reversed(table) if page >= 0)
            table.clear()
        request.num_computed = request.num_registered = 0

    def check(self, requests: Iterable[Request]) -> None:
        self.pool.check(page for request in requests for page in _pages(request.tables))
        self.host.check(page for hit in self._swapped.values() for page in _pages(hit.tables))

    def _first_block(self, window: int, position: int) -> int:
        """The first block that a query at this position reads."""
        return max(0, position - window + 1) // self.block_size if window else 0

    def _keys(self, request: Request, count: int) -> list[object]:
        keys, size = request.block_keys, self.block_size
        while len(keys) < count:
            parent = keys[-1] if keys else request.cache_salt
            start = len(keys) * size
            keys.append(self._hash(parent, request.tokens[start : start + size]))
        return keys[:count]


def _pages(tables: list[list[int]]) -> list[int]:
    return [page for table in tables for page in table if page >= 0]


def _moved(tables: list[list[int]], pool: PagePool) -> tuple[list[list[int]], list[PageCopy]]:
    """Tables of the same form with new pages from `pool`, and the copies that fill these."""
    sources = _pages(tables)
    targets = pool.allocate(len(sources))
    new = iter(targets)
    moved = [[next(new) if page >= 0 else -1 for page in table] for table in tables]
    return moved, list(zip(sources, targets, strict=True))


def _builtin(parent: object, tokens: Sequence[int]) -> object:
    return hash((parent, *tokens))


def _sha256(parent: object, tokens: Sequence[int]) -> object:
    head = parent if isinstance(parent, bytes) else str(parent).encode("utf-8", "surrogatepass")
    return hashlib.sha256(head + b"\0" + array("i", tokens).tobytes()).digest()
