"""How the layers of a model share the pages of the KV cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

KVShape = tuple[int, int]
"""Key heads of a layer and their size."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers of one shape with one block table: `KVLayout.layer_place` says which.

    block_size  tokens a page
    window      tokens a query sees of those that are kept, 0 for all
    """

    block_size: int
    window: int = 0

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def most_pages(self, tokens: int, chunk: int) -> int:
        """What a request of this length holds at once, of which `chunk` tokens are under way."""
        pages = self.pages_for(tokens)
        return min(pages, self.pages_for(self.window + chunk) + 1) if self.window else pages

    def readable_from(self, position: int) -> int:
        """The first position that queries from this one on read."""
        return max(0, position - self.window + 1) if self.window else 0

    def next_trim(self, position: int) -> int:
        """The next position behind this one whose queries read one page less at the front."""
        if not self.window:
            return sys.maxsize
        return (self.readable_from(position) // self.block_size + 1) * self.block_size + self.window - 1


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Every page of the pool has `page_bytes`; how many tokens it holds is up to the group that it serves.

    Without groups nothing is kept of a request from step to step: its prompt is computed in one.
    """

    groups: tuple[KVGroup, ...]
    page_bytes: int
    layer_place: tuple[tuple[int, int], ...]
    """[layer]  its group, and its index within the group's pages"""

    @property
    def block_sizes(self) -> list[int]:
        """[group]  tokens a page"""
        return [group.block_size for group in self.groups]

    def max_blocks(self, tokens: int) -> int:
        """Entries of a block table that serves every group."""
        return max((group.pages_for(tokens) for group in self.groups), default=0)

    def pages_for(self, tokens: int) -> int:
        """Of all groups together."""
        return sum(group.pages_for(tokens) for group in self.groups)

    def tokens_in(self, pages: int) -> int:
        """The longest request, in whole pages of every group, that so many pages hold."""
        if not self.groups:
            return 0
        step = max(self.block_sizes)  # a multiple of the others
        return pages // self.pages_for(step) * step


def kv_layout(
    kinds: Sequence[tuple[int, KVShape]],
    block_size: int,
    layer_bytes: Callable[[int, int, int], int],
    num_drafting: int = 0,
    held: Sequence[KVShape] = (),
    own: range | None = None,
) -> KVLayout:
    """Deal the layers of each kind into groups whose pages are about equal.

    kinds        [layer]  tokens that are kept for a query, 0 for all; what a token takes
    block_size   least tokens a page
    layer_bytes  of key heads, their size, and tokens: of one layer in one page
    num_drafting  layers at the end, of a model that guesses: the others decide how large a page is
    held         [layer]  of a rank, what a token takes there; kinds are the whole model's, so that all ranks
                 have the same block tables, whatever each has of the heads
    own          layers of a stage, which alone have room in its pages; None: all of them. The groups, and so
                 the block tables, are those of the whole model on every stage
    A group takes as many layers as the smallest kind has, or as many as weigh the same; only the last group
    of a kind may be short. Where its layers leave room in a page, that holds 2, 4, 8 … times the tokens.
    """
    if not kinds:  # an encoder keeps nothing
        return KVLayout((), 0, ())
    of_kind: dict[tuple[int, KVShape], list[int]] = {}
    for layer, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(layer)
    weight = {kind: layer_bytes(*kind[1], block_size) for kind in of_kind}
    leading = set(kinds[: len(kinds) - num_drafting])
    least = min(len(of_kind[kind]) * weight[kind] for kind in leading)
    sizes = {kind: max(1, min(len(layers), least // weight[kind])) for kind, layers in of_kind.items()}
    page_bytes = max(sizes[kind] * weight[kind] for kind in of_kind)
    groups: list[KVGroup] = []
    places = [(0, 0)] * len(kinds)
    for (window, shape), layers in of_kind.items():
        size, block = sizes[window, shape], block_size
        while size * layer_bytes(*shape, 2 * block) <= page_bytes:
            block *= 2
        for start in range(0, len(layers), size):
            for index, layer in enumerate(layers[start : start + size]):
                places[layer] = len(groups), index
            groups.append(KVGroup(block, window))
    whole = KVLayout(tuple(groups), page_bytes, tuple(places))
    if not held and own is None:
        return whole
    shapes = held or [shape for _, shape in kinds]
    if own is not None:
        return _of_stage(whole, kinds, shapes, layer_bytes, own)
    page_bytes = max(
        sizes[kind] * layer_bytes(*shape, groups[place[0]].block_size)
        for kind, shape, place in zip(kinds, shapes, places, strict=True)
    )
    return replace(whole, page_bytes=page_bytes)


def _of_stage(
    whole: KVLayout,
    kinds: Sequence[tuple[int, KVShape]],
    shapes: Sequence[KVShape],
    layer_bytes: Callable[[int, int, int], int],
    own: range,
) -> KVLayout:
    """Its layers of each kind are dealt anew, evenly, to the groups that the whole model's have.

    shapes  [layer]  what a token takes here
    """
    groups_of: dict[tuple[int, KVShape], list[int]] = {}
    for kind, (group, _) in zip(kinds, whole.layer_place, strict=True):
        known = groups_of.setdefault(kind, [])
        if group not in known:
            known.append(group)
    counts = [0] * len(whole.groups)
    page_bytes, places = 0, []
    for layer in own:
        group = min(groups_of[kinds[layer]], key=lambda one: counts[one])
        places.append((group, counts[group]))
        counts[group] += 1
        each = layer_bytes(*shapes[layer], whole.groups[group].block_size)
        page_bytes = max(page_bytes, counts[group] * each)
    return KVLayout(whole.groups, page_bytes, tuple(places))
