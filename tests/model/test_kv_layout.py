from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipway.model.kv import KVLayout, KVShape, kv_layout

WINDOWS = st.sampled_from([0, 16, 24])
SHAPES = st.sampled_from([(2, 8), (1, 8), (8, 16), (3, 8)])
KINDS = st.lists(st.tuples(WINDOWS, SHAPES), min_size=1, max_size=80)


def layer_bytes(heads: int, size: int, tokens: int) -> int:
    return heads * size * tokens


def layout(kinds: list[tuple[int, KVShape]], block_size: int = 16) -> KVLayout:
    return kv_layout(kinds, block_size, layer_bytes)


def alike(windows: list[int]) -> KVLayout:
    return layout([(window, (1, 8)) for window in windows])


def layers_of(made: KVLayout) -> list[list[int]]:
    """By group, in the order of their places."""
    places = [
        sorted((index, layer) for layer, (number, index) in enumerate(made.layer_place) if number == group)
        for group in range(len(made.groups))
    ]
    return [[layer for _, layer in found] for found in places]


@given(KINDS)
def test_every_layer_has_one_place_among_layers_of_its_window_and_shape(
    kinds: list[tuple[int, KVShape]],
) -> None:
    made = layout(kinds)
    assert len(set(made.layer_place)) == len(made.layer_place) == len(kinds)
    for group, layers in zip(made.groups, layers_of(made), strict=True):
        assert [made.layer_place[layer][1] for layer in layers] == list(range(len(layers)))
        assert {kinds[layer] for layer in layers} == {kinds[layers[0]]}
        assert group.window == kinds[layers[0]][0]


@given(KINDS, st.sampled_from([1, 8, 16]))
def test_a_page_holds_as_many_tokens_of_each_group_as_fit(
    kinds: list[tuple[int, KVShape]], block_size: int
) -> None:
    made = layout(kinds, block_size)
    largest = dict.fromkeys(kinds, 0)
    for layers in layers_of(made):
        kind = kinds[layers[0]]
        largest[kind] = max(largest[kind], len(layers))
    for group, layers in zip(made.groups, layers_of(made), strict=True):
        kind = kinds[layers[0]]
        taken = largest[kind] * layer_bytes(*kind[1], group.block_size)
        assert taken <= made.page_bytes < 2 * taken
        assert group.block_size % block_size == 0
        assert group.block_size // block_size & (group.block_size // block_size - 1) == 0


@given(st.lists(WINDOWS, min_size=1, max_size=80))
def test_layers_of_one_shape_make_equal_groups_of_which_only_the_last_of_a_window_is_short(
    windows: list[int],
) -> None:
    made = alike(windows)
    size = min(windows.count(window) for window in set(windows))
    assert made.page_bytes == size * layer_bytes(1, 8, 16)
    assert set(made.block_sizes) == {16}
    for window in set(windows):
        pairs = zip(made.groups, layers_of(made), strict=True)
        sizes = [len(layers) for group, layers in pairs if group.window == window]
        assert all(one == size for one in sizes[:-1])
        assert 0 < sizes[-1] <= size


def test_a_model_of_one_kind_is_one_group() -> None:
    made = layout([(0, (2, 32))] * 30, 32)
    assert layers_of(made) == [list(range(30))]
    assert (made.page_bytes, made.block_sizes) == (30 * 64 * 32, [32])


def test_five_sliding_layers_to_a_full_one_make_groups_of_the_full_ones_size() -> None:
    made = alike([0 if (layer + 1) % 6 == 0 else 512 for layer in range(26)])
    pairs = zip(made.groups, layers_of(made), strict=True)
    assert [(group.window, len(layers)) for group, layers in pairs] == [*[(512, 4)] * 5, (512, 2), (0, 4)]


def test_small_layers_have_more_tokens_a_page() -> None:
    made = layout([(0, (8, 64))] * 4 + [(0, (2, 64))])
    pairs = zip(made.groups, layers_of(made), strict=True)
    assert [(len(layers), group.block_size) for group, layers in pairs] == [*[(1, 16)] * 4, (1, 64)]


@given(KINDS, st.integers(0, 5000))
def test_pages_hold_the_tokens_that_they_are_said_to_and_no_step_more(
    kinds: list[tuple[int, KVShape]], pages: int
) -> None:
    made = layout(kinds)
    tokens, step = made.tokens_in(pages), max(made.block_sizes)
    assert made.pages_for(tokens) <= pages < made.pages_for(tokens + step)
    assert made.max_blocks(tokens) == max(-(-tokens // size) for size in made.block_sizes)


def test_ranks_with_unequal_heads_have_the_same_block_tables() -> None:
    """Three key heads on two ranks, beside a draft model that is whole on both."""
    kinds: list[tuple[int, KVShape]] = [(0, (3, 16))] * 3 + [(0, (1, 16))] * 2
    shapes: list[list[KVShape]] = [[(heads, 16)] * 3 + [(1, 16)] * 2 for heads in (2, 1)]
    first, second = (kv_layout(kinds, 16, layer_bytes, 2, held) for held in shapes)
    assert first.groups == second.groups
    assert first.layer_place == second.layer_place
    assert [one.block_size for one in first.groups] == [16, 64]
    # The draft's 64 tokens are as much as three heads' 16; two or one of the target's take less.
    assert first.page_bytes == second.page_bytes == 2 * layer_bytes(1, 16, 64)
