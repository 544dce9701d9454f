"""Choosing experts, sorting rows by them and summing their results, in Triton.

All three are bound by latency: a step of decoding launches them once a layer for a few hundred numbers, so
each is one launch, without a sort or an atomic between programs, and its result never varies.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _keys(values, index, LAST: tl.constexpr):
    """int64 that order as (value descending, index ascending); a NaN has a fixed position too."""
    # Adding zero makes -0 into 0: they are equal, so that the index must decide.
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (LAST - index).to(tl.int64)


@triton.jit
def _best(keys):
    return tl.max(tl.max(keys, axis=1), axis=0)


@triton.jit
def _without_groups(
    keys, choice, group, inside, groups, kept_groups, TWO: tl.constexpr, GROUPS: tl.constexpr
):
    """The keys of the kept groups' experts, the least for all others."""
    least: tl.constexpr = -(2**63)
    best = tl.max(keys, axis=1)  # [GROUPS]
    worth = tl.max(tl.where(inside, choice, float("-inf")), axis=1)
    if TWO:
        rest = tl.where(inside & (keys != best[:, None]), choice, float("-inf"))
        worth += tl.max(rest, axis=1)
    left = tl.where(group < groups, _keys(worth, group, GROUPS - 1), least)
    kept = group < 0
    for _ in range(kept_groups):
        chosen_now = left == tl.max(left, axis=0)
        kept |= chosen_now
        left = tl.where(chosen_now, least, left)
    return tl.where(kept[:, None], keys, least)


@triton.jit
def route_kernel(
    logits_ptr,  # [rows, experts]
    bias_ptr,  # [experts]  or None
    here_ptr,  # [experts] int32: its number on this device or -1;  or None
    slots_ptr,  # [rows] int32, -1: padding;  or None
    ids_ptr,  # [rows, top_k] int32
    weights_ptr,  # [rows, top_k] fp32
    logits_stride,
    experts,
    groups,
    members,
    top_k,
    kept_groups,
    scaling,
    SIGMOID: tl.constexpr,
    NORMALIZE: tl.constexpr,
    LIMITED: tl.constexpr,
    GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,
    TOP_K: tl.constexpr,
):
    """score = softmax or sigmoid of logits; the top_k of score + bias; weight = score · scaling / total.

    The experts stand as a tile of groups by members. Value and index are one 64-bit key, so that each choice
    is one reduction within a warp and no two are equal.
    """
    least: tl.constexpr = -(2**63)
    row = tl.program_id(0).to(tl.int64)
    nth = tl.arange(0, TOP_K)
    at = row * top_k + nth
    chosen = tl.full((TOP_K,), -1, tl.int32)
    score_of = tl.zeros((TOP_K,), tl.float32)
    live = True
    if slots_ptr is not None:
        live = tl.load(slots_ptr + row) >= 0
    if live:
        group, member = tl.arange(0, GROUPS), tl.arange(0, MEMBERS)
        expert = group[:, None] * members + member[None, :]  # [GROUPS, MEMBERS]
        inside = (group < groups)[:, None] & (member < members)[None, :]
        logits = tl.load(logits_ptr + row * logits_stride + expert, mask=inside, other=float("-inf"))
        logits = logits.to(tl.float32)
        if SIGMOID:
            scores = 1.0 / (1.0 + tl.exp(-logits))
        else:
            scores = tl.exp(logits - tl.max(tl.max(logits, axis=1), axis=0))
            scores /= tl.sum(tl.sum(scores, axis=1), axis=0)
        choice = scores
        if bias_ptr is not None:
            choice += tl.load(bias_ptr + expert, mask=inside, other=0.0).to(tl.float32)
        keys = tl.where(inside, _keys(choice, expert, 0x7FFFFFFF), least)
        if LIMITED:
            two: tl.constexpr = bias_ptr is not None
            keys = _without_groups(keys, choice, group, inside, groups, kept_groups, two, GROUPS)
        for j in range(top_k):
            best = _best(keys)
            chosen_now = keys == best
            keys = tl.where(chosen_now, least, keys)
            score = tl.sum(tl.sum(tl.where(chosen_now & inside, scores, 0.0), axis=1), axis=0)
            chosen = tl.where(nth == j, 0x7FFFFFFF - (best & 0x7FFFFFFF).to(tl.int32), chosen)
            score_of = tl.where(nth == j, score, score_of)
        if NORMALIZE:
            score_of /= tl.sum(score_of, axis=0) + 1e-20  # sigmoids may all vanish
        score_of *= scaling
        if here_ptr is not None:
            chosen = tl.load(here_ptr + chosen, mask=nth < top_k, other=-1)
    tl.store(ids_ptr + at, chosen, mask=nth < top_k)
    tl.store(weights_ptr + at, score_of, mask=nth < top_k)


