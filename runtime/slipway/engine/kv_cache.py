"""Block tables over the page pool, and the index of prefixes that pages hold."""

from __future__ import annotations

import bisect
import hashlib
import math
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from slipway.engine.page_pool import PagePool
from slipway.engine.plan import PageCopy, PageGrant
from slipway.engine.request import Request
from slipway.model.kv import KVGroup


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Computed pages found for a request, which spare it the tokens `[0, num_tokens)`."""

    num_tokens: int
    tables: list[list[int]]
    """[group][block]  -1 before a sliding group's window"""
    pages: Set[int]
    """Of the tables; none where host memory keeps them: the request was preempted, and these are its own."""
    end: int = 0
    """Of the tokens that the pages hold: the last one of a whole prompt is not spared."""
    swapped: bool = False


class KVCache:
    """Gives requests pages for their tokens, one block table for each group of layers.

    Groups share the pool; how many tokens a page holds is each group's own. Tokens are hashed
    `hash_block_size` at a time, which divides every group's page, in a chain from the request's identity: so
    equal keys mean equal tokens from the first on, of requests that may share. A page's key is its group, the
    number of its request's adapter, and the key where it ends.

    `num_host_pages` in host memory can keep what preempted requests have computed.

    `rewrites_blocks`: computing a token again gives the bits that its page holds. Where that is not sure, a
    prefix hit never ends within a block for the sake of the last token, for the page is shared.

    `num_recomputed`: so many last tokens of a prefix hit are computed again, as what guesses goes on from
    their rows, and written again; of what was swapped out, too, unless a window has left what they read.
    """

    def __init__(
        self,
        pool: PagePool,
        groups: Sequence[KVGroup],
        *,
        prefix_caching: bool,
        hash_block: HashBlock,
        rewrites_blocks: bool = True,
        num_recomputed: int = 0,
        num_host_pages: int = 0,
    ) -> None:
        self.pool = pool
        self.host = PagePool(num_host_pages)
        self.holders: dict[object, list[list[int]]] = {}
        """Who holds pages, with a slot or without one, and the tables that name them."""
        self.swapped: dict[Request, list[list[int]]] = {}
        """Waiting requests that host memory keeps, and the tables of its pages."""
        self._found: dict[Request, tuple[PrefixHit, int]] = {}
        """What waiting requests have found, and how many keys had been lost then."""
        self.groups = tuple(groups)
        self.hash_block_size = math.gcd(*(group.block_size for group in groups)) or 1
        self._resumable = math.lcm(*(group.block_size for group in groups))
        """A request can go on behind pages of another at multiples of it: only whole ones are shared."""
        self._prefix_caching = prefix_caching and len(self.groups) > 0
        self._hash = hash_block
        self._rewrites_blocks = rewrites_blocks
        self._num_recomputed = num_recomputed
        self._promised: dict[bytes, Request] = {}
        """Blocks that steps under way compute, and for whom."""

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest prefix of the known tokens that every group still holds, if any.

        At least the last token is left to compute: its logits are wanted. Of a request that was swapped out
        it is all that it had computed, less what is computed again.
        """
        if request in self.swapped:
            return self._kept(request)
        hit, num_lost = self._found.get(request, (None, 0))
        if hit is None or self.pool.has_lost(hit.pages, num_lost) or self._grows(request, hit):
            hit = self._searched(request)
        self._found[request] = hit, self.pool.num_lost
        return hit

    def is_promised(self, request: Request, hit: PrefixHit) -> bool:
        """Whether a step under way computes what would make the hit longer, for another request.

        Requests of one prompt arrive together where a client asks for several answers: the others find it
        when the step is collected, and compute nothing twice.
        """
        end = self._next_end(hit.end)
        if hit.swapped or not self._may_find(request, end):
            return False
        return self._promised.get(self._key(request, end), request) is not request

    def pages_needed(self, request: Request, hit: PrefixHit, chunk: int, most: int) -> int:
        """Free pages that all known tokens of a waiting request take, with those of its hit; counted up to
        `most`. `chunk` tokens are under way at once."""
        length = len(request.tokens)
        needed = sum(group.most_pages(length, chunk) for group in self.groups) - len(hit.pages)
        if hit.swapped:  # also pages that drafts were granted and did not need
            needed = max(needed, len(_pages(hit.tables)))
        return needed if needed > most else needed + self.pool.num_idle(hit.pages)

    def pages_to_come(self, request: Request, chunk: int) -> int:
        """Pages that the known tokens of a running request take beyond those that it has."""
        length = len(request.tokens)
        return sum(
            max(0, group.most_pages(length, chunk) - (len(table) - _num_left_behind(group, table)))
            for group, table in zip(self.groups, request.tables, strict=True)
        )

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
            request.num_registered = request.num_promised = hit.end
        self.holders[request] = request.tables
        self._found.pop(request, None)
        request.capacity = self._reach(request)
        request.next_trim = self._next_trim(request)
        grants = [PageGrant(g, request.slot, 0, list(t)) for g, t in enumerate(request.tables) if t]
        return grants, copies

    def covered(self, requests: list[Request]) -> tuple[list[Request], list[Request]]:
        """Those that have pages for their next token and none that has left a window, and the others."""
        covered: list[Request] = []
        others: list[Request] = []
        for request in requests:
            quiet = request.granted < request.capacity and request.committed < request.next_trim
            (covered if quiet else others).append(request)
        return covered, others

    def extend(self, request: Request, grant: int) -> list[PageGrant] | None:
        """Pages for the next `grant` tokens; None where there are too few.

        Those that have left a window are given back first.
        """
        if request.committed >= request.next_trim:
            self.trim(request)
        end = request.granted + grant
        if end <= request.capacity:
            return []
        tables = zip(self.groups, request.tables, strict=True)
        missing = [max(0, -(-end // group.block_size) - len(table)) for group, table in tables]
        if sum(missing) > self.pool.num_free:
            return None
        grants = []
        for number, (table, count) in enumerate(zip(request.tables, missing, strict=True)):
            if count:
                pages = self.pool.allocate(count)
                grants.append(PageGrant(number, request.slot, len(table), pages))
                table += pages
        request.capacity = self._reach(request)
        return grants

    def trim(self, request: Request) -> None:
        """Give back the pages that have left the window of their group."""
        for group, table in zip(self.groups, request.tables, strict=True):
            gone = []
            for block in range(group.readable_from(request.committed) // group.block_size - 1, -1, -1):
                if table[block] < 0:
                    break
                gone.append(table[block])
                table[block] = -1
            self.pool.release(gone)
        request.next_trim = self._next_trim(request)

    def promise(self, request: Request) -> None:
        """What is granted of the known tokens will be found when its steps are collected."""
        if not self._prefix_caching:
            return
        for end in self._ends(request.num_promised, min(request.granted, len(request.tokens))):
            self._promised.setdefault(self._key(request, end), request)
            request.num_promised = end

    def next_block(self, request: Request) -> int:
        """Positions committed at which `register` will find more."""
        return request.num_registered + self.hash_block_size if self._prefix_caching else sys.maxsize

    def register(self, request: Request) -> None:
        """Make the pages that are computed and full findable."""
        if request.committed < self.next_block(request):
            return
        whole = request.committed - request.committed % self.hash_block_size
        self._break_promises(request, whole)
        for number, (group, table) in enumerate(zip(self.groups, request.tables, strict=True)):
            size = group.block_size
            for block in range(request.num_registered // size, whole // size):
                if table[block] >= 0:
                    self.pool.register(table[block], self._page_key(number, request, (block + 1) * size))
        request.num_registered = whole
        request.num_promised = max(request.num_promised, whole)

    def swap_out(self, request: Request) -> list[PageCopy]:
        """Copies to the host from which the request resumes where it is; none where there is no room for all.

        Pages beyond what is granted, or before a window, are given back first; `release` takes the others.
        """
        for group, table in zip(self.groups, request.tables, strict=True):
            granted = group.pages_for(request.granted)
            self.pool.release(reversed(table[granted:]))
            del table[granted:]
        self.trim(request)
        if not 0 < len(_pages(request.tables)) <= self.host.num_free:
            return []
        tables, copies = _moved(request.tables, self.host)
        self.swapped[request] = tables
        return copies

    def forget(self, request: Request) -> None:
        """Free what host memory keeps of a waiting request, and what was found for it."""
        self._found.pop(request, None)
        self.host.release(_pages(self.swapped.pop(request, [])))

    def release(self, request: Request, *, failed: bool = False) -> None:
        """Take all pages back. The end of a prefix is reused before its beginning.

        Where the request failed none of them is findable any more: what it computed may be wrong.
        """
        if failed:
            self.pool.forget(_pages(request.tables))
        self._break_promises(request, request.num_promised)
        for table in request.tables:
            self.pool.release(page for page in reversed(table) if page >= 0)
            table.clear()
        self.holders.pop(request, None)
        request.num_registered = request.num_promised = 0

    def forget_prefixes(self, adapters: Set[int] = frozenset()) -> None:
        """Make all that is computed findable no more, or what was with one of these adapters, by number."""
        if adapters:
            self.pool.forget_keys(lambda key: key[1] in adapters)
        else:
            self.pool.forget_all()

    def check(self) -> None:
        """Raise RuntimeError unless every page is free or in the tables of those who hold pages."""
        self.pool.check(page for tables in self.holders.values() for page in _pages(tables))
        self.host.check(page for tables in self.swapped.values() for page in _pages(tables))

    def count(self) -> None:
        """Raise RuntimeError unless as many pages are held as those who hold pages have in their tables.

        Only counted, not walked: a walk takes 4 ms for 16 k pages, and the next request waits.
        """
        for pool, holders in ((self.pool, self.holders), (self.host, self.swapped)):
            held = sum(len(_pages(tables)) for tables in holders.values())
            if pool.num_held != held or (not held and pool.num_free != pool.num_pages):
                raise RuntimeError(f"{pool.num_held} pages are held, and tables have {held}")

    def _reach(self, request: Request) -> int:
        """Positions that its pages reach in every group."""
        tables = zip(self.groups, request.tables, strict=True)
        return min([len(table) * group.block_size for group, table in tables], default=sys.maxsize)

    def _next_trim(self, request: Request) -> int:
        """Positions committed at which a group has pages to give back."""
        return min((group.next_trim(request.committed) for group in self.groups), default=sys.maxsize)

    def _may_find(self, request: Request, end: int) -> bool:
        """Whether the request's known tokens up to `end` may be another's."""
        return end <= self._most_findable(request)

    def _next_end(self, end: int) -> int:
        """The next position from which every group can go on behind pages of another request."""
        return end - end % self._resumable + self._resumable

    def _grows(self, request: Request, hit: PrefixHit) -> bool:
        """Whether the index has learned what follows what was found."""
        end = self._next_end(hit.end)
        if not self._may_find(request, end):
            return False
        keys = (self._page_key(number, request, end) for number in range(len(self.groups)))
        return all(self.pool.find(key) is not None for key in keys)

    def _kept(self, request: Request) -> PrefixHit:
        """What host memory has of it."""
        tables, first = self.swapped[request], self._first_blocks(request, request.committed)
        whole = all(page >= 0 for table, begin in zip(tables, first, strict=True) for page in table[begin:])
        count = self._spared(request, request.committed) if whole else request.committed
        return PrefixHit(count, tables, frozenset(), swapped=True)

    def _searched(self, request: Request) -> PrefixHit:
        """First what groups without a window have from the beginning on, which bounds the others; then the
        longest end at which each of these has its window."""
        end = self._most_findable(request)
        found: list[list[int]] = [[] for _ in self.groups]
        for number, group in enumerate(self.groups):
            if not group.window:
                found[number] = self.pool.find_run(self._page_keys(number, request, end))
                end = min(end, len(found[number]) * group.block_size)
        end -= end % self._resumable
        gaps: list[list[int]] = [[] for _ in self.groups]
        for number, group in enumerate(self.groups):
            if group.window:
                pages = found[number] = self.pool.find_all(self._page_keys(number, request, end))
                gaps[number] = [block for block, page in enumerate(pages) if page < 0]
        while end and not self._has_windows(request, end, gaps):
            end -= self._resumable
        tables = [
            [-1] * start + pages[start : end // group.block_size]
            for group, pages, start in zip(self.groups, found, self._first_blocks(request, end), strict=True)
        ]
        return PrefixHit(self._spared(request, end), tables, frozenset(_pages(tables)), end)

    def _has_windows(self, request: Request, end: int, gaps: list[list[int]]) -> bool:
        """Whether no group misses a page that a request reads which goes on from here.

        gaps  [group]  blocks that are not there, ascending
        """
        for group, first, missing in zip(self.groups, self._first_blocks(request, end), gaps, strict=True):
            place = bisect.bisect_left(missing, first)
            if place < len(missing) and missing[place] < end // group.block_size:
                return False
        return True

    def _most_findable(self, request: Request) -> int:
        """Tokens of which another may have the pages, in whole blocks of the hash."""
        if not self._prefix_caching or request.wants_prompt_logprobs:
            return 0
        most = len(request.tokens) - (not self._rewrites_blocks)
        return most - most % self.hash_block_size

    def _first_blocks(self, request: Request, end: int) -> list[int]:
        """[group]  the first block that a request reads which goes on behind a hit that ends here"""
        return [group.readable_from(self._spared(request, end)) // group.block_size for group in self.groups]

    def _spared(self, request: Request, end: int) -> int:
        """The tokens that a hit of this length spares: never the last known, whose logits are wanted."""
        return max(0, min(end - self._num_recomputed, len(request.tokens) - 1))

    def _page_key(self, group: int, request: Request, end: int) -> tuple[int, int, bytes]:
        """Of the page whose block ends there."""
        return group, request.adapter_number, self._key(request, end)

    def _page_keys(self, group: int, request: Request, end: int) -> Iterator[tuple[int, int, bytes]]:
        """Of the pages up to `end`, from the first on, each hashed when it is asked for."""
        size, adapter = self.groups[group].block_size, request.adapter_number
        return ((group, adapter, self._key(request, last)) for last in range(size, end + 1, size))

    def _key(self, request: Request, end: int) -> bytes:
        """Of the known tokens up to `end`; each is hashed once, when it is first asked for."""
        keys, size = request.block_keys, self.hash_block_size
        while len(keys) * size < end:
            start = len(keys) * size
            parent = keys[-1] if keys else self._hash(b"identity", request.identity)
            keys.append(self._hash(parent, request.tokens[start : start + size].tobytes()))
        return keys[end // size - 1]

    def _ends(self, start: int, end: int) -> range:
        """The ends of the hash blocks in between."""
        return range(start + self.hash_block_size, end + 1, self.hash_block_size)

    def _break_promises(self, request: Request, end: int) -> None:
        """What comes before `end` is found by now, or will not be."""
        for block_end in self._ends(request.num_registered, min(end, request.num_promised)):
            key = self._key(request, block_end)
            if self._promised.get(key) is request:
                del self._promised[key]


def _num_left_behind(group: KVGroup, table: list[int]) -> int:
    """Blocks at the beginning of a table whose pages have left the window."""
    return bisect.bisect_left(table, True, key=lambda page: page >= 0) if group.window else 0


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
    begun = hashlib.blake2b(digest_size=16, key=key)  # which has digested the key: half of the work

    def keyed(parent: bytes, content: bytes) -> bytes:
        block = begun.copy()
        block.update(parent + b"\0" + content)
        return block.digest()

    return keyed
