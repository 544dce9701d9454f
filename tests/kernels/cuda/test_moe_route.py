from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.moe import Arrangement, arrange, arrangement, combine, reference, route


def routed(logits: Tensor, top_k: int, normalize: bool = False, **options: object) -> tuple[Tensor, Tensor]:
    ids = torch.empty(len(logits), top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(len(logits), top_k, device=logits.device)
    route(logits, top_k, normalize, ids, weights, **options)
    return ids, weights


@pytest.mark.parametrize(
    ("experts", "top_k", "dtype", "options"),
    [
        (4, 1, torch.float32, {}),
        (8, 2, torch.bfloat16, {"normalize": True}),
        (60, 4, torch.float32, {"scaling": 2.5}),
        (128, 8, torch.bfloat16, {"normalize": True}),
        (512, 16, torch.float32, {"normalize": True, "kind": "sigmoid"}),
        (64, 6, torch.float32, {"groups": 8, "kept_groups": 3, "scaling": 16.0}),
        (24, 4, torch.float32, {"groups": 6, "kept_groups": 2, "kind": "sigmoid", "normalize": True}),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_routing_is_the_references(
    device: torch.device, experts: int, top_k: int, dtype: torch.dtype, options: dict, biased: bool
) -> None:
    logits = torch.randn(7, 2 * experts, device=device).to(dtype)[:, :experts]  # rows apart in memory
    if biased:
        options = {**options, "bias": torch.randn(experts, device=device)}
    ids, weights = routed(logits, top_k, **options)
    expected_ids, expected = reference.route(logits, top_k, **{"normalize": False, **options})
    assert torch.equal(ids.long(), expected_ids)
    assert row_error(weights, expected) <= rounding(torch.float32, terms=experts)


@pytest.mark.parametrize("options", [{}, {"kind": "sigmoid", "groups": 4, "kept_groups": 2}])
def test_of_equal_experts_the_lower_one_comes_first(device: torch.device, options: dict) -> None:
    logits = torch.tensor([0.0, -0.0, 1.0, 0.0, 1.0, -0.0, 0.0, 0.0], device=device).repeat(2, 1)
    ids, _ = routed(logits, 4, **options)
    assert ids.tolist() == [[2, 4, 0, 1] if not options else [2, 4, 3, 5]] * 2


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, in the interpreter
def test_a_nan_still_chooses_experts_that_exist_and_differ(device: torch.device) -> None:
    logits = torch.full((1, 8), torch.nan, device=device)
    ids, _ = routed(logits, 4)
    assert len(set(ids[0].tolist())) == 4
    assert 0 <= ids.min() <= ids.max() < 8


def test_padding_rows_choose_nothing_and_experts_elsewhere_are_left_out(device: torch.device) -> None:
    logits = torch.randn(4, 8, device=device)
    slots = torch.tensor([3, -1, 0, -1], dtype=torch.int32, device=device)
    here = torch.tensor([-1, 0, -1, 1, -1, 2, -1, 3], dtype=torch.int32, device=device)
    everywhere, weights = routed(logits, 3, True)
    ids, same = routed(logits, 3, True, here=here, slots=slots)
    live = slots >= 0
    assert torch.equal(ids[live], here[everywhere[live].long()])
    assert torch.equal(same[live], weights[live])
    assert (ids[~live] == -1).all()
    assert (same[~live] == 0).all()


def arranged(ids: Tensor, experts: int, block_m: int) -> Arrangement:
    order = arrangement(ids.numel(), experts, block_m, ids.device)
    for tensor in (order.sorted_pairs, order.expert_of_block, order.counts, order.partial):
        tensor.fill_(12345)  # what an earlier step left there
    return arrange(ids, order)


def random_ids(rows: int, top_k: int, experts: int, device: torch.device) -> Tensor:
    scores = torch.rand(rows, experts, device=device)
    return scores.topk(top_k).indices.int()


@pytest.mark.parametrize(
    ("rows", "top_k", "experts", "block_m"),
    [(1, 1, 4, 16), (1, 8, 64, 16), (7, 2, 8, 16), (33, 8, 40, 32), (300, 4, 12, 64), (700, 8, 64, 128)],
)
def test_pairs_are_sorted_by_expert_and_then_by_row(
    device: torch.device, rows: int, top_k: int, experts: int, block_m: int
) -> None:
    ids = random_ids(rows, top_k, experts, device)
    ids[torch.rand(rows, top_k, device=device) < 0.1] = -1
    order = arranged(ids, experts, block_m)
    expected = reference.arrange(ids.cpu(), experts, block_m, len(order.expert_of_block))
    for ours, theirs in zip((order.sorted_pairs, order.expert_of_block, order.counts), expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("rows", [5, 2100])
@pytest.mark.parametrize("only", [0, 5, -1])
def test_one_expert_may_take_all_rows_or_none(device: torch.device, rows: int, only: int) -> None:
    ids = torch.full((rows, 2), only, dtype=torch.int32, device=device)
    order = arranged(ids, 6, 32)
    expected = reference.arrange(ids.cpu(), 6, 32, len(order.expert_of_block))
    for ours, theirs in zip((order.sorted_pairs, order.expert_of_block, order.counts), expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_the_worst_routing_fits_exactly() -> None:
    # One pair for each of 3 experts and the rest for one of them: no two runs share a block.
    ids = torch.tensor([[0, 1], [2, 2], [2, 2], [2, 2], [2, 2]], dtype=torch.int32)
    order = arrangement(ids.numel(), 3, 4, ids.device)
    assert len(order.expert_of_block) == 4  # 1 + 1 + 2


def test_an_arrangement_for_another_number_of_pairs_is_refused(device: torch.device) -> None:
    order = arrangement(8, 4, 16, device)
    with pytest.raises(ValueError, match="the arrangement holds 64 where 256 are needed"):
        arrange(torch.zeros(100, 2, dtype=torch.int32, device=device), order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "top_k", "width"), [(1, 1, 64), (3, 2, 300), (5, 8, 576), (2, 6, 40)])
@pytest.mark.parametrize("shared", ["", "whole", "gated"])
def test_a_combination_is_the_references(
    device: torch.device, dtype: torch.dtype, rows: int, top_k: int, width: int, shared: str
) -> None:
    y = torch.randn(rows * top_k, width, device=device).to(dtype)
    ids = torch.randint(0, 9, (rows, top_k), dtype=torch.int32, device=device)
    ids[-1, 0] = -1
    y[(rows - 1) * top_k] = torch.nan  # no expert of this device wrote it
    weights = torch.rand(rows, top_k, device=device)
    always = torch.randn(rows, width, device=device).to(dtype) if shared else None
    gate = torch.randn(rows, 1, device=device).to(dtype) if shared == "gated" else None
    out = torch.empty(rows, 2 * width, device=device, dtype=dtype)[:, :width]
    combine(y, ids, weights, out, shared=always, shared_gate=gate)
    whole = always if always is None or gate is None else always.float() * torch.sigmoid(gate.float())
    expected = reference.combine(y, ids, weights, whole)
    assert row_error(out, expected) <= rounding(dtype, terms=top_k)


def test_ids_apart_in_memory_are_refused(device: torch.device) -> None:
    ids = torch.empty(3, 8, dtype=torch.int32, device=device)[:, :4]
    with pytest.raises(ValueError, match=r"ids is \[3, 4\] of torch.int32, by strides of \[8, 1\]"):
        route(torch.randn(3, 16, device=device), 4, True, ids, torch.empty(3, 4, device=device))


def test_sizes_that_no_kernel_routes_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="top_k is 17 of 32 experts"):
        routed(torch.randn(1, 32, device=device), 17)
    with pytest.raises(ValueError, match="2 of 5 groups of 32 experts"):
        routed(torch.randn(1, 32, device=device), 4, groups=5, kept_groups=2)
