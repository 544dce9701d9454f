"""Finds the quantized layers of a checkpoint among its tensors, and reads each as one matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from slipway.load.arrays import E4M3, E5M2, INT8, DType
from slipway.load.cut import Stored
from slipway.load.quantized.config import Quantization
from slipway.load.quantized.form import Form
from slipway.load.quantized.layout import Layout, Pieces, unfit
from slipway.load.weight_files import Entry, WeightFiles

_PIECES = frozenset(
    (
        *("qweight", "qzeros", "scales", "g_idx"),
        *("weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx"),
        *("weight_scale", "weight_scale_inv", "input_scale", "activation_scale"),
        *("input_zero_point", "input_scale_ub"),
    )
)
"""Last parts of names that only quantized layers have."""
_EIGHT_BITS = (E4M3, E5M2, INT8)
_ATTENTION_SCALE = re.compile(r"\.(\d+)\..*\.(?:(k|v|q)_proj\.output_scale|(kv|k|v|q|prob)_scale)$")


class Layers:
    """The tensors of a checkpoint; those that make one quantized matrix are given as one, under its name."""

    def __init__(self, files: WeightFiles, quantization: Quantization | None) -> None:
        """Raises LoadError where a layer lacks a piece, or has one that its format does not know."""
        self._files = files
        self._layers: dict[str, tuple[Layout, Mapping[str, str]]] = {}
        """Each layer's layout, and by piece the name of its tensor."""
        self._scales: dict[str, re.Match[str]] = {}
        if quantization is not None:
            for layer, names in _pieces(files.entries).items():
                self._layers[layer] = _layout(layer, names, quantization), names
            found = ((name, _ATTENTION_SCALE.search(name)) for name in files.entries)
            self._scales = {name: match for name, match in found if match}
        taken = {name for _, names in self._layers.values() for name in names.values()}
        self._others = [name for name in files.entries if name not in taken and name not in self._scales]

    def forms(self) -> Mapping[str, Form]:
        """The quantized matrices by name. Raises LoadError where a layer's pieces do not fit each other."""
        return {
            f"{layer}.weight": layout.form(layer, self._given(names))
            for layer, (layout, names) in self._layers.items()
        }

    def stored(self, dtype: DType) -> Iterator[tuple[str, Stored]]:
        """Every matrix, and all other weights, as they are stored."""
        pieces = [name for _, names in self._layers.values() for name in names.values()]
        with self._files.reading((*pieces, *self._others)):
            for layer, (layout, names) in self._layers.items():
                given = layer, self._given(names)
                yield f"{layer}.weight", Stored(layout.shape(*given), partial(layout.read, *given))
                for name in names.values():
                    self._files.release(name)
            for name in self._others:
                yield name, Stored.plain(self._files.view(name))
                self._files.release(name)

    def kv_scales(self) -> Mapping[int, tuple[float, float]]:
        """By layer, what the checkpoint's keys and values are divided by in a KV cache of eight bits."""
        found: dict[int, tuple[float, float]] = {}
        for name, match in self._scales.items():
            layer, kind = int(match[1]), match[2] or match[3]
            keys, values = found.get(layer, (1.0, 1.0))
            scale = float(self._files.view(name).astype(np.float32).max())
            found[layer] = scale if "k" in kind else keys, scale if "v" in kind else values
        return found

    def close(self) -> None:
        self._files.close()

    def _given(self, names: Mapping[str, str]) -> Pieces:
        return {piece: self._files.view(name) for piece, name in names.items()}


def _pieces(entries: Mapping[str, Entry]) -> dict[str, dict[str, str]]:
    """Layer → piece → name of the tensor, for all layers that have a piece."""
    pieces: dict[str, dict[str, str]] = {}
    for name, entry in entries.items():
        layer, _, piece = name.rpartition(".")
        if piece in _PIECES or (piece == "weight" and entry.dtype in _EIGHT_BITS):
            pieces.setdefault(layer, {})[piece] = name
    for layer, found in pieces.items():
        # Beside other pieces a weight is one of them, whatever its type: one too many, if it is not wanted.
        if f"{layer}.weight" in entries:
            found["weight"] = f"{layer}.weight"
    return pieces


def _layout(name: str, pieces: Mapping[str, str], quantization: Quantization) -> Layout:
    layout = quantization.layout_of(name, frozenset(pieces))
    for piece, needed in layout.wanted.items():
        if needed and piece not in pieces:
            there = ", ".join(pieces)
            raise unfit(name, f"has no {piece}, only {there}; {quantization.method} needs it")
    for piece in pieces:
        if piece not in layout.wanted:
            raise unfit(
                name,
                f"has a tensor {piece}, and {quantization.method} as config.json describes it has none",
                "config.json and weights are of different models or versions: fetch both again.",
            )
    return layout
