"""What a model's layers take of KV pages, before they are dealt into them."""

from __future__ import annotations

from collections.abc import Callable

from slipway.engine.config import EngineConfig
from slipway.load.arrays import ELEMENTS, DType
from slipway.model.kv import KVShape
from slipway.worker.route import Route
from slipway_kernels.cpu import page_bytes


def kv_kinds(route: Route, config: EngineConfig, behind: int = 0) -> list[tuple[int, KVShape]]:
    """[layer]  tokens that are kept for a query, 0 for all, and what a token takes, of the whole model: what
    `kv_layout` deals.

    behind  tokens by which the model may come behind those that are computed
    """
    hybrid = not config.disable_hybrid_kv_cache_manager
    attentions = route.attentions
    if attentions and route.spec is not None:
        attentions = [layer.attention for layer in route.spec.layers]
    return [
        (one.window + behind if hybrid and one.window else 0, (one.kv_heads, one.head_dim))
        for one in attentions
    ]


def kv_held(route: Route) -> list[KVShape]:
    """[layer]  what a token takes on this rank."""
    return [(one.kv_heads, one.head_dim) for one in route.attentions]


def layer_bytes(device: str, dtype: DType) -> Callable[[int, int, int], int]:
    """What a layer takes of a page, by key heads, their size, and tokens."""
    if device == "cuda":
        return lambda heads, size, tokens: 2 * heads * size * tokens * dtype.itemsize
    return lambda heads, size, tokens: page_bytes(1, heads, size, tokens, ELEMENTS[dtype])
