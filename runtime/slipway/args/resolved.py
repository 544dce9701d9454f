"""All sources together: one value for every argument, checked, with the warnings to show."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipway import driver
from slipway.args import command_line, config_file, derive, foreign
from slipway.args.command_line import Written
from slipway.args.declare import Argument, Disposition
from slipway.args.derive import Warn
from slipway.args.errors import ArgumentError, NotBuiltError
from slipway.args.objects import check_object, merge_key
from slipway.args.rules import rules_of
from slipway.args.schema import ARGUMENTS, SERVE, Schema
from slipway.args.variables import check_variables
from slipway.envs import BY_NAME
from slipway.exits import NOT_SUPPORTED

HIDDEN = "***"
QUIET = "VLLM_NO_DEPRECATION_WARNING"
SECRETS = frozenset(name for name, argument in ARGUMENTS.items() if argument.secret)


@dataclass(frozen=True, slots=True)
class Resolved:
    """`values` has every argument but those that speak about the command (help, dry_run)."""

    values: dict[str, Any]
    given: frozenset[str]
    """Set on the command line or in the file, or by an older argument that was."""
    from_environment: frozenset[str]
    """Set by a variable, in the absence of the argument."""
    warnings: tuple[str, ...]
    dry_run: bool

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def redacted(self) -> dict[str, Any]:
        """The values without secrets, for logs and `/server_info`."""
        return {
            name: HIDDEN if name in SECRETS and value is not None else value
            for name, value in self.values.items()
        }

    def printed(self) -> dict[str, Any]:
        """What --dry-run shows: secrets as given, save those that a variable held."""
        hidden = self.from_environment & SECRETS
        return {
            name: HIDDEN if name in hidden else _as_given(name, value) for name, value in self.values.items()
        }

    def unbuilt(self) -> list[tuple[Argument, str]]:
        """Arguments whose value asks for what this release does not have, each with a sentence."""
        found = []
        for argument in _asked(self.given | self.from_environment):
            lacks, value = argument.unbuilt, self.values[argument.name]
            if lacks and not lacks.tunes and lacks.asked_by(value, argument.default):
                shown = "" if isinstance(value, bool | dict | list) else f" {value}"
                sentence = f"{argument.flag}{shown} asks for {lacks.asked(value)}: not supported yet."
                found.append((argument, sentence))
        return found

    def refuse_unbuilt(self) -> None:
        """Raises NotBuiltError where `unbuilt` finds something; a real start calls it."""
        found = self.unbuilt()
        if found:
            sentences = [sentence for _, sentence in found]
            raise NotBuiltError("\n".join(sentences), found[0][0].name)


def resolve(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    dry_run: bool | None = None,
    schema: Schema = SERVE,
) -> Resolved:
    """Parse, merge and cross-check. Reads no file but --config and --chat-template.

    Raises ArgumentError for what is malformed, out of range, contradictory or refused, and
    InvalidEnvironment for a malformed variable; exit 2.
    """
    written, file = _sources(argv, environ, schema)
    warnings: dict[str, None] = {}  # ordered, and each only once

    def warn(sentence: str) -> None:
        warnings[sentence] = None

    values = _merged({**ARGUMENTS, **schema.arguments}, file, written, warn)
    given = set(file.given | written.given)
    if dry_run is None:
        dry_run = bool(values["dry_run"])
    if not schema.of_engine:
        own = {name: values[name] for name, one in schema.arguments.items() if not one.about_command}
        return Resolved(own, frozenset(given & own.keys()), frozenset(), tuple(warnings), dry_run)
    foreign.judge({**file.foreign, **written.foreign}, warn)
    _warn_of_secrets(written, warn)
    from_environment = derive.apply_twins(values, given, environ, warn)
    derive.resolve_model(values, file.given - written.given, warn)
    derive.apply_parts(values, given)
    derive.apply_task(values, given)
    derive.apply_replacements(values, given, _quiet if BY_NAME[QUIET].parse(environ.get(QUIET)) else warn)
    derive.split_options(values, given)
    derive.imply_nodes(values, given | from_environment, environ)
    if "cuda_graph_sizes" in given:
        values["cuda_graph_sizes"] = derive.expand_graph_sizes(values["cuda_graph_sizes"])
    _check_template(values["chat_template"])
    _apply_dispositions(values, given, warn)
    _warn_of_hollow(values, given | from_environment, warn)
    for rule in rules_of(schema):
        sentence = rule.finds(values, frozenset(given))
        if sentence and not rule.warns:
            raise ArgumentError(sentence, rule.argument)
        if sentence:
            warn(sentence)
    check_variables(values, environ, warn)
    shown = {name: values[name] for name, argument in schema.arguments.items() if not argument.about_command}
    resolved = Resolved(shown, frozenset(given & shown.keys()), from_environment & shown.keys(), (), dry_run)
    unbuilt = resolved.unbuilt() if dry_run else []
    for _, sentence in unbuilt:
        warn(sentence)
    if unbuilt:
        code, reason = NOT_SUPPORTED.code, NOT_SUPPORTED.reason
        warn(f"A real start ends with exit status {code} ({reason}): the above is not supported yet.")
    return replace(resolved, warnings=tuple(warnings))


def _as_given(name: str, value: Any) -> Any:
    """One secret of those that may be several is no list."""
    return value[0] if name in SECRETS and isinstance(value, list) and len(value) == 1 else value


def _asked(names: frozenset[str]) -> list[Argument]:
    return [argument for argument in ARGUMENTS.values() if argument.name in names]


def _merged(arguments: Mapping[str, Argument], file: Written, written: Written, warn: Warn) -> dict[str, Any]:
    """Command line over file over default; single keys over whole objects of the same source."""
    values: dict[str, Any] = {}
    for name, argument in arguments.items():
        place = written.places.get(name) or file.places.get(name) or argument.flag
        if name in written.values:
            value, sources = written.values[name], (written,)
        else:
            value, sources = file.values.get(name), (file, written)  # type: ignore[assignment]
        keys = [source.keys[name] for source in sources if name in source.keys]
        if keys:
            value = copy.deepcopy(value or {})
            for partial in keys:
                _merge(value, partial)
        elif name not in written.values and name not in file.values:
            values[name] = copy.deepcopy(argument.default)
            continue
        if argument.is_list and isinstance(value, list):
            value = [
                check_object(argument, item, place, warn) if isinstance(item, dict) else item
                for item in value
            ]
            _check_items(argument, value, place)
        elif isinstance(value, dict):
            value = check_object(argument, value, place, warn)
        values[name] = value
    return values


def _check_items(argument: Argument, items: list[Any], place: str) -> None:
    for item in items:
        for key in argument.item_pair or ():
            if key not in item:
                raise ArgumentError(f"{place} {item} has no {key}.", argument.name)


def _merge(target: dict[str, Any], partial: dict[str, Any], path: tuple[str, ...] = ()) -> None:
    for name, value in partial.items():
        if isinstance(value, dict) and value:
            _merge(target, value, (*path, name))
        else:
            merge_key(target, (*path, name), value)


def _warn_of_secrets(written: Written, warn: Warn) -> None:
    for argument in ARGUMENTS.values():
        if argument.secret and isinstance(written.values.get(argument.name), str | list):
            warn(
                f"{argument.flag} on the command line can be read by every user of this machine. "
                f"Put it into the environment variable {argument.twins[0]}."
            )


def _check_template(template: str | None) -> None:
    """A template in place has braces; anything else must be a file."""
    if template is not None and "{" not in template and not os.path.isfile(template):
        raise ArgumentError(
            f"--chat-template {template!r} is neither a file nor a template: it has no braces. "
            "Check the path.",
            "chat_template",
        )


def given_in(argv: Sequence[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Names of the arguments that a command line of `slipway serve`, or its --config, has. Raises
    ArgumentError."""
    written, file = _sources(argv, environ, SERVE)
    return written.given | file.given


