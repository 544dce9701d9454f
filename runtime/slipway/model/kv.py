"""How the layers of a model share the pages of the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slipway.load.arrays import DType


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one block table. `window`: tokens a query sees, 0 for all."""

    kind: Literal["full", "sliding"]
    window: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Every page of the pool has `page_bytes` and holds `block_size` tokens of one group's layers."""

    groups: tuple[KVGroup, ...]
    page_bytes: int
    block_size: int
    layer_place: tuple[tuple[int, int], ...]
    """[layer]  its group, and its index within the group's pages"""


def page_layer_bytes(kv_heads: int, head_dim: int, block_size: int, dtype: DType) -> int:
    """Bytes of one layer in one page on an accelerator; the CPU's kernels have a layout of their own."""
    return 2 * kv_heads * head_dim * block_size * dtype.itemsize


def kv_layout(windows: Sequence[int], layer_bytes: int, block_size: int) -> KVLayout:
    """Deal the layers of each window into groups of equal size.

    windows      [layer]  tokens a query sees, 0 for all
    layer_bytes  of one layer in one page
    The size is the smallest number of layers that share a window, so that a page suits every group; only
    the last group of a window may be short.
    """
    of_window: dict[int, list[int]] = {}
    for layer, window in enumerate(windows):
        of_window.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in of_window.values())
    groups = tuple(
        KVGroup("sliding" if window else "full", window, tuple(layers[start : start + size]))
        for window, layers in of_window.items()
        for start in range(0, len(layers), size)
    )
    places = {
        layer: (group, index)
        for group, dealt in enumerate(groups)
        for index, layer in enumerate(dealt.layers)
    }
    return KVLayout(
        groups, size * layer_bytes, block_size, tuple(places[layer] for layer in range(len(windows)))
    )
