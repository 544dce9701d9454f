"""Which of several engines a request goes to: by the prefixes that each has computed, and by its load.

Load is counted in tokens: those of a prompt that its engine has yet to compute, and for each open request as
many more as stand for the tokens that it makes. An engine that has a prompt's beginning is preferred by the
tokens that this spares and by `AFFINITY`: what it knows is worth a short queue, and not a long one. So a
prefix that many ask for comes to a second engine once the first is busier by that much, and from then on goes
to whichever of the two has less to do.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from slipway.engine.messages import AddRequest

REQUEST_TOKENS = 256
"""What an open request weighs beside its prompt. About the length of an answer."""
AFFINITY = 4 * REQUEST_TOKENS
"""How much busier than another an engine may be that has some of a prompt, beside the tokens it spares."""
MOST_BLOCKS = 1 << 16
"""That are remembered, some 100 bytes each; the least recently used go first."""
LONGEST_CHAIN = 512
"""Blocks of a prompt that are looked at: what agrees so far goes to the same engine anyway."""


@dataclass(slots=True)
class _Open:
    """A request that is under way."""

    place: int
    weight: int


class Balance:
    """The ledger of one API process. Pure: it hears of requests and of states, and chooses.

    Engines are known by their places, from 0. A request costs time in the length of its prompt once, and
    nothing while it runs.
    """

    def __init__(self, num_engines: int, *, by_prefix: bool = True) -> None:
        """by_prefix  engines keep prefixes"""
        self.block_size = 16
        """Tokens that a prefix cache finds together."""
        self._places = range(num_engines)
        self._by_prefix = by_prefix
        self._secret = secrets.randbits(62)
        """Nobody can make up prompts whose blocks collide."""
        self._blocks: OrderedDict[int, int] = OrderedDict()
        """By hash of a block and all before it, the places that have it, a bit each; the latest last."""
        self._open: dict[str, _Open] = {}
        self._weights = [0 for _ in self._places]
        self._num_open = [0 for _ in self._places]
        self._of_others = [0 for _ in self._places]
        """Requests of other API processes, as last heard."""
        self._given = [0 for _ in self._places]
        """Requests since the start: of engines alike, the one with fewer has more room for prefixes."""

    def __contains__(self, request_id: str) -> bool:
        """It is under way."""
        return request_id in self._open

    @property
    def num_blocks(self) -> int:
        """That are remembered."""
        return len(self._blocks)

    def load(self, place: int) -> int:
        """What the engine has to do, in tokens."""
        return self._weights[place] + REQUEST_TOKENS * self._of_others[place]

    def choose(self, request: AddRequest) -> int:
        """The place of the engine that it goes to; it is under way from now on."""
        chain = self._chain(request)
        known = self._known(chain)

        def cost(place: int) -> tuple[int, int]:
            preferred = AFFINITY + known[place] if known[place] else 0
            return self.load(place) - preferred, self._given[place]

        place = min(self._places, key=cost)
        weight = REQUEST_TOKENS + len(request.prompt_token_ids) - known[place]
        self._open[request.request_id] = _Open(place, weight)
        self._weights[place] += weight
        self._num_open[place] += 1
        self._given[place] += 1
        self._remember(chain, place)
        return place

    def where(self, request_id: str) -> int | None:
        """The place of one that is under way."""
        found = self._open.get(request_id)
        return None if found is None else found.place

    def ended(self, request_id: str) -> None:
        """One that is under way no more; unknown ones are ignored."""
        if (found := self._open.pop(request_id, None)) is not None:
            self._weights[found.place] -= found.weight
            self._num_open[found.place] -= 1

    def heard(self, place: int, num_requests: int) -> None:
        """An engine has so many requests in all."""
        self._of_others[place] = max(0, num_requests - self._num_open[place])

    def forget_prefixes(self) -> None:
        self._blocks.clear()

    def _chain(self, request: AddRequest) -> list[int]:
        """A hash of each whole block of its prompt and of all before it, as far as prefixes are shared."""
        if not self._by_prefix or request.prompt_embeds:
            return []
        tokens, size = request.prompt_token_ids, self.block_size
        ends = range(0, min(len(tokens), LONGEST_CHAIN * size) + 1, size)
        number = request.adapter.number if request.adapter else 0
        link = hash((self._secret, number, request.cache_salt))
        return [link := hash((link, *tokens[begin:end])) for begin, end in pairwise(ends)]

    def _known(self, chain: list[int]) -> list[int]:
        """Tokens at the prompt's beginning that each engine has."""
        known = [0 for _ in self._places]
        having = (1 << len(known)) - 1
        for index, link in enumerate(chain):
            still = having & self._blocks.get(link, 0)
            if still != having:
                self._enter(known, having & ~still, index)
                having = still
                if not having:
                    break
        self._enter(known, having, len(chain))
        return known

    def _enter(self, known: list[int], places: int, num_blocks: int) -> None:
        for place in self._places:
            if places >> place & 1:
                known[place] = num_blocks * self.block_size

    def _remember(self, chain: list[int], place: int) -> None:
        """The first block last: what is forgotten of a prompt is its end."""
        for link in reversed(chain):
            self._blocks[link] = self._blocks.get(link, 0) | 1 << place
            self._blocks.move_to_end(link)
        while len(self._blocks) > MOST_BLOCKS:
            self._blocks.popitem(last=False)