def _sources(argv: Sequence[str], environ: Mapping[str, str], schema: Schema) -> tuple[Written, Written]:
    """The command line, and the file that it names."""
    written = command_line.parse(argv, schema)
    named = written.values.get("config")
    if not named:
        return written, Written()
    folder = str(BY_NAME["VLLM_CONFIG_ROOT"].parse(environ.get("VLLM_CONFIG_ROOT")))
    return written, config_file.read(config_file.found(named, folder), schema)


def _quiet(sentence: str) -> None:
    """Says nothing."""


def _on_cuda(device: str) -> bool:
    """Whether the engine will compute on CUDA, as far as this can be told without torch's seconds."""
    return device == "cuda" or (device == "auto" and driver.loaded())


def _apply_dispositions(values: dict[str, Any], given: set[str], warn: Warn) -> None:
    for argument in _asked(frozenset(given)):
        value = values[argument.name]
        if argument.disposition is Disposition.REFUSE:
            raise ArgumentError(f"{argument.flag} is refused: {argument.reason}.", argument.name)
        if argument.disposition is Disposition.WARN:
            warn(f"{argument.flag} has no effect: {argument.reason}.")
        elif argument.cuda_only and value not in (None, argument.default) and not _on_cuda(values["device"]):
            warn(f"{argument.flag} has no effect on CPU: it acts on CUDA only.")
        elif argument.acting_keys and (idle := _idle_keys(argument, value)):
            acting = ", ".join(argument.acting_keys)
            warn(
                f"{argument.flag} has no effect by {', '.join(idle)}: {argument.reason}; "
                f"what acts is {acting}."
            )
        elif argument.unbuilt and argument.unbuilt.tunes and value != argument.default:
            warn(f"{argument.flag} has no effect: {argument.unbuilt.idle}.")


def _warn_of_hollow(values: Mapping[str, Any], named: set[str], warn: Warn) -> None:
    """Of values that mean the default, whether an argument or its variable has them."""
    for argument in _asked(frozenset(named)):
        value = values[argument.name]
        if isinstance(value, str) and (reason := argument.hollow.get(value)):
            warn(f"{argument.flag} {value} has no effect: {reason}.")


def _idle_keys(argument: Argument, value: Mapping[str, Any]) -> list[str]:
    """Keys that ask for something and have no effect."""
    asked = [key for key, inner in value.items() if inner != argument.default.get(key)]
    return [key for key in asked if key not in argument.acting_keys]
