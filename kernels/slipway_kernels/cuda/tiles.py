"""Tiles: how much of an operation a program takes, and with how many warps, chosen in Python from tables.

No kernel is tuned at run time, so that a server starts in seconds and every kernel that it can launch has
been compiled beforehand, by `slipway_kernels.cuda.ahead`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

ARCHITECTURES = (80, 90, 100)
"""Compute capabilities, times ten, that the tile tables speak of: Ampere, Hopper, Blackwell."""


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """One row of an operation's tile table; no two are equal.

    arch       smallest architecture that it is for: a device takes the rows of the largest that it reaches
    constants  the kernel's compile-time sizes
    when       what must hold: a number is an upper bound of that fact, a string must equal it
    spills     why this row may spill registers; empty where it may not
    fuses      whether a · b + c may become one operation, rounded once; False where every bit is defined
    """

    arch: int
    constants: Mapping[str, int]
    num_warps: int = 4
    num_stages: int = 2
    when: Mapping[str, int | str] = field(default_factory=dict)
    spills: str = ""
    fuses: bool = True

    def fits(self, facts: Mapping[str, int | str]) -> bool:
        return all(
            facts[name] == bound if isinstance(bound, str) else int(facts[name]) <= bound
            for name, bound in self.when.items()
        )


def pick(tiles: Sequence[Tile], arch: int, **facts: int | str) -> Tile:
    """The first row that fits. Raises ValueError where the table has none.

    Remembered: to look again took a quarter of what an operation takes in Python, which a step of short
    prompts waits for.
    """
    return _picked(tuple(tiles), arch, tuple(facts.items()))


@lru_cache(maxsize=4096)
def _picked(tiles: tuple[Tile, ...], arch: int, known_facts: tuple[tuple[str, int | str], ...]) -> Tile:
    facts = dict(known_facts)
    known = max((tile.arch for tile in tiles if tile.arch <= arch), default=0)
    for tile in tiles:
        if tile.arch == known and tile.fits(facts):
            return tile
    raise ValueError(
        f"no tile for {', '.join(f'{name} {value}' for name, value in facts.items())} on sm_{arch}: "
        "this kernel does not compute that size there."
    )
