"""A stage reads its layers and no others: for every stored form, and cut as its tensor rank wants them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.stepping import plan
from packed_forms import sources
from slipway.load.errors import LoadError
from slipway.model.kv import KVShape, kv_layout
from slipway.model.registry import families
from slipway.model.shard import WHOLE_MODEL, Shard
from slipway.model.stage import Stage, even
from slipway.model.weights import LayerWeights, MlpWeights, ModelWeights, load_weights
from slipway.schemes.choice import Schemes
from slipway.schemes.fused import FusedLinear

SOURCES = {name: (make, settings) for name, make, settings in sources()}


@pytest.mark.parametrize(
    ("layers", "count", "found"),
    [
        (30, 2, [15, 15]),
        (30, 4, [7, 8, 8, 7]),
        (31, 2, [16, 15]),
        (7, 4, [2, 2, 2, 1]),
        (9, 4, [2, 2, 3, 2]),
        (3, 3, [1, 1, 1]),
    ],
)
def test_what_is_left_over_goes_to_the_stages_before_the_last(
    layers: int, count: int, found: list[int]
) -> None:
    assert even(layers, count) == found


@given(st.integers(1, 100), st.integers(1, 12))
def test_every_layer_is_on_one_stage(layers: int, count: int) -> None:
    if layers < count:
        with pytest.raises(LoadError, match=rf"{layers} layers.*The largest that fits is {layers}"):
            Stage.of(0, count, layers)
        return
    stages = [Stage.of(number, count, layers) for number in range(count)]
    assert [layer for stage in stages for layer in stage.layers] == list(range(layers))
    assert [stage.is_first for stage in stages] == [True] + [False] * (count - 1)
    assert [stage.is_last for stage in stages] == [False] * (count - 1) + [True]
    sizes = {len(stage.layers) for stage in stages}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("partition", "fault"),
    [
        ([3, 1], "deals 4 layers, and the model has 6.*As even as can be is 3,3"),
        ([2, 2, 2], "names 3 stages, and --pipeline-parallel-size is 2"),
        ([6, 0], "has a stage without layers"),
    ],
)
def test_a_partition_of_another_model_is_refused(partition: list[int], fault: str) -> None:
    with pytest.raises(LoadError, match=f"VLLM_PP_LAYER_PARTITION={','.join(map(str, partition))} {fault}"):
        Stage.of(0, 2, 6, partition)


def test_a_partition_says_which_layers_a_stage_has() -> None:
    assert [Stage.of(number, 3, 7, [1, 4, 2]).layers for number in range(3)] == [
        range(1),
        range(1, 5),
        range(5, 7),
    ]


def _linears(layer: LayerWeights) -> list[FusedLinear]:
    mlp = layer.mlp
    mlps = [mlp] if isinstance(mlp, MlpWeights) else [*mlp.experts, *([mlp.shared] if mlp.shared else [])]
    routers = [] if isinstance(mlp, MlpWeights) else [mlp.router]
    return [layer.qkv, layer.out, *routers, *(one for own in mlps for one in (own.gate_up, own.down))]


def _rows(linear: FusedLinear) -> list[bytes]:
    ids = (np.arange(part.end - part.column, dtype=np.int32) for part in linear.parts)
    pairs = zip(linear.parts, ids, strict=True)
    return [part.scheme.rows(of).tobytes() for part, of in pairs]  # type: ignore[attr-defined]


def _same(a: LayerWeights, b: LayerWeights) -> bool:
    norms = [all(np.array_equal(one.values, b.norms[role].values) for role, one in a.norms.items())]
    pairs = zip(_linears(a), _linears(b), strict=True)
    return all([*norms, *(_rows(one) == _rows(other) for one, other in pairs)])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", SOURCES)
def test_stages_together_hold_what_one_does(name: str, tmp_path: Path) -> None:
    make, settings = SOURCES[name]
    found = plan(make(tmp_path), **(settings | {"dtype": "bfloat16"}))
    spec = found.route.spec
    assert spec is not None
    family, conversion = families()[found.route.architecture], found.route.conversion  # type: ignore[attr-defined]

    def loaded(shard: Shard, stage: Stage | None = None) -> ModelWeights:
        return load_weights(spec, family, found.checkpoint, Schemes(found.element), conversion, shard, stage)

    shards = [
        WHOLE_MODEL,
        *([] if name == "fp8-block" else [Shard(1, 2)]),
    ]  # its heads share blocks of scales
    for shard in shards:
        whole = loaded(shard)
        count = len(spec.layers)
        stages = [Stage.of(number, count, count, tied=spec.tied_embedding) for number in range(count)]
        parts = [loaded(shard, stage) for stage in stages]
        layers = [layer for part in parts for layer in part.layers]
        assert all(_same(one, other) for one, other in zip(layers, whole.layers, strict=True))
        assert [bool(part.embedding.n) for part in parts] == [
            True,
            *([False] * (count - 2)),
            spec.tied_embedding,
        ]
        assert [bool(part.head.n) for part in parts] == [False] * (count - 1) + [True]
        assert [len(part.norm.values) > 0 for part in parts] == [False] * (count - 1) + [True]
        assert _rows(parts[0].embedding) == _rows(whole.embedding)
        assert _rows(parts[-1].head) == _rows(whole.head)


KINDS = st.lists(
    st.tuples(st.sampled_from([0, 16]), st.sampled_from([(2, 8), (1, 8)])), min_size=1, max_size=40
)


@given(KINDS, st.data())
def test_stages_share_block_tables_and_each_has_room_for_its_layers(
    kinds: list[tuple[int, KVShape]], data: st.DataObject
) -> None:
    def layer_bytes(heads: int, size: int, tokens: int) -> int:
        return heads * size * tokens

    whole = kv_layout(kinds, 16, layer_bytes)
    end = data.draw(st.integers(1, len(kinds)))
    for own in (range(end), range(end, len(kinds))):
        if not own:
            continue
        made = kv_layout(kinds, 16, layer_bytes, own=own)
        assert made.groups == whole.groups
        assert len(set(made.layer_place)) == len(made.layer_place) == len(own)
        used = [0] * len(made.groups)
        for layer, (group, index) in zip(own, made.layer_place, strict=True):
            assert made.groups[group].window == kinds[layer][0]
            each = layer_bytes(*kinds[layer][1], made.groups[group].block_size)
            used[group] = max(used[group], (index + 1) * each)
        assert made.page_bytes == max(used)
        assert made.page_bytes <= whole.page_bytes


def test_pages_of_half_the_layers_are_half_as_large() -> None:
    kinds: list[tuple[int, KVShape]] = [(0 if layer % 6 == 5 else 512, (4, 64)) for layer in range(24)]
    sizes = [
        kv_layout(kinds, 16, lambda heads, size, tokens: heads * size * tokens, own=own).page_bytes
        for own in (None, range(12), range(12, 24))
    ]
    assert sizes[1] == sizes[2] == sizes[0] // 2