@triton.jit
def _histogram(ids_ptr, first, pairs, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    """How many of the CHUNK pairs from `first` go to each expert."""
    at = first + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + at, mask=at < pairs, other=-1)
    return tl.histogram(tl.maximum(ids, 0), EXPERTS, mask=ids >= 0)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def arrange_kernel(
    ids_ptr,  # [pairs] int32
    sorted_pairs_ptr,  # [blocks · block_m] int32
    expert_of_block_ptr,  # [blocks] int32
    counts_ptr,  # [experts] int32
    pairs,
    experts,
    blocks,
    block_m,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program an expert: all count all pairs, then each writes its own run.

    The last program, one more than there are experts, writes what no run needs.
    """
    mine = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, pairs, CHUNK):
        counts += _histogram(ids_ptr, first, pairs, EXPERTS, CHUNK)
    used = (counts + block_m - 1) // block_m  # [EXPERTS] blocks
    start = tl.sum(tl.where(expert < mine, used, 0), axis=0)
    lane = tl.arange(0, CHUNK)
    if mine == experts:
        tl.store(counts_ptr + expert, counts, mask=expert < experts)
        for first in range(start * block_m, blocks * block_m, CHUNK):
            tl.store(sorted_pairs_ptr + first + lane, -1, mask=first + lane < blocks * block_m)
        for first in range(start, blocks, CHUNK):
            tl.store(expert_of_block_ptr + first + lane, -1, mask=first + lane < blocks)
    else:
        end = start + tl.sum(tl.where(expert == mine, used, 0), axis=0)
        written = start * block_m
        for first in range(0, pairs, CHUNK):
            ids = tl.load(ids_ptr + first + lane, mask=first + lane < pairs, other=-1)
            match = (ids == mine).to(tl.int32)
            tl.store(
                sorted_pairs_ptr + written + tl.cumsum(match, axis=0) - 1, first + lane, mask=ids == mine
            )
            written += tl.sum(match, axis=0)
        for first in range(written, end * block_m, CHUNK):
            tl.store(sorted_pairs_ptr + first + lane, -1, mask=first + lane < end * block_m)
        for first in range(start, end, CHUNK):
            tl.store(expert_of_block_ptr + first + lane, mine, mask=first + lane < end)


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(
    ids_ptr,  # [pairs] int32
    partial_ptr,  # [chunks, experts] int32
    pairs,
    experts,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """How many pairs of each chunk go to each expert."""
    chunk = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    counts = _histogram(ids_ptr, chunk * CHUNK, pairs, EXPERTS, CHUNK)
    tl.store(partial_ptr + chunk * experts + expert, counts, mask=expert < experts)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def scatter_kernel(
    ids_ptr,  # [pairs] int32
    partial_ptr,  # [chunks, experts] int32
    sorted_pairs_ptr,  # [blocks · block_m] int32
    expert_of_block_ptr,  # [blocks] int32
    counts_ptr,  # [experts] int32
    pairs,
    experts,
    blocks,
    block_m,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    PART: tl.constexpr,
):
    """One program a chunk: it finds where its pairs begin in each expert's run, then scatters them.

    Each program scans the chunks' counts itself, which saves a launch. A pair's rank among its
    neighbours comes from comparing PART of them with each other.
    """
    mine, chunks = tl.program_id(0), tl.num_programs(0)
    expert = tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    before = tl.zeros((EXPERTS,), tl.int32)
    for chunk in range(chunks):
        found = tl.load(partial_ptr + chunk * experts + expert, mask=expert < experts, other=0)
        counts += found
        before += tl.where(chunk < mine, found, 0)
    used = (counts + block_m - 1) // block_m
    ends = tl.cumsum(used, axis=0)
    starts = (ends - used) * block_m
    if mine == 0:
        tl.store(counts_ptr + expert, counts, mask=expert < experts)

    lane = tl.arange(0, PART)
    following = starts + before
    for first in range(mine * CHUNK, tl.minimum(mine * CHUNK + CHUNK, pairs), PART):
        ids = tl.load(ids_ptr + first + lane, mask=first + lane < pairs, other=-1)
        same = (ids[:, None] == ids[None, :]) & (lane[None, :] < lane[:, None])  # [PART, PART]
        rank = tl.sum(same.to(tl.int32), axis=1)
        to = tl.gather(following, tl.maximum(ids, 0), 0) + rank
        tl.store(sorted_pairs_ptr + to, first + lane, mask=ids >= 0)
        following += tl.histogram(tl.maximum(ids, 0), EXPERTS, mask=ids >= 0)

    # What no pair writes: of every chunks-th expert its padding and blocks, and a share of what is unused.
    for e in range(mine, experts, chunks):
        one = expert == e
        end = tl.sum(tl.where(one, ends, 0), axis=0)
        padded = tl.sum(tl.where(one, starts + counts, 0), axis=0)
        for first in range(padded, end * block_m, PART):
            tl.store(sorted_pairs_ptr + first + lane, -1, mask=first + lane < end * block_m)
        for first in range(end - tl.sum(tl.where(one, used, 0), axis=0), end, PART):
            tl.store(expert_of_block_ptr + first + lane, e, mask=first + lane < end)
    total = tl.sum(used, axis=0)
    for first in range(total * block_m + mine * PART, blocks * block_m, chunks * PART):
        tl.store(sorted_pairs_ptr + first + lane, -1, mask=first + lane < blocks * block_m)
    for first in range(total + mine * PART, blocks, chunks * PART):
        tl.store(expert_of_block_ptr + first + lane, -1, mask=first + lane < blocks)


@triton.jit
def combine_kernel(
    y_ptr,  # [rows · top_k, width]
    ids_ptr,  # [rows, top_k] int32
    weights_ptr,  # [rows, top_k] fp32
    shared_ptr,  # [rows, width]  or None
    gate_ptr,  # [rows], logits of the shared expert's share;  or None
    out_ptr,  # [rows, width]
    y_stride,
    shared_stride,
    gate_stride,
    out_stride,
    width,
    top_k,
    TOP_K: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out = Σ_j weight_j · y_j + sigmoid(gate) · shared, in fp32 and always in one order.

    Bound by memory; all of a row's y are on their way at once.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    nth = tl.arange(0, TOP_K)
    inside = column < width
    ids = tl.load(ids_ptr + row * top_k + nth, mask=nth < top_k, other=-1)
    weights = tl.load(weights_ptr + row * top_k + nth, mask=nth < top_k, other=0.0)
    at = y_ptr + (row * top_k + nth)[:, None] * y_stride + column[None, :]
    # What an absent expert would have written is anything, even NaN: it is not read.
    y = tl.load(at, mask=(ids >= 0)[:, None] & inside[None, :], other=0.0).to(tl.float32)
    total = tl.sum(y * weights[:, None], axis=0)  # [COLUMNS]
    if shared_ptr is not None:
        shared = tl.load(shared_ptr + row * shared_stride + column, mask=inside, other=0.0).to(tl.float32)
        if gate_ptr is not None:
            shared /= 1.0 + tl.exp(-tl.load(gate_ptr + row * gate_stride).to(tl.float32))
        total += shared
    tl.store(out_ptr + row * out_stride + column, total.to(out_ptr.dtype.element_ty), mask=inside)
