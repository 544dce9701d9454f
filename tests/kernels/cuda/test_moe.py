from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from slipway_kernels.cuda.compare import fp8_sum, rounding, row_error
from slipway_kernels.cuda.specialization import recording
from slipway_kernels.cuda.tiles import pick
from slipway_kernels.linear_w4a16 import Packed, pack, unpack
from slipway_kernels.moe import (
    Arrangement,
    Scaled,
    arrange,
    arrangement,
    block_m_of,
    combine,
    moe_linear,
    reference,
    route,
    stack_experts,
)
from slipway_kernels.moe.op import _table, by_torch


def random_ids(rows: int, top_k: int, experts: int, device: torch.device) -> Tensor:
    return torch.rand(rows, experts, device=device).topk(top_k).indices.int()


def arranged(ids: Tensor, experts: int, block_m: int = 16) -> Arrangement:
    return arrange(ids, arrangement(ids.numel(), experts, block_m, ids.device))


@pytest.mark.parametrize(
    ("rows", "top_k", "experts", "n", "k", "block_m", "dtype", "activation"),
    [
        (1, 1, 4, 32, 64, 16, torch.bfloat16, "silu"),
        (1, 8, 16, 40, 128, 16, torch.bfloat16, "silu"),
        (9, 2, 8, 33, 50, 16, torch.float16, ""),
        (20, 4, 6, 70, 136, 32, torch.bfloat16, "gelu"),
        (17, 8, 64, 24, 96, 32, torch.float16, "gelu_tanh"),
        (70, 2, 4, 100, 72, 64, torch.bfloat16, "silu"),
        (75, 2, 5, 150, 64, 128, torch.bfloat16, ""),
        (5, 3, 7, 20, 24, 16, torch.float32, "silu"),
        (40, 2, 4, 36, 33, 64, torch.float32, ""),
    ],
)
def test_a_product_is_the_references(
    device: torch.device,
    rows: int,
    top_k: int,
    experts: int,
    n: int,
    k: int,
    block_m: int,
    dtype: torch.dtype,
    activation: str,
) -> None:
    x = torch.randn(rows, k + 8, device=device).to(dtype)[:, :k]  # rows apart in memory
    weights = (torch.randn(experts, 2 * n if activation else n, k, device=device) / k**0.5).to(dtype)
    ids = random_ids(rows, top_k, experts, device)
    ids[torch.rand(rows, top_k, device=device) < 0.15] = -1
    out = torch.full((rows * top_k, n), 77.0, device=device, dtype=dtype)
    moe_linear(x, weights, arranged(ids, experts, block_m), out, activation=activation)
    expected = reference.product(x, weights, ids, activation)
    here = ids.flatten() >= 0
    assert row_error(out[here], expected[here]) <= rounding(dtype, terms=k)
    assert (out[~here] == 77.0).all()


@pytest.mark.parametrize(("rows", "only"), [(3, 2), (40, 0), (40, 3)])
def test_all_rows_may_go_to_one_expert(device: torch.device, rows: int, only: int) -> None:
    x = torch.randn(rows, 64, device=device).bfloat16()
    weights = (torch.randn(4, 48, 64, device=device) / 8).bfloat16()
    ids = torch.full((rows, 1), only, dtype=torch.int32, device=device)
    out = moe_linear(x, weights, arranged(ids, 4), torch.empty(rows, 48, device=device))
    assert row_error(out, x.float() @ weights[only].float().T) <= rounding(terms=64)


def test_no_rows_compute_nothing(device: torch.device) -> None:
    ids = torch.empty(0, 2, dtype=torch.int32, device=device)
    order = arranged(ids, 4)
    x, weights = torch.randn(0, 32, device=device), torch.randn(4, 16, 32, device=device)
    assert moe_linear(x, weights, order, torch.empty(0, 16, device=device)).shape == (0, 16)
    assert order.counts.tolist() == [0] * 4


def test_each_pair_may_have_a_row_of_its_own(device: torch.device) -> None:
    hidden = torch.randn(6 * 2, 64, device=device).bfloat16()
    weights = (torch.randn(5, 40, 64, device=device) / 8).bfloat16()
    ids = random_ids(6, 2, 5, device)
    out = moe_linear(hidden, weights, arranged(ids, 5), torch.empty(12, 40, device=device))
    assert row_error(out, reference.product(hidden, weights, ids)) <= rounding(terms=64)


