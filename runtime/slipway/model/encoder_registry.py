"""The encoders with a specification of their own, and what their checkpoints call each weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from slipway.load.config import Config
from slipway.model.encoder_spec import EncoderSpec
from slipway.model.registry import import_families
from slipway.model.roles import Entry

SpecOf = Callable[[Config], EncoderSpec]

_UNUSED = ("pooler.", "cls.", "lm_head.", "head.", "decoder.", "embeddings.position_ids", "rotary_emb.")
"""Where names begin that no embedding needs: heads of other tasks, and what config.json says already."""


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """How to read a family's `config.json` and its checkpoints.

    read      the configuration's specification; all of its `defaults` are there
    names     role → name without `.weight` or `.bias`; `{}` stands for the layer. Roles joined by + lie in
              one tensor, in this order and each as large as the others
    prefixes  what a model with a head has before the names of its encoder
    aliases   pieces of names that other releases write, and what `names` has instead
    """

    read: SpecOf
    names: Mapping[str, str]
    prefixes: tuple[str, ...]
    defaults: Config
    aliases: Mapping[str, str]

    def spec(self, config: Config) -> EncoderSpec:
        """Raises LoadError where a field is missing, wrong, or asks for what we lack."""
        return self.read({**self.defaults, **config})

    def usual(self, name: str) -> str:
        """The name that `names` gives a tensor, whatever the release that wrote it."""
        name = name.removeprefix(next((one for one in self.prefixes if name.startswith(one)), ""))
        for theirs, ours in self.aliases.items():
            name = name.replace(theirs, ours)
        return name

    def tensors_of(self, entry: Entry) -> Iterator[tuple[str, int, int]]:
        """The names that may hold an entry; its part of the tensor, and of how many."""
        for roles, name in self.names.items():
            shared = roles.split("+")
            if entry.role in shared:
                yield f"{name.format(entry.layer)}.{entry.kind}", shared.index(entry.role), len(shared)

    @staticmethod
    def is_unused(name: str) -> bool:
        return name.startswith(_UNUSED)


_ENCODERS: dict[str, EncoderFamily] = {}


def register_encoder(
    *architectures: str,
    names: Mapping[str, str],
    prefixes: tuple[str, ...] = (),
    defaults: Config | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Callable[[SpecOf], SpecOf]:
    """The function specifies these architectures, by their class names in transformers."""

    def remember(read: SpecOf) -> SpecOf:
        family = EncoderFamily(read, names, prefixes, defaults or {}, aliases or {})
        _ENCODERS.update(dict.fromkeys(architectures, family))
        return read

    return remember


def encoders() -> Mapping[str, EncoderFamily]:
    """All encoders by architecture: modules of `families/` register them."""
    import_families()
    return _ENCODERS
