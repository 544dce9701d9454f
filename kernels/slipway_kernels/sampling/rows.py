"""What several kernels read of a row: its record, its logits, and what has been noted of it."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.sampling.arithmetic import LAST_ID, NOTHING, key_of
from slipway_kernels.sampling.record import Word
from slipway_kernels.sampling.workspace import BLOCK as BLOCK_TOKENS

INVERSE = tl.constexpr(int(Word.INVERSE_TEMPERATURE))
TOP_P = tl.constexpr(int(Word.TOP_P))
MIN_P = tl.constexpr(int(Word.MIN_P))
TYPICAL_P = tl.constexpr(int(Word.TYPICAL_P))
PRESENCE = tl.constexpr(int(Word.PRESENCE))
FREQUENCY = tl.constexpr(int(Word.FREQUENCY))
REPETITION = tl.constexpr(int(Word.REPETITION))
TOP_K = tl.constexpr(int(Word.TOP_K))
MIN_TOKENS = tl.constexpr(int(Word.MIN_TOKENS))
SEED_LOW = tl.constexpr(int(Word.SEED_LOW))
SEED_HIGH = tl.constexpr(int(Word.SEED_HIGH))
NUM_LOGPROBS = tl.constexpr(int(Word.NUM_LOGPROBS))
NUM_BIAS = tl.constexpr(int(Word.NUM_BIAS))
NUM_STOP = tl.constexpr(int(Word.NUM_STOP))
NUM_BAD = tl.constexpr(int(Word.NUM_BAD))
LONGEST_BAD = tl.constexpr(int(Word.LONGEST_BAD))
ALLOWED_AT = tl.constexpr(int(Word.ALLOWED_AT))
BIAS_IDS_AT = tl.constexpr(int(Word.BIAS_IDS_AT))
BIAS_VALUES_AT = tl.constexpr(int(Word.BIAS_VALUES_AT))
STOP_AT = tl.constexpr(int(Word.STOP_AT))
BAD_OFFSETS_AT = tl.constexpr(int(Word.BAD_OFFSETS_AT))
BAD_IDS_AT = tl.constexpr(int(Word.BAD_IDS_AT))
PENALIZED = tl.constexpr(int(Word.PENALIZED))
FILTERED = tl.constexpr(int(Word.FILTERED))

BLOCK = tl.constexpr(BLOCK_TOKENS)
# Notes of tiles that are read at once.
TILES = tl.constexpr(256)


@triton.jit
def float_of(at):
    """The fp32 whose bits are in a record's word."""
    return tl.load(at).to(tl.float32, bitcast=True)


@triton.jit
def note_maxima(value, row, num_tiles, blocks_ptr, tiles_ptr, TILE: tl.constexpr):
    """The largest key of each block and of the tile."""
    most = tl.max(tl.reshape(key_of(value), [TILE // BLOCK, BLOCK]), axis=1)
    at = row.to(tl.int64) * num_tiles + tl.program_id(0)
    tl.store(blocks_ptr + at * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK), most)
    tl.store(tiles_ptr + at, tl.max(most, axis=0))


@triton.jit
def largest_key(tiles_ptr, row, num_tiles):
    """Of a row: UNORDERED where it holds a NaN, NOTHING where it holds nothing above -inf."""
    most = tl.zeros([TILES], tl.int32) + NOTHING
    for start in range(0, num_tiles, TILES):
        tile = start + tl.arange(0, TILES)
        at = tiles_ptr + row.to(tl.int64) * num_tiles + tile
        most = tl.maximum(most, tl.load(at, mask=tile < num_tiles, other=NOTHING))
    return tl.max(most, axis=0)


@triton.jit
def sum_of_tiles(values_ptr, row, num_tiles):
    held = tl.zeros([TILES], tl.int64)
    for start in range(0, num_tiles, TILES):
        tile = start + tl.arange(0, TILES)
        at = values_ptr + row.to(tl.int64) * num_tiles + tile
        held += tl.load(at, mask=tile < num_tiles, other=0).to(tl.int64)
    return tl.sum(held, axis=0)


@triton.jit
def load_row(logits_ptr, logits_stride, edited_ptr, edited_stride, touched_ptr, row, token, inside):
    """The edited logits where the row has been edited, else the model's. fp32; -inf where not `inside`."""
    row = row.to(tl.int64)
    plain = inside
    if edited_ptr is not None:
        touched = tl.load(touched_ptr + row) != 0
        plain = inside & (touched == 0)
    value = tl.load(logits_ptr + row * logits_stride + token, mask=plain, other=-float("inf")).to(tl.float32)
    if edited_ptr is not None:
        at = edited_ptr + row * edited_stride + token
        value = tl.where(touched, tl.load(at, mask=inside & touched, other=-float("inf")), value)
    return value


@triton.jit
def winner_of_tiles(scores_ptr, winners_ptr, row, num_tiles):
    """The token with the best score; the lower id where two are equal."""
    most = tl.zeros([TILES], tl.float64) - float("inf")
    token = tl.zeros([TILES], tl.int32) + LAST_ID
    for start in range(0, num_tiles, TILES):
        tile = start + tl.arange(0, TILES)
        at = row.to(tl.int64) * num_tiles + tile
        score = tl.load(scores_ptr + at, mask=tile < num_tiles, other=-float("inf"))
        better = score > most  # a later tile has higher ids
        token = tl.where(better, tl.load(winners_ptr + at, mask=tile < num_tiles, other=0), token)
        most = tl.maximum(most, score)
    return tl.min(tl.where(most == tl.max(most, axis=0), token, LAST_ID), axis=0)


@triton.jit
def first_tile(tiles_ptr, row, num_tiles, key):
    """The first tile whose maximum is `key`."""
    first = tl.zeros([TILES], tl.int32) + LAST_ID
    for start in range(0, num_tiles, TILES):
        tile = start + tl.arange(0, TILES)
        most = tl.load(tiles_ptr + row.to(tl.int64) * num_tiles + tile, mask=tile < num_tiles, other=NOTHING)
        first = tl.minimum(first, tl.where(most == key, tile, LAST_ID))
    return tl.min(first, axis=0)


@triton.jit
def first_of(
    logits_ptr,
    logits_stride,
    edited_ptr,
    edited_stride,
    touched_ptr,
    row,
    begin,
    end,
    key,
    CHUNK: tl.constexpr,
):
    """The first token of [begin, end) whose logit's key is `key`."""
    first = tl.zeros([CHUNK], tl.int32) + LAST_ID
    for start in range(begin, end, CHUNK):
        token = start + tl.arange(0, CHUNK)
        inside = token < end
        value = load_row(
            logits_ptr, logits_stride, edited_ptr, edited_stride, touched_ptr, row, token, inside
        )
        first = tl.minimum(first, tl.where(inside & (key_of(value) == key), token, LAST_ID))
    return tl.min(first, axis=0)
