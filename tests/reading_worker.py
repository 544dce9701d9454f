"""A worker without a model whose pages hold something, so that a wrong page shows."""

from __future__ import annotations

from collections.abc import Sequence

from slipway.engine.executor import NullWorker
from slipway.engine.plan import Masks, StepOutput, StepPlan
from slipway.model.kv import KVGroup


class ReadingWorker(NullWorker):
    """Writes a hash of all tokens so far where a model would write keys and values, and reads what it would.

    Raises ValueError where a position that a query sees holds anything else.
    """

    def __init__(self, num_slots: int, groups: Sequence[KVGroup]) -> None:
        super().__init__(num_slots)
        self._groups = tuple(groups)
        self._hashes: list[list[int]] = [[] for _ in range(num_slots)]
        """[slot][position]  of the tokens up to there"""
        self._pages: dict[int, dict[int, int]] = {}
        self._host: dict[int, dict[int, int]] = {}

    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
        for page, host_page in plan.swap_out:
            self._host[host_page] = dict(self._pages[page])
        for host_page, page in plan.swap_in:
            self._pages[page] = dict(self._host[host_page])
        for start in plan.starts:
            self._hashes[start.slot] = []
            for token in start.tokens:
                self._learn(start.slot, token)
        starts = dict(zip(plan.slots, (self.computed[slot] for slot in plan.slots), strict=True))
        starts |= {start.slot: start.num_computed for start in plan.starts if start.slot in starts}
        output = super().step(plan)
        for slot, num_new, tokens in zip(plan.slots, plan.num_new, output.tokens, strict=True):
            for token in tokens[:-1]:  # drafts that were accepted are computed in the same step
                self._learn(slot, token)
            self._compute(slot, range(starts[slot], self.computed[slot]))
            self._write_wrong(slot, range(self.computed[slot], starts[slot] + num_new))
            for token in tokens[-1:]:
                self._learn(slot, token)
        return output

    def _learn(self, slot: int, token: int) -> None:
        known = self._hashes[slot]
        known.append(hash((known[-1] if known else 0, token)))

    def _write_wrong(self, slot: int, positions: range) -> None:
        """Drafts that were rejected have left keys and values, which nobody may read."""
        for number, group in enumerate(self._groups):
            table, size = self.tables[slot][number], group.block_size
            for position in positions:
                self._pages.setdefault(table[position // size], {})[position % size] = -1

    def _compute(self, slot: int, positions: range) -> None:
        known = self._hashes[slot]
        for number, group in enumerate(self._groups):
            table, size = self.tables[slot][number], group.block_size
            for position in positions:
                self._pages.setdefault(table[position // size], {})[position % size] = known[position]
            seen = max(0, positions[0] - group.window + 1) if group.window else 0
            for position in range(seen, positions[-1] + 1):
                if self._pages[table[position // size]].get(position % size) != known[position]:
                    raise ValueError(f"slot {slot} reads position {position} of group {number}: not its own")
