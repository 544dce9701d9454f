"""Sampling in Triton: what is done to a row of logits, in passes that split it over many programs.

scan      edits and the largest logit of every 64
measure   the mass of a row, and the draw of rows that no filter touches
bound     below what no token of a filtered row can survive
gather    the others, as a list
finish    the filters over that list, and the token
rank, report  log-probabilities

Tiles are of axis 0 and rows of axis 1. A row whose slot (or given token) is negative is padding: nothing is
written for it. What bounds them is memory in scan, measure and gather (a row is read once each, from L2 where
it fits), Philox's arithmetic where a whole row is drawn from, and latency in the others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.sampling.acceptance import draft_of, exceeds, survives, weighed_by
from slipway_kernels.sampling.arithmetic import (
    HOPELESS,
    ID_BITS,
    LAST_ID,
    MASS_UNIT,
    NO_MASS,
    NOTHING,
    UNORDERED,
    best_of,
    exponential,
    highest_place_of,
    key_of,
    mass_of,
    place_of,
    scaled,
    value_of,
)
from slipway_kernels.sampling.edits import edit_lists, edits_lists, is_set, penalized
from slipway_kernels.sampling.filters import NOTES, draw_filtered, kth_place, noted_x
from slipway_kernels.sampling.rows import (
    ALLOWED_AT,
    BLOCK,
    FILTERED,
    INVERSE,
    MIN_P,
    NUM_LOGPROBS,
    PENALIZED,
    SEED_HIGH,
    SEED_LOW,
    TILES,
    TOP_K,
    TOP_P,
    TYPICAL_P,
    first_of,
    first_tile,
    float_of,
    largest_key,
    load_row,
    note_maxima,
    sum_of_tiles,
    winner_of_tiles,
)


@triton.jit
def scan_kernel(
    logits_ptr,  # [rows, vocab]
    logits_stride,
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]
    records_stride,
    tokens_ptr,  # [num_slots, max_len]
    tokens_stride,
    lengths_ptr,  # [rows]
    prompt_len_ptr,  # [num_slots]
    masks_ptr,  # [rows, vocab / 32]  or None
    masks_stride,
    masked_ptr,  # [rows]
    counts_ptr,  # [rows, vocab]  int32, or None: the same memory as `edited`
    edited_ptr,  # [rows, vocab]  fp32, or None
    edited_stride,
    touched_ptr,  # [rows]
    raw_blocks_ptr,  # [rows, tiles · TILE / 64]
    raw_tiles_ptr,  # [rows, tiles]
    blocks_ptr,
    tiles_ptr,
    vocab,
    num_tiles,
    TILE: tl.constexpr,
    LIST: tl.constexpr,
):
    """Maxima of the untouched row and of the edited one, which is written where a record asks for edits."""
    row = tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    begin = tl.program_id(0) * TILE
    token = begin + tl.arange(0, TILE)
    inside = token < vocab
    at = row.to(tl.int64) * logits_stride + token
    value = tl.load(logits_ptr + at, mask=inside, other=-float("inf")).to(tl.float32)
    note_maxima(value, row, num_tiles, raw_blocks_ptr, raw_tiles_ptr, TILE)
    if edited_ptr is not None:
        record = records_ptr + slot * records_stride
        known = tl.load(lengths_ptr + row)
        num_output = known - tl.load(prompt_len_ptr + slot)
        listed = edits_lists(record, num_output)
        allowed_at = tl.load(record + ALLOWED_AT)
        touched = listed | (allowed_at > 0)
        value = tl.where(is_set(record + allowed_at, token, inside & (allowed_at > 0)), value, -float("inf"))
        if masks_ptr is not None:
            masked = tl.load(masked_ptr + row) != 0
            touched = touched | masked
            words = masks_ptr + row.to(tl.int64) * masks_stride
            value = tl.where(is_set(words, token, inside & masked), value, -float("inf"))
        at = row.to(tl.int64) * edited_stride + token
        if counts_ptr is not None:
            # Read before the edited logits take their place.
            penalizes = tl.load(record + PENALIZED) != 0
            count = tl.load(counts_ptr + at, mask=inside & penalizes, other=0)
            touched = touched | penalizes
        if listed:
            tl.store(edited_ptr + at, value, mask=inside)
            edited = edited_ptr + row.to(tl.int64) * edited_stride
            history = tokens_ptr + slot * tokens_stride
            end = tl.minimum(begin + TILE, vocab)
            edit_lists(record, history, known, num_output, edited, begin, end, LIST)
            value = tl.load(edited_ptr + at, mask=inside, other=-float("inf"))
        if counts_ptr is not None:
            value = penalized(value, count, record)
        tl.store(edited_ptr + at, value, mask=inside & touched)
        tl.store(touched_ptr + row, touched.to(tl.int32), mask=begin == 0)
        note_maxima(value, row, num_tiles, blocks_ptr, tiles_ptr, TILE)


@triton.jit
def measure_kernel(
    logits_ptr,  # [rows, vocab]
    logits_stride,
    edited_ptr,  # [rows, vocab]  or None
    edited_stride,
    touched_ptr,  # [rows]
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]  or None, where every row is reported
    records_stride,
    lengths_ptr,  # [rows]
    raw_tiles_ptr,  # [rows, tiles]
    tiles_ptr,  # [rows, tiles]
    raw_masses_ptr,  # [rows, tiles]  int64
    masses_ptr,  # [rows, tiles]  int64
    weighed_ptr,  # [rows, tiles]  int64, or None: no draft stands for a draw
    above_ptr,  # [rows, tiles, NOTES]  fp32
    scores_ptr,  # [rows, tiles]  fp64
    winners_ptr,  # [rows, tiles]
    vocab,
    num_tiles,
    RANDOM: tl.constexpr,
    FILTERS: tl.constexpr,
    REPORTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """By tile: exp(logit - largest) for reports, exp(x) for top-p, the best x + noise for a draw.

    And exp(x) and exp(x) · x, where drafts may stand for draws."""
    row = tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocab
    tile = row.to(tl.int64) * num_tiles + tl.program_id(0)
    if REPORTS:
        reports = slot >= 0
        if records_ptr is not None:
            reports = tl.load(records_ptr + slot * records_stride + NUM_LOGPROBS) >= 0
        if reports:
            top = value_of(largest_key(raw_tiles_ptr, row, num_tiles))
            at = logits_ptr + row.to(tl.int64) * logits_stride + token
            value = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)
            tl.store(raw_masses_ptr + tile, tl.sum(mass_of(exponential(scaled(value, top, 1.0))), axis=0))
    if RANDOM:
        record = records_ptr + slot * records_stride
        inverse = float_of(record + INVERSE)
        filtered = tl.load(record + FILTERED) != 0
        weighed = (float_of(record + TOP_P) < 1.0) & (tl.load(record + TOP_K) == 0)
        if (inverse > 0.0) & (weighed | (filtered == 0)):
            top = value_of(largest_key(tiles_ptr, row, num_tiles))
            value = load_row(
                logits_ptr, logits_stride, edited_ptr, edited_stride, touched_ptr, row, token, inside
            )
            x = scaled(value, top, inverse)
            if FILTERS and filtered:
                power = exponential(x)
                tl.store(masses_ptr + tile, tl.sum(mass_of(power), axis=0))
                above = tl.where(x[:, None] >= noted_x()[None, :], power[:, None], 0.0)
                tl.store(above_ptr + tile * NOTES + tl.arange(0, NOTES), tl.sum(above, axis=0))
            else:
                best = inverse.to(tl.float64) * 0.0 - float("inf")
                winner = row * 0 - 1
                alive = x >= HOPELESS
                if tl.max(alive.to(tl.int32), axis=0) > 0:
                    position = tl.load(lengths_ptr + row)
                    seed_low, seed_high = tl.load(record + SEED_LOW), tl.load(record + SEED_HIGH)
                    best, winner = best_of(best, winner, x, token, alive, seed_low, seed_high, position)
                tl.store(scores_ptr + tile, best)
                tl.store(winners_ptr + tile, winner)
                if weighed_ptr is not None:
                    mass = mass_of(exponential(x))
                    tl.store(masses_ptr + tile, tl.sum(mass, axis=0))
                    tl.store(weighed_ptr + tile, tl.sum(weighed_by(mass, x), axis=0))


@triton.jit
def above_of_tiles(above_ptr, row, num_tiles):
    """[NOTES]  exp(x) of a row, summed over the tokens above each noted x."""
    held = tl.zeros([TILES, NOTES], tl.float32)
    for start in range(0, num_tiles, TILES):
        tile = start + tl.arange(0, TILES)
        at = (row.to(tl.int64) * num_tiles + tile)[:, None] * NOTES + tl.arange(0, NOTES)[None, :]
        held += tl.load(above_ptr + at, mask=tile[:, None] < num_tiles, other=0.0)
    return tl.sum(held, axis=0)


@triton.jit
def bound_kernel(
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]
    records_stride,
    blocks_ptr,  # [rows, num_blocks]
    tiles_ptr,  # [rows, tiles]
    masses_ptr,  # [rows, tiles]
    above_ptr,  # [rows, tiles, NOTES]
    floors_ptr,  # [rows]  int64: the lowest place
    floors_x_ptr,  # [rows]  fp32: the lowest x
    counts_ptr,  # [rows]  of candidates: cleared here
    vocab,
    num_blocks,
    num_tiles,
    CHUNK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """Bounds of the tokens that can survive a row's filters; all above them become candidates.

    The k largest tokens lie in the k blocks with the largest maxima, lower blocks first where they are
    equal: in any other block, each token has k before it. The nucleus ends above the highest noted x above
    which there is enough for it, and with a token of at least the mean mass of what it leaves out.
    """
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    tl.store(counts_ptr + row, 0)
    record = records_ptr + slot * records_stride
    if (float_of(record + INVERSE) > 0.0) & (tl.load(record + FILTERED) != 0):
        top_key = largest_key(tiles_ptr, row, num_tiles)
        zero = slot * 0
        floor = (zero + NOTHING + 1) << ID_BITS
        top_k = tl.load(record + TOP_K)
        if (top_k > 0) & (top_k <= num_blocks):
            high = (top_key.to(tl.int64) + 1) << ID_BITS
            low = (zero + NOTHING) << ID_BITS
            blocks = blocks_ptr + row.to(tl.int64) * num_blocks
            cut = kth_place(blocks, None, num_blocks, top_k, low, high, CHUNK, PIVOTS)
            last = ((cut & LAST_ID) ^ LAST_ID) * BLOCK + (BLOCK - 1)
            floor = tl.maximum(floor, ((cut >> ID_BITS) << ID_BITS) | (last ^ LAST_ID))
        floor_x = float_of(record + INVERSE) * 0.0 + NO_MASS
        top_p = float_of(record + TOP_P)
        if (top_k == 0) & (top_p < 1.0):
            total = sum_of_tiles(masses_ptr, row, num_tiles).to(tl.float64)
            # Less one unit for rounding the share up, and one for rounding masses.
            rest = ((1.0 - top_p.to(tl.float64)) * total - 1.0) / vocab - 1.0
            if rest > 1.0:
                floor_x = tl.maximum(floor_x, (tl.log(rest / MASS_UNIT) - 1e-3).to(tl.float32))
            # 1e-4 outweighs the rounding of sums in fp32.
            enough = above_of_tiles(above_ptr, row, num_tiles) * (1.0 - 1e-4) >= top_p * (total / MASS_UNIT)
            floor_x = tl.maximum(floor_x, tl.max(tl.where(enough, noted_x(), NO_MASS), axis=0))
        min_p = float_of(record + MIN_P)
        # After top-k, top-p takes its share of tokens that min-p would leave out.
        if (min_p > 0.0) & ((top_k == 0) | (top_p >= 1.0)):
            floor_x = tl.maximum(floor_x, (tl.log(min_p.to(tl.float64)) - 1e-3).to(tl.float32))
        tl.store(floors_ptr + row, floor)
        tl.store(floors_x_ptr + row, floor_x)


@triton.jit
def gather_kernel(
    logits_ptr,  # [rows, vocab]
    logits_stride,
    edited_ptr,  # [rows, vocab]  or None
    edited_stride,
    touched_ptr,  # [rows]
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]
    records_stride,
    tiles_ptr,  # [rows, tiles]
    floors_ptr,  # [rows]
    floors_x_ptr,  # [rows]
    counts_ptr,  # [rows]
    keys_ptr,  # [rows, vocab]
    ids_ptr,  # [rows, vocab]
    candidates_stride,
    vocab,
    num_tiles,
    TILE: tl.constexpr,
):
    """The tokens above both bounds, in any order: nothing that follows depends on it."""
    row = tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    record = records_ptr + slot * records_stride
    inverse = float_of(record + INVERSE)
    if (inverse > 0.0) & (tl.load(record + FILTERED) != 0):
        top = value_of(largest_key(tiles_ptr, row, num_tiles))
        floor, floor_x = tl.load(floors_ptr + row), tl.load(floors_x_ptr + row)
        most = tl.load(tiles_ptr + row.to(tl.int64) * num_tiles + tl.program_id(0))
        if (scaled(value_of(most), top, inverse) >= floor_x) & (highest_place_of(most) >= floor):
            token = tl.program_id(0) * TILE + tl.arange(0, TILE)
            inside = token < vocab
            value = load_row(
                logits_ptr, logits_stride, edited_ptr, edited_stride, touched_ptr, row, token, inside
            )
            key = key_of(value)
            kept = inside & (scaled(value, top, inverse) >= floor_x) & (place_of(key, token) >= floor)
            number = kept.to(tl.int32)
            first = tl.atomic_add(counts_ptr + row, tl.sum(number, axis=0), sem="relaxed")
            at = row.to(tl.int64) * candidates_stride + first + tl.cumsum(number, axis=0) - number
            tl.store(keys_ptr + at, key, mask=kept)
            tl.store(ids_ptr + at, token, mask=kept)


@triton.jit(do_not_specialize=["num_rows"])
def finish_kernel(
    logits_ptr,  # [rows, vocab]
    logits_stride,
    edited_ptr,  # [rows, vocab]  or None
    edited_stride,
    touched_ptr,  # [rows]
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]
    records_stride,
    lengths_ptr,  # [rows]
    tokens_ptr,  # [num_slots, max_len]  or None, as weighed_ptr
    tokens_stride,
    raw_tiles_ptr,  # [rows, tiles]
    tiles_ptr,  # [rows, tiles]
    masses_ptr,  # [rows, tiles]
    weighed_ptr,  # [rows, tiles]  or None: no draft stands for a draw
    scores_ptr,  # [rows, tiles]
    winners_ptr,  # [rows, tiles]
    counts_ptr,  # [rows]
    keys_ptr,  # [rows, vocab]
    ids_ptr,  # [rows, vocab]
    candidates_stride,
    token_ptr,  # [rows]
    failed_ptr,  # [rows]
    threshold,
    alpha,
    num_rows,
    vocab,
    num_tiles,
    tile_size,
    RANDOM: tl.constexpr,
    FILTERS: tl.constexpr,
    CHUNK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """One token for each row; -1 and `failed` where a row holds a NaN or nothing above -inf."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    record = records_ptr + slot * records_stride
    raw_key = largest_key(raw_tiles_ptr, row, num_tiles)
    top_key = largest_key(tiles_ptr, row, num_tiles)
    drawable = (raw_key != UNORDERED) & (raw_key != NOTHING) & (top_key != UNORDERED) & (top_key != NOTHING)
    tl.store(failed_ptr + row, 1 - drawable.to(tl.int32))
    token = row * 0 - 1
    if drawable:
        inverse = float_of(record + INVERSE)
        if RANDOM and inverse > 0.0:
            draft = slot.to(tl.int32) * 0 - 1
            if weighed_ptr is not None:
                draft = draft_of(slots_ptr, tokens_ptr, tokens_stride, lengths_ptr, row, slot, num_rows)
            if FILTERS and tl.load(record + FILTERED) != 0:
                at = row.to(tl.int64) * candidates_stride
                count = tl.load(counts_ptr + row)
                token, kept, mean, by_surprise = draw_filtered(
                    *(keys_ptr + at, ids_ptr + at, count),
                    *(sum_of_tiles(masses_ptr, row, num_tiles), top_key, inverse),
                    *(tl.load(record + TOP_K), float_of(record + TOP_P), float_of(record + MIN_P)),
                    *(float_of(record + TYPICAL_P), tl.load(record + SEED_LOW), tl.load(record + SEED_HIGH)),
                    *(tl.load(lengths_ptr + row), CHUNK, PIVOTS),
                )
                if weighed_ptr is not None and draft >= 0:
                    candidates = (keys_ptr + at, ids_ptr + at, count, value_of(top_key), inverse)
                    if survives(candidates, kept, mean, by_surprise, draft, threshold, alpha, CHUNK):
                        token = draft
            else:
                token = winner_of_tiles(scores_ptr, winners_ptr, row, num_tiles)
                if weighed_ptr is not None and (draft >= 0) & (draft < vocab):
                    value = load_row(
                        *(logits_ptr, logits_stride, edited_ptr, edited_stride, touched_ptr, row),
                        *(draft, draft >= 0),
                    )
                    its_mass = mass_of(exponential(scaled(value, value_of(top_key), inverse)))
                    mass = sum_of_tiles(masses_ptr, row, num_tiles)
                    if exceeds(its_mass, mass, sum_of_tiles(weighed_ptr, row, num_tiles), threshold, alpha):
                        token = draft
        else:
            tile = first_tile(tiles_ptr, row, num_tiles, top_key)
            token = first_of(
                *(logits_ptr, logits_stride, edited_ptr, edited_stride, touched_ptr, row),
                *(tile * tile_size, tl.minimum((tile + 1) * tile_size, vocab), top_key, CHUNK),
            )
    tl.store(token_ptr + row, token)
