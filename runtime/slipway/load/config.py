"""Reads fields of a model's `config.json`, each with its type, and lays the user's settings over it."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.load.errors import LoadError

Config = Mapping[str, object]


class WrongField(LoadError):
    """A field of a model's config.json is missing, or holds something else than what is wanted.

    told  what is wrong with it, in words that follow the name of a file
    """

    def __init__(self, told: str, message: str, hint: str) -> None:
        super().__init__("BadCheckpoint", message, hint=hint, argument="hf_overrides")
        self.told = told


def integer(config: Config, name: str, default: int | None = None) -> int:
    """A whole number. Raises LoadError where it is missing and has no default, or is something else."""
    value = _value(config, name, default)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(name, value, "a whole number")
    return value


def positive(config: Config, name: str, default: int | None = None) -> int:
    """A whole number above 0."""
    value = integer(config, name, default)
    if value <= 0:
        raise wrong(name, value, "a whole number above 0")
    return value


def number(config: Config, name: str, default: float | None = None) -> float:
    value = _value(config, name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong(name, value, "a number")
    return float(value)


def flag(config: Config, name: str, default: bool = False) -> bool:
    value = _value(config, name, default)
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def text(config: Config, name: str, default: str | None = None) -> str:
    value = _value(config, name, default)
    if not isinstance(value, str):
        raise wrong(name, value, "a text")
    return value


def texts(config: Config, name: str) -> tuple[str, ...]:
    """A list of texts; empty where the field is missing or null."""
    value = config.get(name) or []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise wrong(name, value, "a list of texts")
    return tuple(value)


def integers(config: Config, name: str) -> tuple[int, ...]:
    """One whole number or a list of them; empty where the field is missing or null."""
    value = config.get(name)
    items = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise wrong(name, value, "a list of whole numbers")
    return tuple(items)


def table(config: Config, name: str) -> dict[str, object]:
    """A JSON object; empty where the field is missing or null."""
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise wrong(name, value, "an object")
    return dict(value)


def merged(
    config: Config,
    overrides: Config,
    rope_scaling: Config,
    rope_theta: float | None,
) -> dict[str, object]:
    """The configuration with `--hf-overrides`, `--rope-scaling` and `--rope-theta` laid over it.

    Objects merge field by field; null removes nothing, it is the value. Rotary settings, however they are
    given, go where the configuration keeps its own: in transformers 5's `rope_parameters`, or in the older
    `rope_scaling` beside `rope_theta`.
    """
    others = {name: value for name, value in overrides.items() if name not in ("rope_scaling", "rope_theta")}
    result = _laid_over(config, others)
    scaling = dict(rope_scaling) or table(overrides, "rope_scaling")
    theta = rope_theta
    if theta is None and "rope_theta" in overrides:
        theta = number(overrides, "rope_theta")
    parameters = table(result, "rope_parameters")
    full = parameters.get("full_attention")
    if isinstance(full, Mapping):  # one set for each kind of layer
        result["rope_parameters"] = {**parameters, "full_attention": _rope(full, scaling, theta)}
    elif parameters:
        result["rope_parameters"] = _rope(parameters, scaling, theta)
    else:
        result |= {"rope_scaling": scaling} if scaling else {}
        result |= {} if theta is None else {"rope_theta": theta}
    return result


def rope_settings(config: Config, layer_type: str = "full_attention") -> dict[str, object]:
    """The rotary settings of layers of one type, wherever the configuration keeps them."""
    parameters = table(config, "rope_parameters")
    if isinstance(parameters.get(layer_type), Mapping):
        return table(parameters, layer_type)
    return table(config, "rope_scaling") or parameters


def rope_kind(settings: Config) -> str:
    """The kind of scaling: `default` is none."""
    kind = text(settings, "rope_type", text(settings, "type", "default"))
    return "longrope" if kind == "su" else kind


def _rope(old: Config, scaling: Config, theta: float | None) -> dict[str, object]:
    kept = {name: value for name, value in old.items() if name in ("rope_theta", "partial_rotary_factor")}
    new = kept | dict(scaling) if scaling else dict(old)
    return new if theta is None else {**new, "rope_theta": theta}


def _laid_over(config: Config, overrides: Config) -> dict[str, object]:
    result = dict(config)
    for name, value in overrides.items():
        old = result.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[name] = _laid_over(old, value) if both else value  # type: ignore[arg-type]
    return result


def _value(config: Config, name: str, default: object) -> object:
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise WrongField(
            f"has no {name}",
            f"The model's config.json has no {name}, which its architecture needs.",
            "Fetch the model again, or give it by --hf-overrides '{\"" + name + "\": …}'.",
        )
    return value


def wrong(name: str, value: object, wanted: str, place: str = "the model's config.json") -> WrongField:
    """The error for a field that holds something else than what is wanted."""
    return WrongField(
        f"says that {name} is {value!r}, and it must be {wanted}",
        f"{name} in {place} is {value!r}, and must be {wanted}.",
        "Correct the file, or lay a right value over it by --hf-overrides.",
    )
