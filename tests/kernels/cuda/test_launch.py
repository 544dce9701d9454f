from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda import launch, tiles
from slipway_kernels.cuda.tiles import Tile
from slipway_kernels.rms_norm.kernel import rms_norm_kernel

TILE = Tile(80, {})


@pytest.mark.parametrize("grid", [(1, 65536), (1, 1, 65536)])
def test_a_grid_that_cuda_refuses_is_refused_with_its_numbers(grid: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"rms_norm_kernel is \(1, .*65536.*takes 65535 programs"):
        launch.launch(rms_norm_kernel, grid, tile=TILE)


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), 80), ((8, 9), 89), ((9, 0), 90), ((10, 0), 100), ((12, 0), 89)]
)
def test_a_device_takes_the_tiles_that_its_shared_memory_holds(
    capability: tuple[int, int], arch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    number = capability[0] * 10 + capability[1]  # each its own device: what one has is remembered
    assert launch.arch_of(torch.device("cuda", number)) == arch


def test_a_tile_that_is_remembered_is_of_its_own_table_and_facts() -> None:
    small, large, other = Tile(80, {}, when={"m": 16}), Tile(80, {}), Tile(90, {})
    asked = [((small, large), 80, 16), ((small, large), 80, 17), ((small, large, other), 90, 16)]
    for _ in range(2):
        assert [tiles.pick(table, arch, m=m) for table, arch, m in asked] == [small, large, other]
    with pytest.raises(ValueError, match="no tile for m 17 on sm_80"):
        tiles.pick((small,), 80, m=17)
