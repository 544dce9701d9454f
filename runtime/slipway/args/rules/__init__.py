"""What arguments must be to each other. One list: the command line checks it, the CRD carries its CEL."""

from __future__ import annotations

from slipway.args.rules.commands import BATCH_RULES, MEASUREMENT_RULES
from slipway.args.rules.data_parallel import DATA_PARALLEL
from slipway.args.rules.engine import ENGINE
from slipway.args.rules.frontend import FRONTEND
from slipway.args.rules.parallel import PARALLEL
from slipway.args.rules.rule import Rule, known_or_plugin, needs, without_effect
from slipway.args.rules.speculation import SPECULATION
from slipway.args.schema import ARGUMENTS, RUN_BATCH, Schema

RULES: tuple[Rule, ...] = (
    *(needs(a, needed) for a in ARGUMENTS.values() for needed in a.requires),
    *(known_or_plugin(a) for a in ARGUMENTS.values() if a.extended_by),
    *ENGINE,
    *PARALLEL,
    *DATA_PARALLEL,
    *SPECULATION,
    *FRONTEND,
    *(without_effect(a, needed) for a in ARGUMENTS.values() for needed in a.no_effect_without),
)


def rules_of(schema: Schema) -> tuple[Rule, ...]:
    """All that hold for a command with an engine's arguments."""
    if schema is RUN_BATCH:
        return (*RULES, *BATCH_RULES)
    return (*RULES, *MEASUREMENT_RULES) if schema.command.startswith("bench ") else RULES
