"""Rules that commands beside `slipway serve` add."""

from __future__ import annotations

from slipway.args.rules.rule import Given, Rule, Values, flag, without_effect
from slipway.args.schema import OF_ANSWERS, RUN_BATCH


def _missing(name: str) -> Rule:
    argument = RUN_BATCH.arguments[name]

    def finds(values: Values, given: Given) -> str | None:
        return None if values[name] else f"{argument.flag} is missing: a path, or an http(s) URL."

    return Rule(name, finds)


def _folder_for_a_url(values: Values, given: Given) -> str | None:
    if values["output_tmp_dir"] is None or str(values["output_file"]).startswith(("http://", "https://")):
        return None
    return "--output-tmp-dir has no effect: --output-file is no URL, and grows in its own place."


def _nothing_arrives(values: Values, given: Given) -> str | None:
    if "drain_grace" not in given:
        return None
    return (
        "--drain-grace has no effect in a batch: no request arrives. --drain-timeout is for those under way."
    )


def _nobody_probes(values: Values, given: Given) -> str | None:
    return (
        "--idle-check-interval has no effect in a batch: it is about what probes are answered."
        if "idle_check_interval" in given
        else None
    )


BATCH_RULES: tuple[Rule, ...] = (
    _missing("input_file"),
    _missing("output_file"),
    *(without_effect(a, needed) for a in RUN_BATCH.groups[0].arguments for needed in a.no_effect_without),
    Rule("output_tmp_dir", _folder_for_a_url, warns=True),
    Rule("drain_grace", _nothing_arrives, warns=True),
    Rule("idle_check_interval", _nobody_probes, warns=True),
)
"""What `slipway run-batch` adds."""


def _nothing_answers(name: str) -> Rule:
    def finds(values: Values, given: Given) -> str | None:
        if name not in given:
            return None
        return (
            f"{flag(name)} has no effect in this measurement: it is about what a server answers or tells, "
            "and an engine alone is measured."
        )

    return Rule(name, finds, warns=True)


MEASUREMENT_RULES: tuple[Rule, ...] = tuple(map(_nothing_answers, OF_ANSWERS))
"""What the measurements of an engine add."""
