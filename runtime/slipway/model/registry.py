"""The decoders with a specification of their own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slipway.load.config import Config
from slipway.model.spec import DecoderSpec

SpecOf = Callable[[Config], DecoderSpec]


@dataclass(frozen=True, slots=True)
class Family:
    """How to read a family's `config.json`, and what its checkpoints call each weight.

    read      the configuration's specification; all of its `defaults` are there
    names     role, as in `roles.py` → name without `.weight` or `.bias`; `{}` stands for the layer, a
              second one for the expert
    defaults  what transformers takes where config.json is silent
    aliases   pieces of names that other releases write, and what `names` has instead
    guessing  how names begin of what is beside the model in its checkpoint, and guesses for it
    """

    read: SpecOf
    names: Mapping[str, str]
    defaults: Config
    aliases: Mapping[str, str]
    guessing: tuple[str, ...] = ()

    def complete(self, config: Config) -> Config:
        return {**self.defaults, **config}

    def spec(self, config: Config) -> DecoderSpec:
        """Raises LoadError where a field is missing, wrong, or asks for what we lack."""
        return self.read(self.complete(config))


_FAMILIES: dict[str, Family] = {}


def register(
    *architectures: str,
    names: Mapping[str, str],
    defaults: Config | None = None,
    aliases: Mapping[str, str] | None = None,
    guessing: tuple[str, ...] = (),
) -> Callable[[SpecOf], SpecOf]:
    """The function specifies these architectures, by their class names in transformers."""

    def remember(read: SpecOf) -> SpecOf:
        family = Family(read, names, defaults or {}, aliases or {}, guessing)
        _FAMILIES.update(dict.fromkeys(architectures, family))
        return read

    return remember


def family_of(architecture: str) -> Family | None:
    """Also of the classes round a decoder that have another head, or none; they share its configuration."""
    known = families()
    if architecture in known:
        return known[architecture]
    for ending in ("ForSequenceClassification", "ForProcessRewardModel", "ForRewardModel", "Model"):
        if architecture.endswith(ending):
            return known.get(architecture.removesuffix(ending) + "ForCausalLM")
    return None


def families() -> Mapping[str, Family]:
    """All families of decoders by architecture: every module of `families/` registers its own."""
    import_families()
    return _FAMILIES


def import_families() -> None:
    """Have every module of `families/` register what it knows."""
    from slipway.model import families as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
