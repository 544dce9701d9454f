"""The mixture of experts' definition."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.activation.reference import activate
from slipway_kernels.linear.reference import linear, linear_gated


def route(
    logits: Tensor,
    top_k: int,
    normalize: bool,
    *,
    kind: str = "softmax",
    bias: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    scaling: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Experts and weights [rows, top_k], best first; of equals the lower expert.

    An expert's score is its share of the softmax over all experts, or the sigmoid of its logit. The bias
    [experts] is added for the choice alone. Of several groups of neighbours only `kept_groups` are chosen
    from: those with the largest sum of two scores where there is a bias, else the largest score.
    Source: DeepSeek-AI 2024 (V2, V3).
    """
    scores = logits.float().softmax(-1) if kind == "softmax" else logits.float().sigmoid()
    choice = scores if bias is None else scores + bias.float()  # [rows, experts]
    if kept_groups < groups:
        members = choice.view(len(choice), groups, -1)
        worth = members.sort(-1, descending=True).values[..., : 1 if bias is None else 2].sum(-1)
        kept = worth.sort(dim=-1, descending=True, stable=True).indices[:, :kept_groups]
        dropped = torch.ones_like(worth, dtype=torch.bool).scatter(1, kept, False)
        choice = members.masked_fill(dropped[..., None], -torch.inf).flatten(1)
    experts = choice.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, experts)
    if normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all vanish
    return experts, weights * scaling


def arrange(ids: Tensor, experts: int, block_m: int, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted pairs [blocks · block_m], expert_of_block [blocks] and counts [experts] of ids [rows, top_k].

    Expert by expert, the flat numbers row · top_k + j of its pairs in ascending order, then -1 to a whole
    block. Blocks that nothing needs hold -1 and are of expert -1.
    """
    sorted_pairs = torch.full((blocks * block_m,), -1, dtype=torch.int32)
    expert_of_block = torch.full((blocks,), -1, dtype=torch.int32)
    counts = torch.zeros(experts, dtype=torch.int32)
    first = 0
    for expert in range(experts):
        pairs = (ids.flatten() == expert).nonzero().flatten()
        counts[expert] = len(pairs)
        sorted_pairs[first * block_m : first * block_m + len(pairs)] = pairs.int()
        used = -(-len(pairs) // block_m)
        expert_of_block[first : first + used] = expert
        first += used
    return sorted_pairs, expert_of_block, counts


def product(x: Tensor, weights: Tensor, ids: Tensor, activation: str = "") -> Tensor:
    """Each row's product with each of its experts, in fp32: [rows · top_k, n], zeros where the id is -1.

    x        [rows, k], or [rows · top_k, k] where each pair has a row of its own
    weights  [experts, n, k], or [experts, 2 · n, k], gate above up, where there is an activation
    """
    pairs = ids.flatten()
    share = len(pairs) // max(len(x), 1)
    n = weights.shape[1] // (2 if activation else 1)
    out = torch.zeros(len(pairs), n, device=x.device)
    for expert in range(len(weights)):
        own = (pairs == expert).nonzero().flatten()
        y = linear(x[own // share], weights[expert])
        out[own] = activate(y[:, :n], activation) * y[:, n:] if activation else y
    return out


def combine(y: Tensor, ids: Tensor, weights: Tensor, shared: Tensor | None = None) -> Tensor:
    """Σ_j weights[row, j] · y[row, j] + shared[row], of the pairs whose expert is here.

    y [rows · top_k, width]; ids, weights [rows, top_k]; shared [rows, width] → fp32 [rows, width]
    """
    pairs = y.float().view(*ids.shape, -1).masked_fill(ids[..., None] < 0, 0.0)
    total = (pairs * weights[..., None]).sum(1)
    return total if shared is None else total + shared.float()


def moe(
    x: Tensor,
    router: Tensor,
    gates: Tensor,
    ups: Tensor,
    downs: Tensor,
    top_k: int,
    normalize: bool,
    activation: str,
) -> Tensor:
    """Weighted sum over the experts of each row.   gates, ups [experts, n, k], downs [experts, k, n]"""
    experts, weights = route(linear(x, router), top_k, normalize)
    out = torch.zeros(x.shape)
    for row in range(len(x)):
        for weight, expert in zip(weights[row], experts[row], strict=True):
            hidden = linear_gated(x[row : row + 1], gates[expert], ups[expert], activation)
            out[row] += weight * linear(hidden.to(x.dtype), downs[expert])[0]
    return out
