from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda import launch
from slipway_kernels.cuda.launch import Tile
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
    assert launch.arch_of(torch.device("cuda")) == arch
