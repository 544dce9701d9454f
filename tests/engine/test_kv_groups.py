"""Groups of layers that share a pool of pages and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_bench import bench, expected
from hypothesis import given, settings
from hypothesis import strategies as st

from factory import make_model
from local_engine import LocalEngine
from slipway.engine.kv_cache import KVCache, block_hash
from slipway.engine.messages import AddRequest
from slipway.engine.page_pool import PagePool
from slipway.engine.params import SamplingParams
from slipway.engine.request import Request
from slipway.model.kv import KVGroup

groups = st.lists(
    st.builds(KVGroup, st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([0, 0, 1, 2, 5, 8, 13])),
    min_size=1,
    max_size=3,
)


def asked(tokens: list[int]) -> Request:
    return Request(0, AddRequest("a", tokens, SamplingParams(10)), 1)


def holds(group: KVGroup, findable: list[bool], end: int, position: int) -> bool:
    """Whether a request can go on at `position` behind a hit of the tokens up to `end`."""
    first = group.readable_from(position) // group.block_size
    return end % group.block_size == 0 and all(findable[first : end // group.block_size])


@settings(max_examples=300)
@given(groups=groups, length=st.integers(1, 60), rewrites=st.booleans(), data=st.data())
def test_a_hit_is_the_longest_prefix_that_every_group_can_go_on_from(
    groups: list[KVGroup], length: int, rewrites: bool, data: st.DataObject
) -> None:
    pool = PagePool(60 * len(groups))
    cache = KVCache(
        pool, groups, prefix_caching=True, hash_block=block_hash("builtin"), rewrites_blocks=rewrites
    )
    first, tokens = asked([*range(length)]), [*range(length)]
    cache.admit(first, cache.find_prefix(first))
    assert cache.extend(first, length) is not None
    first.granted = first.committed = length
    cache.register(first)
    tables = [list(table) for table in first.tables]
    lost = data.draw(st.sets(st.sampled_from([page for table in tables for page in table])))
    pool.forget(lost)
    findable = [[page not in lost for page in table] for table in tables]

    hit = cache.find_prefix(asked(tokens))
    ends = range(length - (not rewrites), 0, -1)
    longest = next(
        (end for end in ends if all(map(holds, groups, findable, [end] * 9, [min(end, length - 1)] * 9))),
        0,
    )
    assert hit.num_tokens == min(longest, length - 1)
    for group, table, own in zip(groups, hit.tables, tables, strict=True):
        read = group.readable_from(hit.num_tokens) // group.block_size
        assert table[read:] == own[read : longest // group.block_size]
        assert set(table[:read]) <= {-1}


@settings(max_examples=200)
@given(groups=groups, chunks=st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_a_request_holds_every_page_that_is_read_again_and_no_other(
    groups: list[KVGroup], chunks: list[int]
) -> None:
    pool = PagePool(300 * len(groups))
    cache = KVCache(pool, groups, prefix_caching=False, hash_block=block_hash("builtin"))
    request = asked([0] * 300)
    cache.admit(request, cache.find_prefix(request))
    for chunk in chunks:
        assert cache.extend(request, chunk) is not None
        end = request.granted + chunk
        for group, table in zip(groups, request.tables, strict=True):
            first = group.readable_from(request.committed) // group.block_size
            assert [page >= 0 for page in table] == [block >= first for block in range(group.pages_for(end))]
            assert sum(page >= 0 for page in table) <= group.most_pages(end, chunk)
        request.granted = request.committed = end
        assert cache.covered([request])[0] == [request] * all(
            group.pages_for(end + 1) <= len(table)
            and not any(page >= 0 for page in table[: group.readable_from(end) // group.block_size])
            for group, table in zip(groups, request.tables, strict=True)
        )
    cache.release(request)
    cache.check()
    assert pool.num_free == pool.num_pages


def test_groups_of_other_page_sizes_take_pages_at_their_own_pace() -> None:
    with bench(windows=(0, 0, 8), block_size=(4, 16, 2), num_pages=200, token_budget=64) as b:
        b.add("a", 30, 12)
        b.turn()
        (request,) = b.scheduler.running
        assert [len(table) for table in request.tables] == [8, 2, 15]
        b.run()
        assert b.tokens("a") == expected(30, 12)
        b.add("again", 40, 1)
        b.run()
        assert b.hub.deltas["again"][0].num_cached_tokens == 32


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("mistral", {"head_dim": 24}),
        ("gemma3_text", {"head_dim": 24}),
        pytest.param("gemma3_text", {}, id="by transformers", marks=pytest.mark.torch),
    ],
)
def test_without_the_hybrid_manager_pages_stay_and_tokens_are_the_same(
    tmp_path: Path, architecture: str, sizes: dict[str, int]
) -> None:
    model = make_model(architecture, tmp_path, **sizes)
    held, tokens = {}, {}
    for disabled in (False, True):
        with LocalEngine(
            model,
            dtype="float32",
            block_size=8,
            num_blocks=64,
            max_model_len=200,
            enable_prefix_caching=False,
            disable_hybrid_kv_cache_manager=disabled,
        ) as engine:
            cache = engine.core.scheduler.cache
            assert disabled == ([group.window for group in cache.groups] == [0])
            name = engine.add([*range(3, 103)], SamplingParams(20, temperature=0.0))
            while len(engine.hub.deltas.get(name, ())) < 10:
                engine.core.run_once()
            # In bytes of a layer's tokens: one group of all layers has larger pages.
            held[disabled] = cache.pool.num_held * engine.start.plan.kv.page_bytes
            engine.finish()
            tokens[disabled] = engine.output(name).tokens
    assert tokens[True] == tokens[False]
    assert held[True] > 1.5 * held[False]