@pytest.mark.parametrize(("rows", "block_m", "activation"), [(5, 16, "silu"), (40, 32, ""), (70, 64, "silu")])
def test_fp8_products_scale_rows_and_columns(
    device: torch.device, rows: int, block_m: int, activation: str
) -> None:
    n, k, experts = 40, 80, 4
    x = torch.randn(rows, k, device=device).to(torch.float8_e4m3fn)
    values = torch.randn(experts, 2 * n if activation else n, k, device=device).to(torch.float8_e4m3fn)
    x_scale = torch.rand(rows, device=device) + 0.5
    scales = (torch.rand(values.shape[:2], device=device) + 0.5) / k
    ids = random_ids(rows, 2, experts, device)
    out = torch.empty(rows * 2, n, device=device)
    order = arranged(ids, experts, block_m)
    moe_linear(x, Scaled(values, scales), order, out, activation=activation, x_scale=x_scale)
    exact = values.float() * scales[..., None]
    expected = reference.product(x.float() * x_scale[:, None], exact, ids, activation)
    narrow = 0.0 if device.type == "cpu" else 2 * fp8_sum(k)  # of the gate, and of up
    assert row_error(out, expected) <= rounding(terms=k) + narrow


@pytest.mark.parametrize(
    ("rows", "block_m", "n", "k", "activation"),
    [(5, 16, 40, 80, "silu"), (40, 32, 24, 160, ""), (70, 64, 72, 256, "silu"), (75, 128, 40, 64, "")],
)
def test_int8_products_are_exact_sums(
    device: torch.device, rows: int, block_m: int, n: int, k: int, activation: str
) -> None:
    experts = 4
    x = torch.randint(-128, 128, (rows, k), dtype=torch.int8, device=device)
    shape = (experts, 2 * n if activation else n, k)
    values = torch.randint(-128, 128, shape, dtype=torch.int8, device=device)
    x_scale = (torch.rand(rows, device=device) + 0.5) / 100
    scales = (torch.rand(shape[:2], device=device) + 0.5) / (100 * k**0.5)
    ids = random_ids(rows, 2, experts, device)
    ids[-1, 0] = -1
    out = torch.empty(rows * 2, n, device=device)
    order = arranged(ids, experts, block_m)
    moe_linear(x, Scaled(values, scales), order, out, activation=activation, x_scale=x_scale)
    exact = values.float() * scales[..., None]
    expected, here = (
        reference.product(x.float() * x_scale[:, None], exact, ids, activation),
        ids.flatten() >= 0,
    )
    assert row_error(out[here], expected[here]) <= rounding(terms=k)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize(
    ("rows", "block_m", "n", "k", "activation"),
    [
        (5, 16, 128, 128, "silu"),
        (9, 16, 40, 300, ""),  # neither rows nor columns fill their blocks
        (40, 32, 256, 200, "gelu"),
        (70, 64, 200, 384, ""),
        (75, 128, 128, 256, "silu"),
    ],
)
def test_blocks_of_weights_have_scales_of_their_own(
    device: torch.device, rows: int, block_m: int, n: int, k: int, activation: str, dtype: torch.dtype
) -> None:
    experts, blocks = 3, -(-k // 128)
    height = 2 * n if activation else n
    x = torch.randn(rows, k, device=device).mul(30).clamp(-127, 127).to(dtype)
    values = torch.randn(experts, height, k, device=device).mul(30).clamp(-127, 127).to(dtype)
    x_scale = (torch.rand(rows, blocks, device=device) + 0.1) / 30
    scales = (torch.rand(experts, -(-height // 128), blocks, device=device) + 0.1) / (30 * k**0.5)
    ids = random_ids(rows, 2, experts, device)
    ids[0, 1] = -1
    out = torch.empty(rows * 2, n, device=device)
    order = arranged(ids, experts, block_m)
    moe_linear(x, Scaled(values, scales), order, out, activation=activation, x_scale=x_scale)
    exact = values.float() * spread(spread(scales, 1), 2)[:, :height, :k]
    expected = reference.product(x.float() * spread(x_scale, 1)[:, :k], exact, ids, activation)
    here = ids.flatten() >= 0
    narrow = 0.0 if device.type == "cpu" else 2 * fp8_sum(128)
    assert row_error(out[here], expected[here]) <= rounding(terms=k) + narrow


def spread(scales: Tensor, dim: int) -> Tensor:
    """Each scale as often as a block of 128 has rows or columns."""
    return scales.repeat_interleave(128, dim)


def test_scales_that_do_not_fit_are_refused(device: torch.device) -> None:
    def like(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int8, device=device)

    ids = torch.zeros(2, 1, dtype=torch.int32, device=device)
    order, x, rows, out = arranged(ids, 3), like(2, 256), torch.ones(2), torch.empty(2, 192, device=device)
    plain, by_blocks = torch.ones(3, 192), torch.ones(3, 2, 2)
    for scales, x_scale, message in (
        (plain[:, :100], rows, r"scales of the weights are .* \[3, 100\], .* must be float32 \[3, 192\]"),
        (by_blocks, rows, r"scales of x are .* \[2\], .* must be float32 \[2, 2\]"),
        (plain.double(), rows, "scales of the weights are torch.float64"),
        (by_blocks, torch.ones(2, 2).T.contiguous().T, "adjacent"),
    ):
        experts = Scaled(like(3, 192, 256), scales.to(device))
        with pytest.raises(ValueError, match=message):
            moe_linear(x, experts, order, out, x_scale=x_scale.to(device))
    experts = Scaled(like(3, 384, 256), torch.ones(3, 3, 2, device=device))
    with pytest.raises(ValueError, match="up begins at row 192, within a block of 128 rows"):
        moe_linear(x, experts, order, out, activation="silu", x_scale=torch.ones(2, 2, device=device))


@pytest.mark.parametrize(("rows", "top_k", "experts"), [(1, 2, 4), (11, 4, 16), (14, 2, 40)])
def test_a_whole_mixture_is_the_references(device: torch.device, rows: int, top_k: int, experts: int) -> None:
    width, inner, dtype = 64, 48, torch.bfloat16
    x = torch.randn(rows, width, device=device).to(dtype)
    router = torch.randn(experts, width, device=device).to(dtype)
    gates, ups = (torch.randn(2, experts, inner, width, device=device) / 8).to(dtype)
    downs = (torch.randn(experts, width, inner, device=device) / 8).to(dtype)
    expected = reference.moe(x, router, gates, ups, downs, top_k, True, "silu")
    out = mixture(x, router, torch.cat((gates, ups), 1), downs, top_k)
    # The hidden numbers are rounded, what down makes of them, and the reference's own hidden numbers.
    assert row_error(out, expected) <= rounding(dtype, dtype, dtype, terms=width)


def mixture(
    x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int, here: Tensor | None = None
) -> Tensor:
    rows, like = len(x), partial(torch.empty, device=x.device)
    ids, weights = like(rows, top_k, dtype=torch.int32), like(rows, top_k)
    logits = (x.double() @ router.double().T).float()  # as precise for one row as for many
    route(logits, top_k, True, ids, weights, here=here)
    order = arranged(ids, len(gate_up))
    hidden = like(rows * top_k, down.shape[2], dtype=x.dtype)
    moe_linear(x, gate_up, order, hidden, activation="silu")
    y = moe_linear(hidden, down, order, like(rows * top_k, x.shape[1], dtype=x.dtype))
    return combine(y, ids, weights, torch.empty_like(x, dtype=torch.float32))


def test_shards_of_the_experts_add_up_to_the_whole(device: torch.device) -> None:
    rows, top_k, experts, width, inner = 9, 3, 8, 32, 24
    x = torch.randn(rows, width, device=device)
    router = torch.randn(experts, width, device=device)
    gate_up = torch.randn(experts, 2 * inner, width, device=device) / 8
    down = torch.randn(experts, width, inner, device=device) / 8
    total = torch.zeros(rows, width, device=device)
    for shard in ([0, 3, 5], [1, 2, 4, 6, 7]):
        here = torch.full((experts,), -1, dtype=torch.int32, device=device)
        here[shard] = torch.arange(len(shard), dtype=torch.int32, device=device)
        total += mixture(x, router, gate_up[shard], down[shard], top_k, here)
    assert row_error(total, mixture(x, router, gate_up, down, top_k)) <= rounding(terms=width)


def test_a_rows_result_is_the_same_alone_and_in_company(device: torch.device) -> None:
    x = torch.randn(12, 64, device=device).bfloat16()
    router = torch.randn(8, 64, device=device)
    gate_up = (torch.randn(8, 64, 64, device=device) / 8).bfloat16()
    down = (torch.randn(8, 64, 32, device=device) / 8).bfloat16()
    together = mixture(x, router, gate_up, down, 2)
    assert torch.equal(together, mixture(x, router, gate_up, down, 2))
    for row in (0, 7):
        assert torch.equal(mixture(x[row : row + 1], router, gate_up, down, 2)[0], together[row])


def packed_experts(
    experts: int, n: int, k: int, group: int, kind: str, dtype: torch.dtype, device: torch.device
) -> tuple[Packed, Tensor]:
    """Packed and exact matrices [experts, n, k]."""
    matrices, exact = [], []
    for _ in range(experts):
        bits = 8 if kind == "w8" else 4
        codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=device)
        if bits == 8:
            codes = (codes * 16).view(torch.int8)
        scales = (torch.rand(n, k // (group or k), device=device) + 0.5) / (4 * k) / (1 if bits == 4 else 16)
        zeros = torch.randint(0, 16, scales.shape, device=device)
        minimums = {"zeros": -zeros * scales, "minimums": -torch.rand_like(scales) * scales}.get(kind)
        matrices.append(pack(codes, scales, minimums, bits=bits, dtype=dtype))
        values, scales, minimums = unpack(matrices[-1])
        wide = scales.repeat_interleave(k // scales.shape[1], 1)
        if minimums is None:
            exact.append((values.float() - (8 if bits == 4 else 0)) * wide)
        else:
            exact.append(values.float() * wide + minimums.repeat_interleave(k // scales.shape[1], 1))
    return stack_experts(matrices), torch.stack(exact)


@pytest.mark.parametrize(
    ("rows", "experts", "n", "k", "group", "block_m", "kind", "dtype", "activation"),
    [
        (1, 4, 32, 256, 128, 16, "symmetric", torch.bfloat16, "silu"),
        (9, 8, 40, 160, 32, 16, "zeros", torch.float16, ""),
        (20, 4, 24, 192, 64, 32, "minimums", torch.bfloat16, "silu"),
        (40, 3, 72, 160, 0, 64, "zeros", torch.bfloat16, ""),
        (70, 3, 24, 64, 32, 64, "symmetric", torch.float16, "gelu"),
        (75, 2, 40, 128, 128, 128, "symmetric", torch.bfloat16, "silu"),
        (6, 4, 24, 96, 32, 16, "w8", torch.bfloat16, "silu"),
    ],
)
def test_products_of_small_integers_are_the_references(
    device: torch.device,
    rows: int,
    experts: int,
    n: int,
    k: int,
    group: int,
    block_m: int,
    kind: str,
    dtype: torch.dtype,
    activation: str,
) -> None:
    x = torch.randn(rows, k, device=device).to(dtype)
    packed, exact = packed_experts(experts, 2 * n if activation else n, k, group, kind, dtype, device)
    ids = random_ids(rows, 2, experts, device)
    ids[-1, 0] = -1
    out = torch.empty(rows * 2, n, device=device, dtype=dtype)
    moe_linear(x, packed, arranged(ids, experts, block_m), out, activation=activation)
    expected, here = reference.product(x, exact, ids, activation), ids.flatten() >= 0
    # Weights are rounded, those of the gate and of up, and the result.
    assert row_error(out[here], expected[here]) <= rounding(*[dtype] * (3 if activation else 2), terms=k)


def test_experts_of_unlike_form_are_not_packed_together(device: torch.device) -> None:
    codes = torch.zeros(8, 64, dtype=torch.uint8, device=device)
    scales = torch.ones(8, 2, device=device)
    with pytest.raises(ValueError, match="must be equal"):
        stack_experts([pack(codes, scales), pack(codes, scales[:, :1])])


@pytest.mark.parametrize("activation", ["", "silu"])
def test_torchs_grouped_product_is_the_same(device: torch.device, activation: str) -> None:
    x = torch.randn(9, 64, device=device).bfloat16()
    weights = (torch.randn(4, 48, 64, device=device) / 8).bfloat16()
    ids = random_ids(9, 2, 4, device)
    ids[3, 1] = -1
    order, n = arranged(ids, 4, 16), 24 if activation else 48
    out = torch.empty(18, n, device=device, dtype=torch.bfloat16)
    by_torch(x, weights, order, out, activation)
    expected, here = reference.product(x, weights, ids, activation), ids.flatten() >= 0
    # torch rounds gate and up before they are multiplied.
    assert row_error(out[here], expected[here]) <= rounding(*[x.dtype] * (3 if activation else 1), terms=64)


def test_experts_beyond_2_31_numbers_are_found(device: torch.device) -> None:
    # Matrices far apart in memory that is never touched between them.
    k, n, apart = 32, 16, 2**31 // 3 * 2 // 16 * 16
    spread = torch.empty(3 * apart, dtype=torch.float8_e4m3fn, device=device)
    values = spread.as_strided((3, n, k), (apart, k, 1))
    exact = torch.randn(3, n, k, device=device).to(torch.float8_e4m3fn)
    values[2] = exact[2]
    x = torch.randn(2, k, device=device).to(torch.float8_e4m3fn)
    ids = torch.full((2, 1), 2, dtype=torch.int32, device=device)
    ones = torch.ones(3, n, device=device)
    out = torch.empty(2, n, device=device)
    moe_linear(x, Scaled(values, ones), arranged(ids, 3), out, x_scale=torch.ones(2, device=device))
    assert row_error(out, x.float() @ exact[2].float().T) <= rounding(terms=k)


def test_fp8_is_refused_before_hopper() -> None:
    like = partial(torch.empty, device="meta", dtype=torch.float8_e4m3fn)
    order = arrangement(2, 4, 16, torch.device("meta"))
    experts = Scaled(like(4, 16, 32), torch.empty(4, 16, device="meta"))
    ones, out = torch.empty(2, device="meta"), torch.empty(2, 16, device="meta")
    with recording(80), pytest.raises(ValueError, match="products of fp8 start with sm_90"):
        moe_linear(like(2, 32), experts, order, out, x_scale=ones)


def test_a_block_of_rows_that_no_tile_computes_is_refused(device: torch.device) -> None:
    ids = torch.zeros(2, 1, dtype=torch.int32, device=device)
    order, x = arranged(ids, 4, 8), torch.randn(2, 32, device=device)
    with pytest.raises(ValueError, match=r"no tile for block_m 8, dtype torch.float32"):
        moe_linear(x, torch.randn(4, 16, 32, device=device), order, torch.empty(2, 16, device=device))


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("pairs", [1, 100, 1000, 100_000])
def test_every_number_of_pairs_has_blocks_of_a_size_that_is_computed(
    dtype: torch.dtype, pairs: int, blocks: bool
) -> None:
    size = block_m_of(pairs, 8, dtype)
    tile = pick(_table(dtype, blocks), 90, block_m=str(size), dtype=str(dtype))
    assert tile.constants["BLOCK_M"] == size


def test_weights_that_do_not_fit_are_refused(device: torch.device) -> None:
    ids = torch.zeros(2, 1, dtype=torch.int32, device=device)
    order, x = arranged(ids, 4), torch.randn(2, 32, device=device)
    with pytest.raises(ValueError, match=r"weights are \[4, 16, 24\], .* must be \[4, 16, 32\]"):
        moe_linear(x, torch.randn(4, 16, 24, device=device), order, torch.empty(2, 16, device=device))
    weights = torch.randn(4, 16, 32, device=device).bfloat16()
    with pytest.raises(ValueError, match=r"x is torch.float32, the weights are torch.bfloat16"):
        moe_linear(x, weights, order, torch.empty(2, 16, device=device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are CUDA's")
def test_a_graph_of_a_mixture_follows_the_routing(device: torch.device) -> None:
    x = torch.randn(12, 64, device=device).bfloat16()
    router = torch.randn(8, 64, device=device)
    gate_up = (torch.randn(8, 64, 64, device=device) / 8).bfloat16()
    down = (torch.randn(8, 64, 32, device=device) / 8).bfloat16()
    mixture(x, router, gate_up, down, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mixture(x, router, gate_up, down, 2)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(out, mixture(x, router, gate_up, down, 2))
