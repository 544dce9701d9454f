"""What follows from one argument for another, before the rules look at them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from slipway.args import values as parsing
from slipway.args.data_parallel import copies_of_node
from slipway.args.declare import Argument, Kind
from slipway.args.errors import ArgumentError
from slipway.args.schema import ARGUMENTS
from slipway.envs import BY_NAME, Launched

Warn = Callable[[str], None]
Values = dict[str, Any]

OLD_DEFAULT_MODEL = "facebook/opt-125m"


def apply_twins(values: Values, given: set[str], environ: Mapping[str, str], warn: Warn) -> frozenset[str]:
    """Take what a variable says where the argument was not given. Returns the names of these."""
    taken = set()
    for argument in ARGUMENTS.values():
        variable = next((name for name in argument.twins if _says_something(name, environ)), None)
        if variable is None:
            continue
        meant = parsing.from_text(argument, _spelled(argument, environ[variable]), variable)
        meant = [meant] if argument.is_list else meant
        if argument.name not in given:
            values[argument.name] = meant
            taken.add(argument.name)
        elif values[argument.name] != meant:
            shown = "" if argument.secret else f" {values[argument.name]}"
            hidden = "" if argument.secret else f"={environ[variable]}"
            warn(f"{argument.flag}{shown} wins over {variable}{hidden}.")
    return frozenset(taken)


def _says_something(name: str, environ: Mapping[str, str]) -> bool:
    text = environ.get(name, "")
    return bool(text) and not BY_NAME[name].is_link(text)


def _spelled(argument: Argument, text: str) -> str:
    """Choices in a variable are written in any case."""
    return next((choice for choice in argument.choices if choice.lower() == text.lower()), text)


def resolve_model(values: Values, in_file: frozenset[str], warn: Warn) -> None:
    """The positional wins over --model and the command line over the file; both end up the same."""
    tag, model = values["model_tag"], values["model"]
    if tag is not None and model is not None:
        same_source = ("model_tag" in in_file) == ("model" in in_file)
        if not same_source and "model_tag" in in_file:
            tag = model
        elif same_source and tag != model:
            warn(f"The model is {tag}: named by itself, it wins over --model {model}.")
    resolved = model if tag is None else tag
    if resolved is None:
        raise ArgumentError(
            "There is no model. Name it with --model, as model in the configuration file, or after "
            "`slipway serve`, in front of arguments that take several words. vLLM's older servers took "
            f"{OLD_DEFAULT_MODEL} then; Slipway takes none, rather than serve a toy that nobody asked for.",
            "model",
        )
    values["model"] = values["model_tag"] = resolved
    if resolved.endswith(".gguf") and values["load_format"] == "auto":
        values["load_format"] = "gguf"


def apply_parts(values: Values, given: set[str]) -> None:
    """What keys of an object say of other arguments. Raises ArgumentError."""
    for argument in ARGUMENTS.values():
        for key, name in argument.parts.items() if argument.name in given else ():
            if key not in (values[argument.name] or {}):
                continue
            value, target = values[argument.name][key], ARGUMENTS[name]
            if target.choices and not target.open_choices and value not in target.choices:
                known = ", ".join(target.choices)
                message = f"{argument.flag}.{key} {value!r} is not one of {known}."
                raise ArgumentError(message, argument.name)
            if name in given and values[name] != value:
                message = f"{argument.flag}.{key} {value} contradicts {target.flag} {values[name]}. Drop one."
                raise ArgumentError(message, argument.name)
            values[name] = value
            given.add(name)


def apply_task(values: Values, given: set[str]) -> None:
    """What --runner and --convert say is --task. Raises ArgumentError where they contradict it."""
    runner, convert = values["runner"], values["convert"]
    if convert in ("embed", "classify"):
        meant, said = convert, f"--convert {convert}"
        if runner not in ("auto", "pooling"):
            raise ArgumentError(f"{said} pools, and --runner {runner} does not. Drop one.", "convert")
    elif runner != "auto":
        meant, said = runner, f"--runner {runner}"
    else:
        return
    if why := ARGUMENTS["task"].refused.get(meant):
        raise ArgumentError(f"{said} is refused: {why}", "runner")
    if "task" in given and values["task"] not in ("auto", meant) and meant != "pooling":
        raise ArgumentError(f"{said} contradicts --task {values['task']}. Drop one.", "task")
    if "task" not in given or values["task"] == "auto":
        values["task"] = meant
        given.add("task")


def apply_replacements(values: Values, given: set[str], warn: Warn) -> None:
    """Move old arguments that were given to what replaced them."""
    for argument in ARGUMENTS.values():
        replacement = argument.replacement or argument.short_for
        if not replacement or argument.name not in given:
            continue
        target, equals, fixed = replacement.partition("=")
        target, dot, key = target.partition(".")
        new = ARGUMENTS[target]
        shown = f"{new.flag}{dot}{key}{equals and ' '}{fixed}"
        if argument.replacement:
            warn(f"{argument.flag} is an old form of {shown}.")
        value = values[argument.name]
        if value is None or (argument.kind is Kind.BOOL and not key and not fixed):
            continue
        if equals and not value:
            continue
        if key:
            config = values[target] = dict(values[target] or {})
            _agree(argument, value, config.get(key, value), f"{new.flag}.{key}")
            config[key] = value
        else:
            value = fixed or value
            _agree(argument, value, values[target] if target in given else value, new.flag)
            values[target] = value
        given.add(target)


def _agree(argument: Argument, value: object, other: object, name: str) -> None:
    if value != other:
        said = argument.flag if argument.kind is Kind.BOOL else f"{argument.flag} {value}"
        raise ArgumentError(
            f"{said} contradicts {name} {other}, of which it is another form. Drop {argument.flag}.",
            argument.name,
        )


def split_options(values: Values, given: set[str]) -> None:
    """`xgrammar:no-fallback` → xgrammar, and the argument that says no-fallback."""
    for argument in ARGUMENTS.values():
        written = values[argument.name]
        if not argument.options or ":" not in written:
            continue
        choice, _, options = written.partition(":")
        values[argument.name] = choice
        for option in options.split(","):
            target = argument.options[choice][option]
            if target in given and values[target] is False:
                raise ArgumentError(
                    f"{argument.flag} {written} contradicts --no-{ARGUMENTS[target].flag[2:]}. "
                    "Drop one of them.",
                    argument.name,
                )
            values[target] = True
            given.add(target)


def imply_nodes(values: Values, said: Set[str], environ: Mapping[str, str]) -> None:
    """A copy that is named is balanced from outside; --nnodes says which copies a node has; a later node, or
    rank of one engine, has no API server.

    said  the names that were given, or whose variable was
    Raises InvalidEnvironment where a launcher was to say which rank this is, and does not.
    """
    if values["data_parallel_rank"] is not None and values["data_parallel_size"] > 1:
        values["data_parallel_external_lb"] = True
    for name, value in copies_of_node(values).items():
        if name not in said:
            values[name] = value
    served = values["data_parallel_external_lb"] or values["data_parallel_hybrid_lb"]
    launched = values["distributed_executor_backend"] == "external_launcher"
    rank = Launched.of(environ).rank if launched else values["node_rank"]
    if rank > 0 and not served:
        values["headless"] = True


def expand_graph_sizes(sizes: list[int]) -> list[int]:
    """One value n stands for 1, 2, 4, then the multiples of 8, up to and including n."""
    if len(sizes) != 1:
        return sizes
    (most,) = sizes
    smaller = [size for size in (1, 2, 4, *range(8, most, 8)) if size < most]
    return [*smaller, most]
