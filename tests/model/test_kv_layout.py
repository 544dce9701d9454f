from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipway.model.kv import kv_layout


@given(st.lists(st.sampled_from([0, 16, 24]), min_size=1, max_size=80))
def test_every_layer_has_one_place_among_layers_of_its_window(windows: list[int]) -> None:
    layout = kv_layout(windows, 100, 16)
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(range(len(windows)))
    assert len(set(layout.layer_place)) == len(windows)
    for layer, (group, index) in enumerate(layout.layer_place):
        assert layout.groups[group].layers[index] == layer
        assert layout.groups[group].window == windows[layer]
        assert layout.groups[group].kind == ("sliding" if windows[layer] else "full")


@given(st.lists(st.sampled_from([0, 16, 24]), min_size=1, max_size=80))
def test_pages_are_equal_and_only_the_last_group_of_a_window_is_short(windows: list[int]) -> None:
    layout = kv_layout(windows, 100, 16)
    size = layout.page_bytes // 100
    assert size == min(windows.count(window) for window in set(windows))
    for window in set(windows):
        sizes = [len(group.layers) for group in layout.groups if group.window == window]
        assert all(one == size for one in sizes[:-1])
        assert 0 < sizes[-1] <= size


def test_a_model_of_one_kind_is_one_group() -> None:
    layout = kv_layout([0] * 30, 64, 32)
    assert [group.layers for group in layout.groups] == [tuple(range(30))]
    assert (layout.page_bytes, layout.block_size) == (30 * 64, 32)


def test_five_sliding_layers_to_a_full_one_make_groups_of_the_full_ones_size() -> None:
    windows = [0 if (layer + 1) % 6 == 0 else 512 for layer in range(26)]
    layout = kv_layout(windows, 1, 16)
    assert [(group.kind, len(group.layers)) for group in layout.groups] == [
        *[("sliding", 4)] * 5,
        ("sliding", 2),
        ("full", 4),
    ]
