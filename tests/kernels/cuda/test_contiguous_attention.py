from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipway_kernels.attention import contiguous_attention, op, reference
from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.cuda.specialization import recording

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Prompts:
    """Whole prompts in one product's rows; rows between and beside them are not numbers."""

    def __init__(
        self,
        device: torch.device,
        counts: tuple[int, ...],
        *,
        dtype: torch.dtype = BF16,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 16,
        window: int = 0,
        softcap: float = 0.0,
        slopes: bool = False,
        sinks: bool = False,
        causal: bool = True,
    ) -> None:
        num_heads, kv_heads = heads
        self.counts, self.before = counts, 3
        rows = self.before + sum(counts) + 2
        product = torch.full(
            (rows, num_heads + 2 * kv_heads, head_dim), torch.nan, device=device, dtype=dtype
        )
        shape = (sum(counts), *product.shape[1:])
        product[self.before : -2] = torch.randn(shape, device=device).to(dtype)
        self.q, self.k, self.v = torch.split(product, [num_heads, kv_heads, kv_heads], 1)
        starts = torch.tensor([self.before, *counts], device=device).cumsum(0)
        self.query_start = starts.int()
        self.out = torch.full((rows, num_heads, head_dim), 7.0, device=device, dtype=dtype)
        self.features: dict[str, object] = {
            "scale": 0.3,
            "window": window,
            "softcap": softcap,
            "slopes": torch.rand(num_heads, device=device) if slopes else None,
            "sinks": torch.randn(num_heads, device=device) if sinks else None,
            "causal": causal,
        }

    def run(self, first_request: int = 0) -> Tensor:
        return contiguous_attention(
            *(self.q, self.k, self.v, self.query_start, self.out),
            **self.features,  # type: ignore[arg-type]
            max_query=max(self.counts),
            first_request=first_request,
        )

    def check(self) -> None:
        out, dtype, begin = self.run(), self.q.dtype, self.before
        assert (out[:begin] == 7).all(), "rows before the first prompt were written"
        assert (out[begin + sum(self.counts) :] == 7).all(), "rows after the last prompt were written"
        for count in self.counts:
            rows = slice(begin, begin + count)
            parts = (self.q[rows], self.k[rows], self.v[rows])
            expected = reference.attention(*parts, **self.features)  # type: ignore[arg-type]
            # Weights are rounded, and the result.
            assert row_error(out[rows], expected) <= rounding(dtype, dtype, terms=max(count, 1))
            begin += count


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("heads", [(2, 2), (4, 1), (7, 1), (20, 1), (16, 2)])
@pytest.mark.parametrize("counts", [(1,), (150,), (5, 0, 37, 1)])
def test_prompts_see_themselves_alone(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int], counts: tuple[int, ...]
) -> None:
    Prompts(device, counts, dtype=dtype, heads=heads).check()


@pytest.mark.parametrize("heads", [(2, 2), (7, 1), (20, 1)])
def test_rows_that_cannot_be_described_are_read_one_by_one(
    device: torch.device, heads: tuple[int, int]
) -> None:
    Prompts(device, (5, 0, 21), dtype=FP32, heads=heads).check()
    Prompts(device, (5, 0, 40), heads=heads, head_dim=20).check()  # 40 bytes apart


def test_values_that_cannot_be_described_are_read_one_by_one(device: torch.device) -> None:
    prompts = Prompts(device, (5, 90))
    v = prompts.v
    memory = torch.empty(len(v) * v.stride(0) + 1, device=device, dtype=v.dtype)
    prompts.v = memory[1:].as_strided(v.shape, v.stride()).copy_(v)  # two bytes past a multiple of 16
    prompts.check()


def test_a_step_of_many_tiles_has_them_in_the_first_dimension_of_its_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grids: list[tuple[int, ...]] = []
    monkeypatch.setattr(op, "launch", lambda kernel, grid, *rest, **constants: grids.append(grid))
    q = torch.empty(70_000, 128, 16, dtype=BF16, device="meta")
    starts = torch.empty(2, dtype=torch.int32, device="meta")
    with recording(90):
        contiguous_attention(q, q[:, :1], q[:, 1:2], starts, q, scale=0.3, max_query=len(q))
    assert len(grids) == 1
    assert all(programs <= 65535 for programs in grids[0][1:]), "CUDA refuses this grid"


@pytest.mark.parametrize(("window", "softcap"), [(1, 0.0), (20, 2.0), (140, 0.0), (0, 2.0)])
@pytest.mark.parametrize(("slopes", "sinks"), [(False, True), (True, False)])
def test_features_are_the_references(
    device: torch.device, window: int, softcap: float, slopes: bool, sinks: bool
) -> None:
    features = {"window": window, "softcap": softcap, "slopes": slopes, "sinks": sinks}
    Prompts(device, (150, 33), heads=(8, 1), **features).check()  # type: ignore[arg-type]
    Prompts(device, (30,), dtype=FP32, heads=(2, 1), **features).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("head_dim", [8, 64, 80, 112, 128, 192, 256])
def test_every_head_size_is_computed(device: torch.device, head_dim: int) -> None:
    Prompts(device, (40, 9), head_dim=head_dim).check()


def test_a_prompt_that_is_not_a_number_does_not_reach_its_neighbours(device: torch.device) -> None:
    prompts = Prompts(device, (70, 30, 40))
    expected = prompts.run().clone()
    prompts.v[prompts.before + 70 : prompts.before + 100] = torch.nan
    prompts.k[prompts.before + 70 : prompts.before + 100] = torch.nan
    out = prompts.run()
    for rows in (slice(3, 73), slice(103, 143)):
        assert torch.equal(out[rows], expected[rows])
    assert out[73:103].isnan().all()


@pytest.mark.parametrize("window", [0, 1, 20, 65])
@pytest.mark.parametrize("counts", [(1,), (150,), (5, 0, 90, 1)])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_texts_of_encoders_see_themselves_both_ways(
    device: torch.device, dtype: torch.dtype, counts: tuple[int, ...], window: int
) -> None:
    Prompts(device, counts, dtype=dtype, heads=(3, 3), head_dim=32, window=window, causal=False).check()
    Prompts(device, counts, dtype=dtype, window=window, causal=False).check()


@pytest.mark.parametrize("causal", [True, False])
def test_a_prompt_does_not_depend_on_its_company(device: torch.device, causal: bool) -> None:
    prompts = Prompts(device, (70, 30, 40), causal=causal)
    together = prompts.run().clone()
    prompts.out.fill_(7)
    alone = prompts.run(first_request=1)
    assert torch.equal(alone[73:143], together[73:143])
    assert (alone[:73] == 7).all()
    prompts.query_start = prompts.query_start[[1, 2]]
    assert torch.equal(prompts.run()[73:103], together[73:103])


def test_long_prompts_of_every_length_take_one_kernel(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = []
    launch = op.launch

    def noted(kernel: object, grid: tuple[int, ...], **arguments: object) -> None:
        differing = ("requests", "first_request")
        scalars = {name: value for name, value in arguments.items() if not isinstance(value, Tensor)}
        kernels.append((kernel, {name: value for name, value in scalars.items() if name not in differing}))
        launch(kernel, grid, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(op, "launch", noted)
    for counts in ((40,), (77,), (20, 50)):
        Prompts(device, counts).run()
    assert kernels[0] == kernels[1] == kernels[2]
