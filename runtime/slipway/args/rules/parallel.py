"""Rules of ranks, nodes and copies of the engine."""

from __future__ import annotations

from slipway.args.rules.rule import Rule, at_most

PARALLEL: tuple[Rule, ...] = (
    at_most("data_parallel_size_local", "data_parallel_size", "the local copies are part of all."),
)
