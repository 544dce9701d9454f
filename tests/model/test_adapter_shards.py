"""What a rank has of an adapter: the parts that its parts of the matrices want, and the rest of it once."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from factory import make_model
from made_adapter import PREFIX, Made
from model.stepping import plan
from resized_adapters import Resized, new_embeddings
from slipway.engine.messages import AdapterRef
from slipway.load.adapter import AdapterLimits
from slipway.load.arrays import FP32, Floats
from slipway.load.cut import WHOLE
from slipway.load.own_tokens import OwnLimits
from slipway.model.adapters import EMBEDDING, HEAD, Addition
from slipway.model.own_rows import Own, Rows
from slipway.model.registry import families
from slipway.model.roles import ADDED_UP, ROLES_BY_ROWS, Place
from slipway.model.shard import Shard, Sharded
from slipway.worker.adapters import read_parts

LIMITS = AdapterLimits(bias=True, own=OwnLimits(8))
SIZES = pytest.mark.parametrize("size", [2, 3])


def of(model: Path, ref: AdapterRef, shard: Shard) -> tuple[dict[Place, Addition], Own]:
    """What a rank has of it."""
    spec = plan(model).route.spec
    assert spec is not None
    cuts, weights = Sharded(spec, {}, shard).cuts, load_file(model / "model.safetensors")
    embedding, head = (
        weights[name][cuts.get(EMBEDDING, WHOLE).rows].__getitem__
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    )
    family = families()[spec.architecture]
    return read_parts(ref, LIMITS, spec, family, cuts, FP32, embedding, head, shard=shard)


def ranks(model: Path, ref: AdapterRef, size: int) -> list[tuple[dict[Place, Addition], Own]]:
    return [of(model, ref, Shard(rank, size)) for rank in range(size)]


@SIZES
@pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
def test_a_bias_is_added_once(size: int, whole_experts: bool, tmp_path: Path) -> None:
    """By the first rank where all add up their results, and by all where each has some of the rows."""
    model = make_model("mixtral", tmp_path / "model")
    made = Made(model, tmp_path / "it")
    for name in list(made.weights):
        module = name.removesuffix(".weight")
        if "self_attn" in module or ".experts." in module:
            made.linear(module)
            bias = made.random(len(made.weights[name]), scale=1.0)
            made.tensors[f"{PREFIX}{module}.lora_B.bias"] = bias
    ref = made.save()
    whole, _ = of(model, ref, Shard())
    spec = plan(model).route.spec
    assert spec is not None
    given = dict.fromkeys(whole, 0)
    for rank in range(size):
        shard = Shard(rank, size, whole_experts)
        part = Sharded(spec, {}, shard)
        for place, one in of(model, ref, shard)[0].items():
            expected = whole[place].bias
            assert expected is not None
            if one.bias is not None and part.has(place):
                given[place] += 1
                assert np.array_equal(one.bias, expected[part.cuts.get(place, WHOLE).rows])
    for place, count in given.items():
        alone = place[1] in ADDED_UP or (whole_experts and place[2] >= 0)
        assert count == (1 if alone else size)


@SIZES
@pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
@pytest.mark.parametrize("rank", [1, 3, 16])
def test_ranks_that_share_both_matrices_have_together_what_one_has(
    size: int, whole_experts: bool, rank: int, tmp_path: Path
) -> None:
    """Rows of A in turn, or runs of B's; experts, the embedding and the head are as they would be without."""
    model = make_model("qwen2_moe", tmp_path / "model")
    made = Made(model, tmp_path / "it", r=rank)
    made.everywhere(rank)
    ref = made.save()
    whole, _ = of(model, ref, Shard())
    shards = [Shard(one, size, whole_experts) for one in range(size)]
    shared = [of(model, ref, replace(shard, cuts_adapters=True))[0] for shard in shards]
    apart = [of(model, ref, shard)[0] for shard in shards]
    kinds = set()
    for place, one in whole.items():
        parts, usual = [found[place] for found in shared], [found[place] for found in apart]
        if place[1] in ROLES_BY_ROWS:
            kinds.add("dealt")
            dealt = [
                row for turn in zip_longest(*(part.a for part in parts)) for row in turn if row is not None
            ]
            assert np.array_equal(dealt, one.a)
            assert max(len(part.a) for part in parts) == -(-rank // size)
            assert_same([part.b for part in parts], [part.b for part in usual])
        elif place[1] in ADDED_UP - {"expert_down"}:
            kinds.add("added up")
            assert np.array_equal(np.concatenate([part.b for part in parts]), one.b)
            rows = [np.arange(len(one.b))[part.outputs] for part in parts]
            assert np.array_equal(np.concatenate(rows), np.arange(len(one.b)))
            assert_same([part.a for part in parts], [part.a for part in usual])
        else:
            kinds.add("as it would be")
            assert_same([part.a for part in parts], [part.a for part in usual])
            assert_same([part.b for part in parts], [part.b for part in usual])
    assert len(kinds) == 3


def assert_same(found: list[Floats], expected: list[Floats]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@SIZES
def test_rows_of_tokens_are_those_of_the_rank_that_has_the_tokens(size: int, tmp_path: Path) -> None:
    """Those of added tokens are the first one's."""
    model = make_model("llama", tmp_path / "model")
    made = Resized(model, tmp_path / "it")
    rows = made.resize(changed=(5, 77, 400, 511))
    made.tensors |= {
        f"{PREFIX}{name.replace('.weight', '.base_layer.weight')}": one for name, one in rows.items()
    }
    made.embedding()
    made.linear("lm_head")
    ref = made.save()
    (found, own), parts = of(model, ref, Shard()), ranks(model, ref, size)
    for role in ("embedding", "head"):
        check_rows(getattr(own, role), [getattr(part, role) for _, part in parts])
        assert getattr(parts[0][1], role).tokens[-1] == 516
    assert all(part.added == own.added for _, part in parts)
    for place, axis in ((EMBEDDING, "a"), (HEAD, "b")):
        pieces = [getattr(one[place], axis) for one, _ in parts]
        assert np.array_equal(np.concatenate(pieces), getattr(found[place], axis))


def check_rows(whole: Rows, parts: list[Rows | None]) -> None:
    there = [part for part in parts if part is not None]
    tokens = np.concatenate([part.tokens for part in there])
    numbers = np.concatenate([part.numbers for part in there])
    assert len(there) > 1
    assert np.array_equal(np.sort(tokens), whole.tokens)
    assert np.array_equal(numbers[np.argsort(tokens)], whole.numbers)


@SIZES
def test_new_embeddings_are_the_first_ranks(size: int, tmp_path: Path) -> None:
    model = make_model("llama", tmp_path / "model")
    ref, _ = new_embeddings(model, tmp_path / "it")
    (_, own), ((_, first), *others) = of(model, ref, Shard()), ranks(model, ref, size)
    assert own.embedding is not None
    assert first.embedding is not None
    assert np.array_equal(first.embedding.numbers, own.embedding.numbers)
    assert [(other.added, other.embedding, other.head) for _, other in others] == [
        (own.added, None, None)
    ] * (size - 1)
