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


def _of_a_server(name: str, why: str) -> Rule:
    def finds(values: Values, given: Given) -> str | None:
        return f"{flag(name)} has no effect in a batch: {why}" if name in given else None

    return Rule(name, finds, warns=True)


BATCH_RULES: tuple[Rule, ...] = (
    _missing("input_file"),
    _missing("output_file"),
    *(without_effect(a, needed) for a in RUN_BATCH.groups[0].arguments for needed in a.no_effect_without),
    Rule("output_tmp_dir", _folder_for_a_url, warns=True),
    _of_a_server("drain_grace", "no request arrives. --drain-timeout is for those under way."),
    _of_a_server("idle_check_interval", "it is about what probes are answered."),
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
