"""A model of which only config.json is here: its shapes, and how its weights will be stored."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from slipway.engine.config import EngineConfig
from slipway.load.checkpoint import DummyCheckpoint
from slipway.load.config import Config, merged, texts
from slipway.load.errors import LoadError
from slipway.load.quantized.config import Quantization, quantization, quantization_settings
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import LEFT_ALONE
from slipway.model.registry import family_of
from slipway.model.roles import Entry, expected

_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore")
"""Fields of a `quantization_config` that name layers whose weights are plain."""
_PLAIN_BITS = {"float32": 32}


class DescribedCheckpoint(DummyCheckpoint):
    """What the weights would be, as far as the configuration says it; it has no numbers."""

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        """Raises LoadError where no family of ours knows the model: its shapes are in its weights alone."""
        super().__init__(folder, config, lambda *_: None)
        settings = merged(self.config, config.hf_overrides, config.rope_scaling, config.rope_theta)
        given = quantization_settings(self.config, folder, config.hf_overrides)
        quantized = quantization(given)
        self.quantization = quantized.method if quantized else ""
        entries = _entries(settings)
        self._forms = _promised(entries, quantized, _plain(given)) if quantized else {}
        bits = _PLAIN_BITS.get(self.source_dtype, 16)
        self.total_bytes = (
            sum(_bits(entry, self._forms.get(name), bits) for name, entry in entries.items()) // 8
        )

    def forms(self) -> Mapping[str, Form]:
        return self._forms


def _entries(settings: Config) -> Mapping[str, Entry]:
    architecture = next(iter(texts(settings, "architectures")), "")
    family = family_of(architecture)
    if family is None:
        raise LoadError(
            "UnsupportedModel",
            f"No weights are here, and the shapes of {architecture or 'a model without architectures'} are "
            "not known without them.",
            hint="Fetch the model: of safetensors files the headers are read, and no more.",
        )
    return expected(family.spec(settings), family)


def _promised(
    entries: Mapping[str, Entry], quantized: Quantization, plain: Collection[re.Pattern[str]]
) -> dict[str, Form]:
    """The matrices that are quantized, by name."""
    found = {}
    for name, entry in entries.items():
        layer = name.removesuffix(".weight")
        if entry.kind == "bias" or len(entry.shape) != 2 or entry.role in LEFT_ALONE:
            continue
        if any(pattern.search(layer) for pattern in plain):
            continue
        with suppress(LoadError):  # no group of layers has it, or groups of columns do not fit it
            found[name] = quantized.layout_of(layer, frozenset()).promised(layer, entry.shape[1])
    return found


def _plain(settings: Config) -> list[re.Pattern[str]]:
    """What names the layers that were left alone: whole names, parts of names, or patterns after `re:`."""
    names = [name for field in _LISTS for name in texts(settings, field)]
    return [
        re.compile(name[3:] if name.startswith("re:") else rf"(^|\.){re.escape(name)}(\.|$)")
        for name in names
    ]


def _bits(entry: Entry, form: Form | None, plain: int) -> int:
    """What a tensor takes in a file, scales left out."""
    return math.prod(entry.shape) * (plain if form is None else form.bits)
