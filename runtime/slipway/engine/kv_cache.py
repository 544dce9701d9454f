"""Block tables over the page pool, and the index of prefixes that pages hold."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable, Sequence, Set
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
    pages: Set[int]
    """Of the tables; none where host memory keeps them: the request was preempted, and these are its own."""
    swapped: bool = False

    @property
    def num_blocks(self) -> int:
        return len(self.tables[0])


class KVCache:
    """Gives requests pages for their tokens, one block table for each group of layers.

    `num_host_pages` in host memory can keep what preempted requests have computed.

    `windows` has one entry a group: the tokens a query sees, 0 for all. All groups have blocks of
    `block_size` tokens, so the tables of a request are equally long. Blocks are hashed in a chain from the
    request's identity, so that equal keys mean equal tokens from the first on, of requests that may share.

    `rewrites_blocks`: computing a token again gives the bits that its page holds. Where that is not sure, a
    prefix hit never ends within a block, for the page is shared.
    """

    def __init__(
        self,
        pool: PagePool,
        block_size: int,
        windows: Sequence[int],
        *,
        prefix_caching: bool,
        hash_block: HashBlock,
        rewrites_blocks: bool = True,
        num_host_pages: int = 0,
    ) -> None:
        self.pool = pool
        self.host = PagePool(num_host_pages)
        self.holders: dict[object, list[list[int]]] = {}
        """Who holds pages, with a slot or without one, and the tables that name them."""
        self._swapped: dict[Request, list[list[int]]] = {}
        self._found: dict[Request, tuple[PrefixHit, int]] = {}
        """What waiting requests have found, and how many keys had been lost then."""
        self.block_size = block_size
        self.windows = tuple(windows)
        self._slides = any(windows)
        self._prefix_caching = prefix_caching
        self._hash = hash_block
        self._rewrites_blocks = rewrites_blocks
        self._promised: dict[bytes, Request] = {}
        """Blocks that steps under way compute, and for whom."""

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def peak_pages(self, num_tokens: int, chunk: int) -> int:
        """Most pages a request of this length holds at once, of which `chunk` tokens are under way."""
        blocks = self.num_blocks(num_tokens)
        return sum(
            min(blocks, self.num_blocks(window + chunk) + 1) if window else blocks for window in self.windows
        )

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest prefix of the known tokens that every group still holds.

        At least the last token is left to compute: its logits are wanted. Of a request that was swapped out
        it is all that it had computed.
        """
        if request in self._swapped:
            return PrefixHit(request.committed, self._swapped[request], frozenset(), swapped=True)
        if not self._prefix_caching or request.wants_prompt_logprobs:
            return self._nothing
        hit, num_lost = self._found.get(request, (None, 0))
        if hit is None or self.pool.has_lost(hit.pages, num_lost) or self._grows(request, hit):
            hit = self._searched(request)
        self._found[request] = hit, self.pool.num_lost
        return hit

    def is_promised(self, request: Request, hit: PrefixHit) -> bool:
        """Whether a step under way computes the block that follows the hit, for another request.

        Requests of one prompt arrive together where a client asks for several answers: the others find it
        when the step is collected, and compute nothing twice.
        """
        if hit.swapped or not self._may_find(request, hit.num_blocks):
            return False
        return self._promised.get(self._key(request, hit.num_blocks), request) is not request

    def can_admit(self, request: Request, hit: PrefixHit, chunk: int) -> bool:
        """Whether all known tokens would fit: admitting less would only lead to preemption."""
        wanted = self.peak_pages(len(request.tokens), chunk) - len(hit.pages)
        if hit.swapped:  # also pages that drafts were granted and did not need
            wanted = max(wanted, len(_pages(hit.tables)))
        return wanted <= self.pool.num_free and wanted <= self.pool.num_free - self.pool.num_idle(hit.pages)

    def admit(self, request: Request, hit: PrefixHit) -> tuple[list[PageGrant], list[PageCopy]]:
        """Give the request the pages of its prefix hit. Call `extend` for the rest.

        Where they were swapped out it gets others, and the copies from the host that fill these.
        """
        request.granted = request.committed = hit.num_tokens
        copies: list[PageCopy] = []
        if hit.swapped:
            request.tables, copies = _moved(hit.tables, self.pool)
            self.forget(request)
        else:
            self.pool.share(hit.pages)
            request.tables = [list(table) for table in hit.tables]
            request.num_registered = request.num_promised = hit.num_blocks
        self.holders[request] = request.tables
        self._found.pop(request, None)
        grants = [PageGrant(g, request.slot, 0, list(t)) for g, t in enumerate(request.tables) if t]
        return grants, copies

    def covers(self, request: Request) -> bool:
        """Whether the request has a page for its next token, and none that has left a window."""
        return not self._slides and request.granted < len(request.tables[0]) * self.block_size

    def extend(self, request: Request, grant: int) -> list[PageGrant] | None:
        """Pages for the next `grant` tokens; None where there are too few.

        Those that have left a window are given back first.
        """
        if self._slides:
            self.trim(request)
        start = len(request.tables[0])
        if request.granted + grant <= start * self.block_size:
            return []
        missing = self.num_blocks(request.granted + grant) - start
        if missing * len(request.tables) > self.pool.num_free:
            return None
        grants = []
        for group, table in enumerate(request.tables):
            pages = self.pool.allocate(missing)
            grants.append(PageGrant(group, request.slot, start, pages))
            table += pages
        return grants

    def shrink(self, request: Request) -> None:
        """Give back the pages beyond what is granted, newest first: a grant has been withdrawn."""
        blocks = self.num_blocks(request.granted)
        for table in request.tables:
            self.pool.release(reversed(table[blocks:]))
            del table[blocks:]

    def trim(self, request: Request) -> None:
        """Give back the pages that have left the window of their group."""
        for window, table in zip(self.windows, request.tables, strict=True):
            if not window:
                continue
            gone = []
            for block in range(self._first_block(window, request.committed) - 1, -1, -1):
                if table[block] < 0:
                    break
                gone.append(table[block])
                table[block] = -1
            self.pool.release(gone)

    def promise(self, request: Request) -> None:
        """The whole blocks of known tokens that are granted will be found when their steps are collected."""
        if not self._prefix_caching:
            return
        whole = min(request.granted, len(request.tokens)) // self.block_size
        for block in range(request.num_promised, whole):
            self._promised.setdefault(self._key(request, block), request)
        request.num_promised = max(request.num_promised, whole)

    def register(self, request: Request) -> None:
        """Make the blocks that are computed and whole findable."""
        whole = request.committed // self.block_size
        if whole <= request.num_registered or not self._prefix_caching:
            return
        self._break_promises(request, whole)
        for block in range(request.num_registered, whole):
            key = self._key(request, block)
            for group, table in enumerate(request.tables):
                if table[block] >= 0:
                    self.pool.register(table[block], (group, key))
        request.num_registered = whole
        request.num_promised = max(request.num_promised, whole)

    def disown(self, request: Request) -> None:
        """Make nothing findable that this request holds: what it computed may be wrong."""
        self.pool.forget(_pages(request.tables))

    def swap_out(self, request: Request) -> list[PageCopy]:
        """Copies to the host from which the request resumes where it is; none where there is no room for all.

        `release` then takes the pages themselves back.
        """
        self.trim(request)
        if not 0 < len(_pages(request.tables)) <= self.host.num_free:
            return []
        tables, copies = _moved(request.tables, self.host)
        self._swapped[request] = tables
        return copies

    def forget(self, request: Request) -> None:
        """Free what host memory keeps of a waiting request, and what was found for it."""
        self._found.pop(request, None)
        self.host.release(_pages(self._swapped.pop(request, [])))

    @property
    def num_swapped(self) -> int:
        """Requests that host memory keeps."""
        return len(self._swapped)

    def release(self, request: Request) -> None:
        """Take all pages back. The end of a prefix is reused before its beginning."""
        self._break_promises(request, request.num_promised)
        for table in request.tables:
            self.pool.release(page for page in reversed(table) if page >= 0)
            table.clear()
        self.holders.pop(request, None)
        request.num_registered = request.num_promised = 0

    def check(self) -> None:
        """Raise RuntimeError unless every page is free or in the tables of those who hold pages."""
        self.pool.check(page for tables in self.holders.values() for page in _pages(tables))
        self.host.check(page for tables in self._swapped.values() for page in _pages(tables))

    def count(self) -> None:
        """Raise RuntimeError unless as many pages are held as those who hold pages have in their tables.

        Only counted, not walked: a walk takes 4 ms for 16 k pages, and the next request waits.
        """
        for pool, holders in ((self.pool, self.holders), (self.host, self._swapped)):
            held = sum(len(_pages(tables)) for tables in holders.values())
            if pool.num_held != held or (not held and pool.num_free != pool.num_pages):
                raise RuntimeError(f"{pool.num_held} pages are held, and tables have {held}")

    @property
    def _nothing(self) -> PrefixHit:
        return PrefixHit(0, [[] for _ in self.windows], frozenset())

    def _may_find(self, request: Request, block: int) -> bool:
        """Whether this block of the request's known tokens may be another's."""
        if not self._prefix_caching or request.wants_prompt_logprobs:
            return False
        return (block + 1) * self.block_size <= len(request.tokens) - (not self._rewrites_blocks)

    def _grows(self, request: Request, hit: PrefixHit) -> bool:
        """Whether the index has learned the block that follows what was found."""
        if not self._may_find(request, hit.num_blocks):
            return False
        key = self._key(request, hit.num_blocks)
        return all(self.pool.find((group, key)) is not None for group in range(len(self.windows)))

    def _searched(self, request: Request) -> PrefixHit:
        """One pass over the blocks, up to the first that a group without a window misses."""
        groups = range(len(self.windows))
        found: list[list[int]] = [[] for _ in groups]  # -1: not there
        runs = [0 for _ in groups]  # blocks there in a row, up to this one
        longest = 0
        for block in range(len(request.tokens) // self.block_size):
            if not self._may_find(request, block):
                break
            key = self._key(request, block)
            for group in groups:
                page = self.pool.find((group, key))
                found[group].append(-1 if page is None else page)
                runs[group] = 0 if page is None else runs[group] + 1
            if any(runs[group] <= block and not self.windows[group] for group in groups):
                break
            end = self._end(request, block + 1)
            if all(runs[group] > block - self._first_block(self.windows[group], end) for group in groups):
                longest = block + 1
        if not longest:
            return self._nothing
        end = self._end(request, longest)
        starts = [self._first_block(window, end) for window in self.windows]
        tables = [[-1] * start + found[group][start:longest] for group, start in enumerate(starts)]
        return PrefixHit(end, tables, frozenset(_pages(tables)))

    def _end(self, request: Request, blocks: int) -> int:
        """Tokens of so many blocks that a hit spares: never the last, whose logits are wanted."""
        return min(blocks * self.block_size, len(request.tokens) - 1)

    def _first_block(self, window: int, position: int) -> int:
        """The first block that a query at this position reads."""
        return max(0, position - window + 1) // self.block_size if window else 0

    def _key(self, request: Request, block: int) -> bytes:
        """Of a block of known tokens; each is hashed once, when it is first asked for."""
        keys, size = request.block_keys, self.block_size
        while len(keys) <= block:
            start = len(keys) * size
            parent = keys[-1] if keys else self._hash(b"identity", request.identity)
            keys.append(self._hash(parent, array("i", request.tokens[start : start + size]).tobytes()))
        return keys[block]

    def _break_promises(self, request: Request, end: int) -> None:
        """Blocks before `end` are found by now, or will not be."""
        for block in range(request.num_registered, min(end, request.num_promised)):
            key = self._key(request, block)
            if self._promised.get(key) is request:
                del self._promised[key]


def _pages(tables: list[list[int]]) -> list[int]:
    return [page for table in tables for page in table if page >= 0]


def _moved(tables: list[list[int]], pool: PagePool) -> tuple[list[list[int]], list[PageCopy]]:
    """Tables of the same form with new pages from `pool`, and the copies that fill these."""
    sources = _pages(tables)
    targets = pool.allocate(len(sources))
    new = iter(targets)
    moved = [[next(new) if page >= 0 else -1 for page in table] for table in tables]
    return moved, list(zip(sources, targets, strict=True))


HashBlock = Callable[[bytes, bytes], bytes]
"""The key of a block, given its parent's and its own content."""


def block_hash(name: str, secret: bytes = b"") -> HashBlock:
    """`builtin` or `sha256` (`--prefix-caching-hash-algo`).

    `builtin` is keyed by a secret, so that nobody outside can make two prompts meet; drawn here where none is
    given, and processes that are given one agree on keys.
    """
    if name == "sha256":
        return lambda parent, content: hashlib.sha256(parent + b"\0" + content).digest()
    key = hashlib.sha256(secret).digest() if secret else secrets.token_bytes(32)
    return lambda parent, content: hashlib.blake2b(parent + b"\0" + content, digest_size=16, key=key).digest()
